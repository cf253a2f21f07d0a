"""Two processes do what one does, and a killed one goes on; `worker.py` is what they run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harmax.train.checkpoint import find_checkpoints
from harmax.train.vision.data import open_images
from harmax.train.vision.train import train_classifier
from harmax.train.world import World
from train.vision.small import KILLED_AT, assert_same, curve, folder_spec, lines, spec, weights


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = [str(Path(__file__).with_name("worker.py")), str(root)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*torchrun, *program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return root


def test_a_killed_run_goes_on_bit_for_bit(runs: Path, tmp_path: Path) -> None:
    output = runs / "killed"
    assert [line["step"] for line in curve(output)] == [1, 3, 6, 9, 12, 15, 16, 18]
    assert [found.step for found in find_checkpoints(output / "checkpoints")] == [7, 14]
    assert curve(output)[-1]["step"] == KILLED_AT
    train_classifier(spec(), output, device="cpu")
    train_classifier(spec(), tmp_path, device="cpu")
    assert_same(output, tmp_path)


def test_two_processes_train_what_one_does_in_two_turns(runs: Path, tmp_path: Path) -> None:
    """BatchNorm has the statistics of a micro-batch in both; sums in another order are all that differs."""
    train_classifier(spec(auto_augment="cifar10"), tmp_path, device="cpu")
    for ours, theirs in zip(lines(runs / "ddp"), lines(tmp_path), strict=True):
        assert ours["step"] == theirs["step"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    found, wanted = weights(runs / "ddp"), weights(tmp_path)
    assert found.keys() == wanted.keys()
    for name in wanted:
        if "running" not in name and "tracked" not in name:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-3, atol=1e-4)
    # Running statistics are those of the first process, which has seen half of the micro-batches, and one more in which
    # the head found its scale.
    name = "resnet.embedder.embedder.normalization.num_batches_tracked"
    assert (found[name].item(), wanted[name].item()) == (33, 65)
    assert lines(runs / "ddp")[-1]["top1"] == pytest.approx(lines(tmp_path)[-1]["top1"], abs=0.1)


def test_one_process_goes_on_with_a_checkpoint_of_two(runs: Path, tmp_path: Path) -> None:
    fields = dict(micro_batch=16, head="linear")
    output = runs / "half"
    steps = [found.step for found in find_checkpoints(output / "checkpoints")]
    assert steps[-1] < 16
    train_classifier(spec(**fields), output, device="cpu")
    train_classifier(spec(**fields), tmp_path, device="cpu")
    for ours, theirs in zip(curve(output), curve(tmp_path), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


def test_pictures_are_the_same_whoever_decodes_them(runs: Path) -> None:
    stored = load_file(runs / "read.safetensors")
    data = open_images(folder_spec(runs / "pictures", epochs=1), World(0, 1, torch.device("cpu")))
    for (images, labels), (one, two) in (
        (map(torch.cat, zip(*data.train(2), strict=True)), (stored["images"], stored["labels"])),
        (map(torch.cat, zip(*data.test(), strict=True)), (stored["tests"], stored["targets"])),
    ):
        assert torch.equal(images, one)
        assert torch.equal(labels, two)
