"""torch.fx writes a head, and calls of the functions, into its graph as one node each."""

import copy
import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

import harmax
from harmax import HarmonicHead, HarmonicLoss, LearnableHarmonicHead

TARGET = torch.tensor([0, 1, 2, 3])
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


class Network(nn.Module):
    """A small classifier of pictures that ends in a head."""

    def __init__(self, kind: type[HarmonicHead] = HarmonicHead) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.relu = nn.Conv2d(3, 8, 3), nn.ReLU()
        self.pool, self.flatten = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.fc = kind(8, 5, exponent=3.0, prior=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.flatten(self.pool(self.relu(self.conv(x)))))


def pictures() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [HarmonicHead, LearnableHarmonicHead])
def test_a_traced_model_keeps_its_head_and_trains_on(kind: type[HarmonicHead]) -> None:
    model = Network(kind)
    traced = fx.symbolic_trace(copy.deepcopy(model))
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"][-1] == "fc"
    assert type(traced.fc) is kind
    for one in (model, traced):
        nn.functional.cross_entropy(one(pictures()), TARGET).backward()  # finds the scale, too
    assert traced.fc.scale == model.fc.scale is not None
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(traced.get_parameter(name).grad, parameter.grad)
    again = pickle.loads(pickle.dumps(traced))
    torch.testing.assert_close(again(pictures()), model(pictures()))
    assert again.state_dict().keys() == model.state_dict().keys()


def test_features_before_the_head_can_be_cut_out() -> None:
    """What a feature extractor does: another output, and everything behind it is left out."""
    model = Network().eval()
    traced = fx.symbolic_trace(model)
    features = next(node for node in traced.graph.nodes if node.target == "flatten")
    traced.graph.output_node().args = (features,)
    traced.graph.eliminate_dead_code()
    traced.delete_all_unused_submodules()
    traced.recompile()
    assert not hasattr(traced, "fc")
    torch.testing.assert_close(model.fc(traced(pictures())), model(pictures()))


class Losses(nn.Module):
    """All functions, on proxies in various places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.loss = nn.Linear(8, 8), HarmonicLoss(8, 5, scale=1.0, label_smoothing=0.1)
        self.weight, self.exponent = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        x, kernel = self.body(x), {"exponent": self.exponent}
        squared = harmax.squared_distance(x, linear := self.weight)
        return (
            harmax.harmonic_loss(x, linear, target, **kernel),
            harmax.harmonic_logits(input=x, weight=linear, **kernel),
            harmax.harmonic_entropy(x, linear, **kernel),
            harmax.harmax(squared.sqrt(), 2) + harmax.log_harmax(squared.sqrt(), self.exponent),
            self.loss(x, target),
        )


def test_calls_of_the_functions_are_traced() -> None:
    model = Losses()
    traced = fx.symbolic_trace(model)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    for got, want in zip(traced(x, TARGET), model(x, TARGET), strict=True):
        torch.testing.assert_close(got, want)
    with pytest.raises(ValueError, match="`target` must have shape"):
        traced(x, TARGET[:2])


def test_hooks_on_a_head_are_refused_because_they_would_act_twice() -> None:
    model = Network()
    model.fc.register_forward_pre_hook(lambda module, arguments: (2 * arguments[0],))
    with pytest.raises(ValueError, match="`fc` must have no hooks"):
        fx.symbolic_trace(model)


def test_fx_quantization_changes_the_body_and_not_the_head() -> None:
    quantize_fx = pytest.importorskip("torch.ao.quantization.quantize_fx")
    from torch.ao.quantization import get_default_qconfig_mapping

    model = Network().eval()
    prepared = quantize_fx.prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping("x86"), (pictures(),))
    prepared(pictures())
    quantized = quantize_fx.convert_fx(prepared)
    assert "quantized" in type(quantized.conv).__module__
    assert type(quantized.fc) is HarmonicHead
    assert torch.equal(quantized.fc.weight, model.fc.weight)
    got, want = quantized(pictures()), model(pictures())
    assert not torch.equal(got, want)
    torch.testing.assert_close(got, want, rtol=0, atol=0.1)


APART = Path(sys.prefix) / "torchvision"
"""Where `make test-tools` puts a torchvision that does not load beside a CPU build of torch."""

EXTRACTOR = """
import sys
import torch

if len(sys.argv) > 1:  # its wheel has compiled operators for GPUs only, and asks for these two on import
    sys.path.insert(0, sys.argv[1])
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torchvision.models import resnet18
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names
from harmax import replace_head

model = resnet18(num_classes=5).eval()
head = replace_head(model, "fc", exponent=5.0, scale=0.5)
assert get_graph_node_names(model)[1][-1] == "fc"
pictures = torch.randn(2, 3, 64, 64)
found = create_feature_extractor(model, {"flatten": "features", "fc": "scores"})(pictures)
torch.testing.assert_close(found["scores"], model(pictures))
torch.testing.assert_close(head(found["features"]), model(pictures))
print("extracted")
"""


def test_the_feature_extractor_of_torchvision() -> None:
    """In a process of its own, because transformers must not see such a torchvision."""
    if importlib.util.find_spec("torchvision") is None and not APART.exists():
        pytest.skip("torchvision is not installed")
    words = [sys.executable, "-W", "ignore", "-c", EXTRACTOR, *([str(APART)] if APART.exists() else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "extracted", done.stderr
