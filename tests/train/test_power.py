"""A checkpoint counts when it is on the disk: it outlasts a loss of power, which takes all that was not synced."""

import sys
from pathlib import Path

import pytest
import torch

from harmax.files import write_atomically
from harmax.train.checkpoint import find_checkpoints
from harmax.train.language.train import pretrain
from harmax.train.vision.train import train_classifier
from lost_power import Disk
from train.language.tiny import curve, spec, weights
from train.vision.small import assert_same
from train.vision.small import spec as vision_spec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the disk is watched through /proc")


def test_the_disk_forgets_what_was_not_synced(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with Disk(root) as disk:
        write_atomically(root / "new/folder/file", b"first")
        (root / "new/folder/other").write_bytes(b"lost")
        (root / "new/folder/file").write_bytes(b"overwritten, and lost too")
        kept = disk.restore(tmp_path / "kept")
    assert {str(path.relative_to(kept)): path.read_bytes() for path in kept.rglob("*") if path.is_file()} == {
        "new/folder/file": b"first"
    }


def test_a_language_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    kept = {}

    def lose_power(record: dict[str, object]) -> None:
        if record["step"] in (6, 9):
            kept[record["step"]] = disk.restore(tmp_path / f"after{record['step']}") / "run"

    with Disk(root) as disk:
        pretrain(spec(steps=10, decay_steps=20), root / "run", device="cpu", progress=lose_power)
    pretrain(spec(), tmp_path / "undisturbed", device="cpu")
    for step, folder in kept.items():
        assert find_checkpoints(folder / "checkpoints")[-1].step == step // 4 * 4
        pretrain(spec(), folder, device="cpu")
        assert curve(folder) == curve(tmp_path / "undisturbed")
        found, wanted = weights(folder), weights(tmp_path / "undisturbed")
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_classifier_goes_on_too_and_a_finished_model_is_there(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with Disk(root) as disk:
        train_classifier(vision_spec(epochs=1), root / "run", device="cpu")
        lost = disk.restore(tmp_path / "lost") / "run"
    assert_same(lost, root / "run")
