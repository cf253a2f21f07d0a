"""Adapters of PEFT on a model with a harmonic head: they train centers, leave the head alone, or raise."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from harmax.heads import HarmonicHead
from tools.plain import EXPONENT, SCALE, TOKENS, Language, assert_harmonic, language

peft = pytest.importorskip("peft")
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402

from harmax.heads.lora import lora_on_centers  # noqa: E402

PROCEED = "ignore:Unsupported layer type:UserWarning"  # PEFT says so for each layer that it does not know
pytestmark = [pytest.mark.filterwarnings(PROCEED)]
both = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])

ON_CENTERS = {
    "target_parameters": lambda: LoraConfig(target_parameters=["lm_head.weight"]),
    "target_modules": lambda: lora_on_centers(LoraConfig(target_modules=["lm_head"])),
}
on_centers = pytest.mark.parametrize("way", ON_CENTERS)


def train(model: nn.Module) -> list[float]:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.05)
    losses = []
    for _ in range(8):
        loss = model(TOKENS, TOKENS)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def adapted_centers(model: PeftModel) -> torch.Tensor:
    wrapper = model.base_model.model.lm_head
    return wrapper.get_base_layer().weight + wrapper.get_delta_weight("default")


@both
@on_centers
@pytest.mark.parametrize("bias", [False, True], ids=["", "prior"])
def test_lora_changes_centers_and_nothing_else(way: str, tied: bool, bias: bool) -> None:
    base = language(tied, bias)
    before = {key: value.clone() for key, value in base.state_dict().items()}
    model = get_peft_model(base, ON_CENTERS[way]())
    assert {name.split(".")[-3] for name, p in model.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}
    losses = train(model)
    assert losses[-1] < losses[0]
    head, features = base.lm_head.get_base_layer(), base.features(TOKENS)
    centers = adapted_centers(model).detach()
    assert (centers - head.weight).norm() > 0.1
    expected = HarmonicHead.from_state_dict(
        {"weight": centers, "settings": head.settings, **({"prior": head.prior} if bias else {})}
    )
    torch.testing.assert_close(model(TOKENS), expected(features))
    torch.testing.assert_close(model(TOKENS, TOKENS), expected(features, TOKENS))
    assert_harmonic(features, expected)
    for key, value in before.items():
        now = {name.replace("base_layer.", ""): tensor for name, tensor in base.state_dict().items()}
        assert torch.equal(now[key], value), "the base model must not change"


@pytest.mark.parametrize(
    ("way", "tied"), [("target_parameters", False), ("target_modules", False), ("target_modules", True)]
)
def test_a_merge_is_exact(way: str, tied: bool) -> None:
    model = get_peft_model(language(tied), ON_CENTERS[way]())
    train(model)
    expected = model(TOKENS)
    merged = model.merge_and_unload()
    assert isinstance(merged.lm_head, HarmonicHead)
    torch.testing.assert_close(merged(TOKENS), expected)
    assert_harmonic(merged.features(TOKENS), merged.lm_head)


def test_a_merge_after_target_parameters_changes_a_tied_embedding_too() -> None:
    """The guide warns of it: PEFT does so in a Linear as well, and does not say so."""
    model = get_peft_model(language(tied=True), ON_CENTERS["target_parameters"]())
    train(model)
    before, expected = model.base_model.model.embedding.weight.clone(), model(TOKENS)
    merged = model.merge_and_unload()
    assert merged.embedding.weight is merged.lm_head.weight
    assert not torch.equal(merged.embedding.weight, before)
    assert not torch.allclose(merged(TOKENS), expected, atol=0.01)


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")  # for the head's name
@pytest.mark.filterwarnings("ignore:Could not identify embedding layer:UserWarning")
@both
@on_centers
def test_an_adapter_comes_back(way: str, tied: bool, tmp_path: Path) -> None:
    model = get_peft_model(language(tied), ON_CENTERS[way]())
    train(model)
    model.save_pretrained(tmp_path)
    if way == "target_modules":
        with pytest.raises(ValueError, match="is not supported"):
            PeftModel.from_pretrained(language(tied), tmp_path)
        config = lora_on_centers(LoraConfig.from_pretrained(tmp_path))
        loaded = PeftModel.from_pretrained(language(tied), tmp_path, config=config)
    else:
        loaded = PeftModel.from_pretrained(language(tied), tmp_path)
    torch.testing.assert_close(loaded(TOKENS), model(TOKENS))


@on_centers
def test_the_first_batch_finds_the_scale_under_an_adapter(way: str) -> None:
    plain = language(scale=None)
    plain(TOKENS, TOKENS)
    model = get_peft_model(language(scale=None), ON_CENTERS[way]())
    model(TOKENS, TOKENS)
    merged = model.merge_and_unload()
    assert merged.lm_head.scale == plain.lm_head.scale is not None
    assert HarmonicHead.from_state_dict(merged.state_dict(), "lm_head.").scale == plain.lm_head.scale


@pytest.mark.parametrize("setting", [{"use_dora": True}, {"lora_dropout": 0.1}, {"lora_bias": True}])
@on_centers
def test_what_has_no_meaning_for_centers_is_refused(way: str, setting: dict[str, Any]) -> None:
    config = ON_CENTERS[way]()
    for name, value in setting.items():
        setattr(config, name, value)
    with pytest.raises(ValueError, match="does not work with"):
        get_peft_model(language(), config)


@both
def test_all_linear_leaves_the_head_alone(tied: bool) -> None:
    base = language(tied)
    model = get_peft_model(base, LoraConfig(target_modules="all-linear"))
    assert model.peft_config["default"].target_modules == {"body"}
    train(model)
    expected = model(TOKENS)
    merged = model.merge_and_unload()
    assert type(merged.lm_head) is HarmonicHead
    torch.testing.assert_close(merged(TOKENS), expected, rtol=0, atol=1e-5)
    assert_harmonic(merged.features(TOKENS), merged.lm_head)


@both
@pytest.mark.parametrize("scale", [SCALE, None], ids=["known", "unknown"])
def test_modules_to_save_trains_and_saves_a_whole_head(tied: bool, scale: float | None, tmp_path: Path) -> None:
    def config() -> LoraConfig:
        return LoraConfig(target_modules=["body"], modules_to_save=["lm_head"])

    model = get_peft_model(language(tied, bias=True, scale=scale), config())
    train(model)
    expected, trained = model(TOKENS), model.base_model.model.lm_head.modules_to_save["default"]
    assert trained.scale is not None
    assert trained.prior.abs().sum() > 0
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(language(tied, bias=True, scale=scale), tmp_path)
    torch.testing.assert_close(loaded(TOKENS), expected)
    head = loaded.merge_and_unload().lm_head
    assert (head.exponent, head.scale) == (EXPONENT, trained.scale)
    assert_harmonic(torch.randn(3, head.in_features), head)


def test_a_saved_head_of_another_exponent_raises(tmp_path: Path) -> None:
    model = get_peft_model(language(), LoraConfig(target_modules=["body"], modules_to_save=["lm_head"]))
    model.save_pretrained(tmp_path)
    other = Language()
    other.lm_head = HarmonicHead(other.lm_head.in_features, other.lm_head.out_features, exponent=9.0)
    with pytest.raises(RuntimeError, match="must be those of this head"):
        PeftModel.from_pretrained(other, tmp_path)


@both
def test_trainable_tokens_of_the_head_are_refused(tied: bool) -> None:
    model = get_peft_model(
        language(tied), LoraConfig(target_modules=["body"], trainable_token_indices={"lm_head": [1]})
    )
    with pytest.raises(ValueError, match="unknown layer type"):
        model(TOKENS)


def test_trainable_tokens_of_the_embedding_leave_an_untied_head_alone() -> None:
    config = LoraConfig(target_modules=["body"], trainable_token_indices={"embedding": [1, 2]})
    model = get_peft_model(language(), config)
    train(model)
    expected = model(TOKENS)
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(TOKENS), expected, rtol=0, atol=1e-5)
    assert torch.equal(merged.lm_head.weight, language().lm_head.weight)


METHODS = [
    name
    for name, kind in inspect.getmembers(peft, inspect.isclass)
    if issubclass(kind, peft.PeftConfig) and "target_modules" in inspect.signature(kind).parameters
]
MORE = {"AdaLoraConfig": {"total_step": 10}, "IA3Config": {"feedforward_modules": []}}


NOT_REFUSED = {"LNTuningConfig", "OSFConfig"}
"""LN tuning trains a copy of the head as it is; OSF passes it over."""


@pytest.mark.filterwarnings("ignore::UserWarning")  # each method has its own
@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_peft_is_right_or_raises(method: str) -> None:
    base = language()
    try:
        model = get_peft_model(base, getattr(peft, method)(target_modules=["lm_head"], **MORE.get(method, {})))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.1 * torch.randn_like(parameter)
        output = model(TOKENS)
    except Exception:  # each method has its own type
        assert method not in NOT_REFUSED
        return
    assert method in NOT_REFUSED
    features = base.features(TOKENS)
    merged = model.merge_and_unload().lm_head
    torch.testing.assert_close(output, merged(features))
    assert_harmonic(features, merged)
