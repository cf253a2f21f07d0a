"""Adapters of PEFT on harmonic models of transformers: they train the harmonic loss, come back, and are merged."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from harmax.heads.harmonic import HarmonicHead
from harmax.hf import HardeningCallback, harmonize
from hf.zoo import batch, plain

peft = pytest.importorskip("peft")
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402

from harmax.heads.lora import lora_on_centers  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:Unsupported layer type:UserWarning",
    "ignore:Setting `save_embedding_layers`:UserWarning",  # for the head's name
    "ignore:Model (has|with) `tie_word_embeddings=True`:UserWarning",  # lora_on_centers unties them in a merge
    "ignore:Input and output embeddings are no longer tied:UserWarning",
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",  # PEFT asks for it
)
both = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
BODY = ["q_proj", "v_proj"]
WAYS = {
    "target_parameters": dict(target_modules=BODY, target_parameters=["lm_head.weight"]),
    "target_modules": dict(target_modules=[*BODY, "lm_head"]),
}
on_centers = pytest.mark.parametrize("way", WAYS)


def config(way: str) -> LoraConfig:
    return lora_on_centers(LoraConfig(**WAYS[way], r=4, task_type="CAUSAL_LM"))


def base(tied: bool, **settings: Any) -> Any:
    return harmonize(plain("llama", tied=tied), **({"exponent": 24.0} | settings))


def train(model: nn.Module) -> list[float]:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.05)
    losses, inputs = [], batch("llama")
    for _ in range(8):
        loss = model.train()(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return losses


def log_probabilities(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=batch("llama")["input_ids"]).logits


def loss_of(log_probabilities: Tensor) -> float:
    labels = batch("llama")["labels"][:, 1:]
    return F.cross_entropy(log_probabilities[:, :-1].flatten(0, 1), labels.flatten()).item()


def adapted(model: PeftModel) -> tuple[HarmonicHead, Tensor]:
    """The head inside the layer of PEFT, and the centers that the layer gives it."""
    layer = model.base_model.model.lm_head
    return layer.get_base_layer(), layer.get_base_layer().weight + layer.get_delta_weight("default")


@both
@on_centers
def test_lora_on_centers_trains_the_harmonic_loss_of_the_changed_centers(way: str, tied: bool) -> None:
    plain_model = base(tied)
    before = loss_of(log_probabilities(plain_model))
    model = get_peft_model(plain_model, config(way))
    losses = train(model)
    assert losses[0] == pytest.approx(before, rel=1e-5), "a new adapter changes nothing"
    assert losses[-1] < losses[0] - 0.5
    head, centers = adapted(model)
    assert (centers - head.weight).norm() > 0.1
    inputs = batch("llama")
    hidden = model.base_model.model.model(inputs["input_ids"]).last_hidden_state
    expected = HarmonicHead.from_state_dict({"weight": centers.detach(), "settings": head.settings})(hidden)
    torch.testing.assert_close(log_probabilities(model), expected)
    assert model.train()(**inputs).loss.item() == pytest.approx(loss_of(expected), rel=1e-5)


@both
@on_centers
def test_an_adapter_comes_back(way: str, tied: bool, tmp_path: Any) -> None:
    model = get_peft_model(base(tied), config(way))
    train(model)
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(
        base(tied), tmp_path, config=lora_on_centers(LoraConfig.from_pretrained(tmp_path))
    )
    torch.testing.assert_close(log_probabilities(again), log_probabilities(model))


@pytest.mark.parametrize(
    ("way", "tied"), [("target_parameters", False), ("target_modules", False), ("target_modules", True)]
)
def test_a_merged_model_is_saved_as_what_it_is(way: str, tied: bool, tmp_path: Any) -> None:
    model = get_peft_model(base(tied), config(way))
    train(model)
    expected = log_probabilities(model)
    merged = model.merge_and_unload()
    torch.testing.assert_close(log_probabilities(merged), expected)
    merged.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(log_probabilities(again), expected)


def harden(model: Any, folder: Any) -> None:
    rows: Any = [{"input_ids": row, "labels": row} for row in batch("llama", rows=8)["input_ids"]]
    arguments = TrainingArguments(
        str(folder), max_steps=3, learning_rate=0.01, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    Trainer(model, arguments, train_dataset=rows, callbacks=[HardeningCallback(share=1.0)]).train()


@pytest.mark.parametrize(
    "settings",
    [dict(target_modules=BODY), WAYS["target_modules"], dict(target_modules=BODY, modules_to_save=["lm_head"])],
    ids=["body", "centers", "whole head"],
)
def test_a_head_under_an_adapter_hardens_with_a_warning_that_the_adapter_does_not_hold_it(
    settings: dict[str, Any], tmp_path: Any
) -> None:
    matched = harmonize(plain("llama"), match=True)
    model = get_peft_model(matched, lora_on_centers(LoraConfig(**copy.deepcopy(settings), task_type="CAUSAL_LM")))
    with pytest.warns(UserWarning, match="the softening of the head must be saved with the model"):
        harden(model, tmp_path)
    expected = log_probabilities(model)
    merged = model.merge_and_unload()
    assert merged.lm_head.softening == 0
    merged.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.lm_head.softening == 0
    torch.testing.assert_close(log_probabilities(again), expected)
