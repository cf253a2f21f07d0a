"""The checkpoint format: every part is verified, and damage is named with what to do."""

import hashlib
import json
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harmax.errors import DamagedError
from harmax.train.checkpoint import FIELDS, find_checkpoints
from harmax.train.language.train import pretrain
from harmax.train.old_checkpoint import VISION_FILE
from harmax.train.vision.train import train_classifier
from train.language.tiny import curve, spec, weights
from train.vision.small import assert_same
from train.vision.small import spec as vision_spec


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run")
    pretrain(spec(steps=12, keep=3), output, device="cpu")
    return output


@pytest.fixture
def half(run: Path, tmp_path: Path) -> Path:
    """The run as it was after step 8."""
    shutil.copytree(run, tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "checkpoints" / "step-00000012")
    shutil.rmtree(tmp_path / "half" / "model")
    return tmp_path / "half"


@pytest.fixture(scope="module")
def vision_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("vision")
    train_classifier(vision_spec(), output, device="cpu")
    return output


def newest_state(output: Path) -> Path:
    return find_checkpoints(output / "checkpoints")[-1].folder / "state.json"


def rewrite(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_both_tasks_write_one_format(run: Path, vision_run: Path) -> None:
    for output, task in ((run, "language"), (vision_run, "vision")):
        folder = newest_state(output).parent
        state = json.loads((folder / "state.json").read_text())
        assert {*state} == {*FIELDS, "sha256"}
        assert (state["format"], state["task"]) == (2, task)
        assert sorted(path.name for path in folder.iterdir()) == sorted([*state["files"], "state.json"])
        assert all(name.endswith(".safetensors") for name in state["files"])


@pytest.mark.parametrize("fields", [{"step": 9}, {"position": {}}, {"files": {}}, {"world": 2}, {"data": {}}])
def test_a_changed_number_in_the_state_is_noticed(half: Path, fields: dict[str, Any]) -> None:
    rewrite(newest_state(half), **fields)
    with pytest.raises(DamagedError, match=r"state\.json is not what was written: .* delete .*step-00000008"):
        pretrain(spec(steps=12), half, device="cpu")


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_state_that_is_not_one_is_named(half: Path, text: str) -> None:
    newest_state(half).write_text(text)
    with pytest.raises(DamagedError, match=r"step-00000008/state\.json .*; delete '.*step-00000008' to resume"):
        pretrain(spec(steps=12), half, device="cpu")


def test_a_lost_state_is_named_and_the_run_does_not_start_anew(run: Path, half: Path) -> None:
    path = newest_state(half)
    kept = path.read_bytes()
    path.unlink()
    shutil.rmtree(half / "checkpoints" / "step-00000004")
    with pytest.raises(DamagedError, match=r"step-00000008/state\.json is missing; copy it back, .* from the start"):
        pretrain(spec(steps=12), half, device="cpu")
    path.write_bytes(kept)
    pretrain(spec(steps=12), half, device="cpu")
    assert curve(half) == curve(run)


def test_a_newer_format_is_refused(half: Path) -> None:
    rewrite(newest_state(half), format=3)
    with pytest.raises(ValueError, match=r"has format 3, and this version of harmax reads formats 1 and 2; update"):
        pretrain(spec(steps=12), half, device="cpu")


def test_a_checkpoint_of_another_task_is_refused(half: Path) -> None:
    with pytest.raises(ValueError, match=r"checkpoint of a language model, .* trains a vision model; name another"):
        train_classifier(vision_spec(), half, device="cpu")


@pytest.mark.parametrize("split", ["train", "val"])
def test_changed_tokens_are_noticed(half: Path, split: str) -> None:
    path = half / "tokens" / f"{split}-00000.bin"
    path.write_bytes(bytes(byte ^ (place % 2 == 0) for place, byte in enumerate(path.read_bytes())))
    with pytest.raises(DamagedError, match=rf"{split}-00000\.bin must have the sha256 in shards\.json"):
        pretrain(spec(steps=12), half, device="cpu")


def test_a_full_disk_keeps_the_last_good_checkpoint_of_a_classifier(vision_run: Path, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(record: dict[str, Any]) -> None:
        if record["step"] == 12:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))

    try:
        with pytest.raises(OSError, match=r"step 14 could not be written .* the last good one \(step 7\) is kept"):
            train_classifier(vision_spec(), tmp_path / "run", device="cpu", progress=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    train_classifier(vision_spec(), tmp_path / "run", device="cpu")
    assert_same(tmp_path / "run", vision_run)


def make_old(folder: Path) -> None:
    """Rewrite a checkpoint as harmax wrote it before it had a `format`."""
    state = json.loads((folder / "state.json").read_text())
    old = {name: state[name] for name in ("step", "world", "spec", "position", "files")}
    if state["task"] == "vision":
        (name,) = state["files"]
        stored = {key: t for key, t in load_file(folder / name).items() if not key.startswith("random.")}
        scalars = [key for key in stored if key.endswith("num_batches_tracked")]
        stored |= {key: stored[key].view(()) for key in scalars}
        totals = torch.tensor(state["position"]["sums"], dtype=torch.float64)
        (folder / name).unlink()
        save_file({**stored, "totals": totals}, folder / VISION_FILE)
        images, _, _, digest = state["data"]["train"].split()
        old |= {"position": {"images": int(images), "sha256": digest}, "files": {VISION_FILE: checksum(folder)}}
    (folder / "state.json").write_text(json.dumps(old))


def checksum(folder: Path) -> str:
    data = (folder / VISION_FILE).read_bytes()
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"


def test_a_language_run_of_the_old_format_is_resumed_bit_for_bit(run: Path, half: Path) -> None:
    for found in find_checkpoints(half / "checkpoints"):
        make_old(found.folder)
    pretrain(spec(steps=12), half, device="cpu")
    assert curve(half) == curve(run)
    found, wanted = weights(half), weights(run)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_a_vision_run_of_the_old_format_is_resumed_bit_for_bit(tmp_path: Path, momentum: float) -> None:
    settings = vision_spec(momentum=momentum)
    train_classifier(settings, tmp_path / "whole", device="cpu")
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "checkpoints" / "step-00000032")
    make_old(tmp_path / "half" / "checkpoints" / "step-00000028")  # a line of metrics comes two steps later
    train_classifier(settings, tmp_path / "half", device="cpu")
    assert_same(tmp_path / "half", tmp_path / "whole")


@pytest.mark.parametrize("fields", [{"step": "8"}, {"step": 9}, {"world": None}, {"position": 5}, {"files": []}])
def test_a_damaged_state_of_the_old_format_is_named(half: Path, fields: dict[str, Any]) -> None:
    make_old(newest_state(half).parent)
    rewrite(newest_state(half), **fields)
    with pytest.raises(DamagedError, match=r"state\.json does not describe this checkpoint: .* delete .*000008"):
        pretrain(spec(steps=12), half, device="cpu")


def test_half_deleted_checkpoints_of_the_old_version_are_cleared(run: Path, half: Path) -> None:
    (half / "checkpoints" / "step-00000004" / "state.json").unlink()
    pretrain(spec(steps=12), half, device="cpu")
    assert curve(half) == curve(run)
    assert [found.step for found in find_checkpoints(half / "checkpoints")] == [8, 12]
    assert not (half / "checkpoints" / "step-00000004").exists()
