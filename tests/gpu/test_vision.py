"""Classifiers on a GPU: python -m pytest -m gpu."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harmax.train.vision.train import train_classifier
from train.vision.small import curve, lines, spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
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


def test_steps_and_evaluations_never_wait_for_the_device() -> None:
    from harmax.train.vision.data import open_images
    from harmax.train.vision.step import VisionStep
    from harmax.train.world import World

    world = World(0, 1, torch.device("cuda"))
    small = spec(compile=True)
    data = open_images(small, world)
    step, batches = VisionStep(small, data.classes, world), data.train(1)
    for _ in range(3):
        step(batches, 0.1)
    step.evaluate(data.test())
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(batches, 0.1)
        step.evaluate(data.test())
    finally:
        torch.cuda.set_sync_debug_mode("default")
