"""Quantizers and low-precision training change the Linears of a model and leave its harmonic head alone."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from harmax import HarmonicHead
from tools.plain import TOKENS, Language, assert_harmonic, language

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


def test_a_quantizer_that_is_forced_on_the_head_raises() -> None:
    library = pytest.importorskip("torchao.quantization")
    model = language()
    library.quantize_(model, library.Int8WeightOnlyConfig(), filter_fn=lambda module, name: name == "lm_head")
    with pytest.raises(NotImplementedError, match="Int8Tensor"):
        model(TOKENS)
