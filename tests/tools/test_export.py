"""Exported models give the same numbers at any size and batch, and run where harmax is not installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from harmax import HarmonicHead, LearnableHarmonicHead, harmonic_entropy, harmonic_loss

SIZES = {"small": (16, 5), "ImageNet": (2048, 1000), "GPT-2": (768, 50257)}
TARGET = torch.tensor([0, 1, 2, 3])
ANY_BATCH = ({0: Dim.DYNAMIC},)
# PyTorch's exporter uses names of its own that it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def head_of(width: int, classes: int, **settings: Any) -> HarmonicHead:
    torch.manual_seed(0)
    return HarmonicHead(width, classes, **{"scale": 0.5, "prior": True, **settings}).eval()


def features(width: int, rows: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) / width**0.5


def near_centers(head: HarmonicHead) -> Tensor:
    """Features on a center, and at distances from it that float32 products cannot see."""
    shift = features(head.in_features, 1)
    return head.centers[3] + torch.tensor([0.0, 1e-6, 1e-5, 1e-3])[:, None] * shift


def export(model: nn.Module, *inputs: Tensor, **options: Any) -> ExportedProgram:
    shapes = ({0: Dim.DYNAMIC},) * len(inputs)
    return torch.export.export(model, inputs, dynamic_shapes=shapes, **options)


def onnx_session(model: nn.Module, input: Tensor, path: Path) -> Any:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    torch.onnx.export(model, (input,), dynamo=True, dynamic_shapes=ANY_BATCH, verbose=False).save(path)
    session = runtime.InferenceSession(str(path))
    return lambda x: torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_onnx_gives_the_same_numbers_for_any_batch(size: tuple[int, int], tmp_path: Path) -> None:
    head = head_of(*size)
    run = onnx_session(head, features(size[0], 4), tmp_path / "head.onnx")
    for rows in (1, 4, 9):
        x = features(size[0], rows, seed=rows)
        torch.testing.assert_close(run(x), head(x).detach(), rtol=0, atol=1e-5)
    x = near_centers(head)
    torch.testing.assert_close(run(x), head(x).detach(), rtol=2e-6, atol=1e-40)


def test_an_onnx_model_refuses_another_width(tmp_path: Path) -> None:
    run = onnx_session(head_of(16, 5), features(16, 4), tmp_path / "head.onnx")
    with pytest.raises(Exception, match=r"(?s)invalid dimensions for input.*Got: 17 Expected: 16"):
        run(features(17, 4))


class Network(nn.Module):
    """A small classifier of pictures."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.fc = HarmonicHead(128, 5, exponent=4.0, scale=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


def test_a_whole_model_goes_to_onnx(tmp_path: Path) -> None:
    model = Network().eval()
    pictures = torch.randn(7, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    run = onnx_session(model, pictures[:4], tmp_path / "model.onnx")
    torch.testing.assert_close(run(pictures), model(pictures).detach(), rtol=0, atol=1e-5)


HEADS = {
    "plain": lambda: head_of(64, 300, prior=False),
    "softened": lambda: head_of(64, 300, softening=0.3),
    "learned": lambda: LearnableHarmonicHead(64, 300, scale=0.5).eval(),
    "bfloat16": lambda: head_of(64, 300).bfloat16(),
    "far": lambda: shifted(head_of(64, 300)),
    "infinite": lambda: with_infinite_center(head_of(64, 300)),
}


def shifted(head: HarmonicHead) -> HarmonicHead:
    """A head whose centers are far from the origin, so that only recentered products see their distances."""
    head.weight.data += 100.0
    return head


def with_infinite_center(head: HarmonicHead) -> HarmonicHead:
    head.weight.data[9] = torch.inf
    return head


@pytest.mark.parametrize(("kind", "strict"), [*((kind, False) for kind in HEADS), ("plain", True), ("learned", True)])
def test_an_exported_head_is_plain_operations_with_the_same_numbers(kind: str, strict: bool) -> None:
    head = HEADS[kind]()
    given = (features(64, 4) + head.centers[:4].float()).to(head.weight.dtype)
    program = export(head, given, strict=strict)
    assert not [node for node in program.graph.nodes if "harmax" in str(node.target)]
    for x in (given, torch.cat([given, near_centers(head).to(given.dtype)])):
        torch.testing.assert_close(program.module()(x), head(x), rtol=3e-6, atol=1e-5)
    with pytest.raises(AssertionError, match=r"size\(\)\[1\] == 64"):
        program.module()(features(65, 4).to(head.weight.dtype))


class Losses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = head_of(64, 300)

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        kernel = {"exponent": 5.0, "prior": self.head.prior}
        entropy = harmonic_entropy(x, self.head.weight, **kernel).sum()
        return self.head(x, target, label_smoothing=0.1), harmonic_loss(x, self.head.weight, target, **kernel) + entropy


def test_an_exported_loss_has_the_same_value_and_gradients() -> None:
    model, found = Losses(), []
    given = torch.cat([features(64, 2), near_centers(model.head)[2:]])
    program = export(model, given, TARGET)
    assert not [node for node in program.graph.nodes if "harmax" in str(node.target)]
    x, target = (torch.cat([value, value]) for value in (given, TARGET))
    for call in (model, program.module()):
        leaf = x.clone().requires_grad_()
        losses = call(leaf, target)
        found.append([*losses, *torch.autograd.grad(sum(losses), [leaf, *call.parameters()])])
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * want.abs().max().item())


