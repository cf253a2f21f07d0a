"""Quantizers and low-precision training change the Linears of a model and leave its harmonic head alone."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from harmax import HarmonicHead, squared_distance
from tools.plain import TOKENS, WIDTH, Language, assert_harmonic, language

# torchao reports kernels that its wheel has only for GPUs; torch deprecates its own quantization in its favor.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def quanto(model: nn.Module) -> nn.Module:
    library = pytest.importorskip("optimum.quanto")
    library.quantize(model, weights=library.qint8, activations=library.qint8)
    library.freeze(model)
    return model


def torchao(name: str) -> Callable[[nn.Module], nn.Module]:
    def change(model: nn.Module) -> nn.Module:
        library = pytest.importorskip("torchao.quantization")
        library.quantize_(model, getattr(library, name)())
        return model

    return change


def prepare_qat(model: nn.Module) -> nn.Module:
    library = pytest.importorskip("torchao.quantization")
    qat = pytest.importorskip("torchao.quantization.qat")
    weights = qat.IntxFakeQuantizeConfig(torch.int8, "per_channel")
    library.quantize_(model, qat.QATConfig(weight_config=weights, step="prepare"))
    return model


def float8_training(model: nn.Module) -> nn.Module:
    return pytest.importorskip("torchao.float8").convert_to_float8_training(model)


def dynamic(model: nn.Module) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear, HarmonicHead}, dtype=torch.qint8)


QUANTIZERS = {
    "quanto": quanto,
    "torchao int8": torchao("Int8WeightOnlyConfig"),
    "torchao float8": torchao("Float8WeightOnlyConfig"),
    "torchao dynamic": torchao("Int8DynamicActivationInt8WeightConfig"),
    "torchao qat": prepare_qat,
    "torchao float8 training": float8_training,
    "torch.ao dynamic": dynamic,
}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("quantizer", QUANTIZERS.values(), ids=QUANTIZERS)
def test_a_quantizer_changes_the_body_and_not_the_head(quantizer: Callable[[nn.Module], Language], tied: bool) -> None:
    model = language(tied, bias=True)
    before, settings = copy.deepcopy(model), model.lm_head.settings.clone()
    after = quantizer(model)
    assert type(after.lm_head) is HarmonicHead
    assert (after.lm_head.weight is after.embedding.weight) == tied
    assert torch.equal(after.lm_head.weight, before.lm_head.weight)
    assert torch.equal(after.lm_head.settings, settings)
    features = after.features(TOKENS)
    assert not torch.equal(features, before.features(TOKENS)), "the body is quantized"
    assert_harmonic(features.detach(), after.lm_head)


WEIGHT_ONLY: dict[str, tuple[str, dict[str, Any], float]] = {
    "int8": ("Int8WeightOnlyConfig", {}, 1 / 127),
    "int4": ("IntxWeightOnlyConfig", {"weight_dtype": torch.int4}, 1 / 7),
    "float8": ("Float8WeightOnlyConfig", {}, 1 / 16),
}
"""Settings of torchao, and how far a number of a row may be off, in units of the row's largest."""


def with_quantized_centers(kind: str, tied: bool = False) -> Language:
    library = pytest.importorskip("torchao.quantization")
    config, settings, _ = WEIGHT_ONLY[kind]
    model = language(tied, bias=True)
    library.quantize_(model, getattr(library, config)(**settings), filter_fn=lambda module, name: name == "lm_head")
    return model


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", WEIGHT_ONLY)
def test_distances_are_taken_to_quantized_centers(kind: str, tied: bool) -> None:
    before, model, error = language(tied, bias=True), with_quantized_centers(kind, tied), WEIGHT_ONLY[kind][-1]
    head = model.lm_head
    assert type(head.weight) is not nn.Parameter
    assert torch.equal(model.embedding.weight, before.embedding.weight)
    centers = head.weight.dequantize()
    largest = before.lm_head.weight.abs().amax(1, keepdim=True)
    off = (centers - before.lm_head.weight).abs()
    assert 0 < (off / largest).max() <= error
    features = model.features(TOKENS).detach()
    assert_harmonic(features, head, weight=centers)
    for call in (head.distance, head.entropy):
        assert torch.isfinite(call(features)).all()
    torch.testing.assert_close(head.centers * head.scale, centers)
    torch.testing.assert_close(model(TOKENS), before(TOKENS), rtol=0, atol=0.5 if kind == "int4" else 0.1)


@pytest.mark.parametrize("kind", WEIGHT_ONLY)
def test_quantized_centers_are_saved_compiled_and_trained_through(kind: str, tmp_path: Path) -> None:
    torch.compiler.reset()
    model = with_quantized_centers(kind)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    loaded = language(bias=True)
    loaded.load_state_dict(torch.load(tmp_path / "model.pt"), assign=True)
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(TOKENS), model(TOKENS))
    model(TOKENS, TOKENS).backward()
    assert model.body.weight.grad.abs().max() > 0


def test_functions_ask_for_the_numbers_of_quantized_centers() -> None:
    weight = with_quantized_centers("int8").lm_head.weight
    with pytest.raises(TypeError, match=r"`weight` must be an ordinary tensor, got a quantized Int8Tensor"):
        squared_distance(torch.zeros(2, WIDTH), weight)
    assert squared_distance(torch.zeros(2, WIDTH), weight.dequantize()).shape == (2, len(weight))
