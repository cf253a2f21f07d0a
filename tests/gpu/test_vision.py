"""Classifiers on a GPU: python -m pytest -m gpu."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harmax.train.vision.train import train_classifier
from train.vision.small import KILLED_AT, assert_same, curve, lines, spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled"),  # of four classes: nothing to speed up
]


@pytest.mark.parametrize("head", ["harmonic", "linear"])
@pytest.mark.parametrize("compile", [False, True])
def test_a_training_is_as_on_the_cpu(tmp_path: Path, head: Any, compile: bool) -> None:
    train_classifier(spec(head=head), tmp_path / "cpu", device="cpu")
    train_classifier(spec(head=head, compile=compile), tmp_path / "gpu", device="cuda")
    first, *_, last = zip(lines(tmp_path / "gpu"), lines(tmp_path / "cpu"), strict=True)
    assert first[0]["loss"] == pytest.approx(first[1]["loss"], rel=1e-4)
    assert last[0]["val_loss"] == pytest.approx(last[1]["val_loss"], abs=0.1)  # 32 steps on, roundings have grown


def test_reduced_precision_learns_too(tmp_path: Path) -> None:
    last = train_classifier(spec(compile=True, dtype="bf16"), tmp_path, device="cuda")
    assert last["top1"] > 0.6  # of four classes
    assert curve(tmp_path)[-1]["step"] == last["step"]


@pytest.fixture
def the_same_bits_every_time() -> Iterator[None]:
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize("head", ["harmonic", "linear"])
@pytest.mark.parametrize("micro_batch", [16, 32])  # two turns a step, and one
@pytest.mark.parametrize("fields", [{}, {"center_lr": 3.0, "center_decay": 0.01, "label_smoothing": 0.1}])
def test_a_recorded_training_is_the_plain_one(
    tmp_path: Path, head: Any, micro_batch: int, fields: dict[str, Any], the_same_bits_every_time: None
) -> None:
    for record in (False, True):
        some = spec(head=head, compile=True, record=record, micro_batch=micro_batch, **fields)
        train_classifier(some, tmp_path / str(record), device="cuda")
    assert_same(tmp_path / "True", tmp_path / "False")


def test_a_recorded_training_goes_on_where_it_was_stopped(tmp_path: Path, the_same_bits_every_time: None) -> None:
    some = spec(compile=True)
    train_classifier(some, tmp_path / "whole", device="cuda")

    class Stopped(Exception):
        pass

    def stop(line: dict[str, Any]) -> None:
        if line["step"] >= KILLED_AT:
            raise Stopped

    with pytest.raises(Stopped):
        train_classifier(some, tmp_path / "parts", device="cuda", progress=stop)
    train_classifier(some, tmp_path / "parts", device="cuda")
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_steps_are_recorded_where_they_can_be() -> None:
    from harmax.train.vision.step import VisionStep
    from harmax.train.world import World

    def records(device: str, **fields: Any) -> bool:
        return VisionStep(spec(**fields), ["a", "b"], World(0, 1, torch.device(device))).records

    assert records("cuda", compile=True)
    assert not records("cuda", compile=True, record=False)
    assert not records("cuda", compile=False)
    assert not records("cpu", compile=True)


@pytest.mark.parametrize(("micro_batch", "classes"), [(256, 100), (256, 200), (64, 1000), (256, 1000)])
def test_the_published_network_is_recorded_at_any_size(micro_batch: int, classes: int) -> None:
    from harmax.train.vision import VisionSpec
    from harmax.train.vision.step import VisionStep
    from harmax.train.world import World

    world = World(0, 1, torch.device("cuda"))
    step = VisionStep(VisionSpec(batch=micro_batch, micro_batch=micro_batch), [*map(str, range(classes))], world)
    batch = torch.randn(micro_batch, 3, 32, 32, device="cuda"), torch.arange(micro_batch, device="cuda") % classes
    losses = [step(iter([batch]), 0.01)[0].item() for _ in range(8)]
    assert step.records
    assert losses[-1] < losses[0]


def test_a_step_that_waits_for_the_device_is_refused() -> None:
    from harmax.train.vision.recording import PLAIN_CALLS, Recording

    def wait(batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        images, _ = next(batches)
        return images * images.sum().item()

    recording, batch = Recording(1, torch.device("cuda")), (torch.ones(2, device="cuda"), torch.ones(2, device="cuda"))
    for _ in range(PLAIN_CALLS):
        assert recording(wait, iter([batch])).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="--no-record"):
        recording(wait, iter([batch]))


def test_steps_and_evaluations_never_wait_for_the_device() -> None:
    from harmax.train.vision.data import open_images
    from harmax.train.vision.step import VisionStep
    from harmax.train.world import World

    world = World(0, 1, torch.device("cuda"))
    small = spec(compile=True)
    data = open_images(small, world)
    step, batches = VisionStep(small, data.classes, world), data.train(1)
    for _ in range(5):  # the fourth is recorded
        step(batches, 0.1)
    step.evaluate(data.test())
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(batches, 0.1)
        step.evaluate(data.test())
    finally:
        torch.cuda.set_sync_debug_mode("default")