def test_a_head_that_is_still_to_find_its_scale_is_not_exported_for_training() -> None:
    head = HarmonicHead(64, 300)
    with pytest.raises(ValueError, match=r"must know its scale before.*exported.*head\.find_scale"):
        export(head, features(64, 4))
    head.find_scale(features(64, 4))
    torch.testing.assert_close(export(head, features(64, 4)).module()(features(64, 9)), head(features(64, 9)))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*deprecated:DeprecationWarning")
def test_the_older_tracer_gives_the_same_numbers_for_any_batch(tmp_path: Path) -> None:
    head = head_of(64, 300)
    torch.jit.trace(head, (features(64, 4),)).save(tmp_path / "head.pt")
    traced = torch.jit.load(tmp_path / "head.pt")
    for x in (features(64, 1), torch.cat([features(64, 9), near_centers(head)])):
        torch.testing.assert_close(traced(x), head(x), rtol=3e-6, atol=1e-5)
    with pytest.raises(RuntimeError, match=r"(?i)size|shape"):
        traced(features(65, 4))


WITHOUT_HARMAX = """
import sys

class Missing:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "harmax":
            raise ModuleNotFoundError("harmax is not here")

sys.meta_path.insert(0, Missing())
import torch

folder, width = sys.argv[1], int(sys.argv[2])
x, want = torch.load(folder + "/wanted.pt")
models = {"export": torch.export.load(folder + "/head.pt2").module()}
if len(sys.argv) > 3:
    models["package"] = torch._inductor.aoti_load_package(folder + "/package.pt2")
for name, model in models.items():
    for rows in (1, len(x)):
        torch.testing.assert_close(model(x[:rows]), want[:rows], rtol=3e-6, atol=1e-5)
    try:
        model(torch.zeros(len(x), width + 1))
    except (RuntimeError, AssertionError) as error:
        print(name, "refuses:", error)
"""


def run_without_harmax(model: nn.Module, x: Tensor, folder: Path, *options: str) -> str:
    """Run an exported model in a process that cannot import harmax; it checks the numbers, and tries another width."""
    torch.export.save(export(model, x[:3]), folder / "head.pt2")
    torch.save((x, model(x).detach()), folder / "wanted.pt")
    words = [sys.executable, "-W", "ignore", "-c", WITHOUT_HARMAX, str(folder), str(x.shape[1]), *options]
    environment = {**os.environ, "AOTI_RUNTIME_CHECK_INPUTS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_exported_model_runs_without_harmax(tmp_path: Path) -> None:
    head = head_of(64, 300)
    said = run_without_harmax(head, torch.cat([features(64, 4), near_centers(head)]), tmp_path)
    assert "export refuses: Guard failed: input.size()[1] == 64" in said


@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles C++")
def test_a_package_of_aotinductor_runs_without_harmax(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="it takes half a minute, so only make test-tools runs it")
    head = head_of(64, 300)
    x = torch.cat([features(64, 4), near_centers(head)])
    torch._inductor.aoti_compile_and_package(
        export(head, x[:3]),
        package_path=str(tmp_path / "package.pt2"),
        inductor_configs={"aot_inductor.check_lowerbound": False},  # else a batch of 1 is refused beside other checks
    )
    said = run_without_harmax(head, x, tmp_path, "package")
    assert "package refuses: input_handles[0]: unmatched dim value at 1, expected: 64, but got: 65" in said
