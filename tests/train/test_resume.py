"""Resuming: from the newest complete checkpoint, bit for bit, and only where everything belongs together."""

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from harmax.errors import DamagedError
from harmax.train.checkpoint import find_checkpoints
from harmax.train.language.text import generate_shards
from harmax.train.language.train import pretrain
from train.language.tiny import curve, spec, weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run")
    pretrain(spec(), output, device="cpu")
    return output


@pytest.fixture
def half(run: Path, tmp_path: Path) -> Path:
    """The run as it was after step 16, its oldest checkpoint."""
    output = tmp_path / "half"
    shutil.copytree(run, output)
    shutil.rmtree(output / "checkpoints" / "step-00000020")
    shutil.rmtree(output / "model")
    return output


def steps(output: Path) -> list[int]:
    return [found.step for found in find_checkpoints(output / "checkpoints")]


def test_as_many_as_wanted_are_kept(run: Path, tmp_path: Path) -> None:
    assert steps(run) == [16, 20]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000016", "step-00000020"]
    pretrain(spec(steps=12, keep=3), tmp_path, device="cpu")
    assert steps(tmp_path) == [4, 8, 12]


@pytest.mark.parametrize(
    "fields",
    [
        {"learn_exponent": True},
        {"head": "linear", "tied": False},
        {"head": "gaussian", "logit_scale": 2.0},
        {"decay_centers": False, "clip": 0.0},
    ],
)
def test_any_model_goes_on_bit_for_bit(tmp_path: Path, fields: dict[str, Any]) -> None:
    pretrain(spec(**fields, steps=12), tmp_path / "whole", device="cpu")
    pretrain(spec(**fields, steps=5, decay_steps=12), tmp_path / "parts", device="cpu")
    pretrain(spec(**fields, steps=12), tmp_path / "parts", device="cpu")
    ours, theirs = ([line["loss"] for line in curve(tmp_path / name)] for name in ("whole", "parts"))
    assert ours == theirs
    found, wanted = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_random_numbers_go_on(tmp_path: Path) -> None:
    torch.manual_seed(7)
    pretrain(spec(steps=2, decay_steps=4), tmp_path, device="cpu")
    then = torch.get_rng_state()
    torch.manual_seed(8)
    pretrain(spec(steps=4), tmp_path, device="cpu")
    assert torch.equal(torch.get_rng_state(), then)


def test_an_unfinished_folder_is_not_a_checkpoint(run: Path, half: Path) -> None:
    (half / "checkpoints" / "step-00000019").mkdir()
    (half / "checkpoints" / ".partial").mkdir()
    (half / "checkpoints" / ".partial" / "rest").write_text("of a crash")
    assert steps(half) == [16]
    pretrain(spec(), half, device="cpu")
    assert curve(half) == curve(run)
    assert steps(half) == [16, 20]


def test_a_disk_that_is_full_leaves_the_last_good_one(run: Path, half: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(record: dict[str, Any]) -> None:
        if record["step"] == 20:
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))  # the next larger file cannot be written

    try:
        with pytest.raises(OSError, match=r"step 20 could not be written .* the last good one \(step 16\) is kept"):
            pretrain(spec(), half, device="cpu", progress=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in (half / "checkpoints").iterdir()] == ["step-00000016"]
    pretrain(spec(), half, device="cpu")
    assert curve(half) == curve(run)


def test_a_checkpoint_of_another_spec(half: Path) -> None:
    with pytest.raises(
        ValueError, match=r"settings: `exponent` \(None there, 9.0 here\), `lr` \(0.01 there, 0.02 here\); give"
    ):
        pretrain(spec(lr=0.02, exponent=9.0), half, device="cpu")
    assert steps(half) == [16]


def test_where_and_how_fast_may_change(run: Path, half: Path) -> None:
    shutil.move(half / "tokens", half.parent / "elsewhere")
    pretrain(spec(data=half.parent / "elsewhere", keep=1, checkpoint_every=100), half, device="cpu")
    assert curve(half) == curve(run)
    assert steps(half) == [20]


def test_a_checkpoint_of_other_data(half: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    generate_shards(tmp_path / "other", vocab=50, seed=3)
    with pytest.raises(ValueError, match=r"with other data: its train split has the checksum .* give the data"):
        pretrain(spec(data=tmp_path / "other"), half, device="cpu")


@pytest.mark.parametrize("words", ["is not what was written", "is missing"])
def test_a_damaged_checkpoint_is_named(run: Path, tmp_path: Path, words: str) -> None:
    output = tmp_path / "run"
    shutil.copytree(run, output)
    (path,) = (output / "checkpoints" / "step-00000020").glob("*.safetensors")
    if words == "is missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    with pytest.raises(DamagedError, match=f"safetensors {words}.*; copy it back, or delete .*step-00000020' to"):
        pretrain(spec(), output, device="cpu")
    shutil.rmtree(path.parent)
    pretrain(spec(), output, device="cpu")
    assert curve(output) == curve(run)


def test_nothing_in_a_checkpoint_is_a_pickle(run: Path) -> None:
    files = sorted(path for path in (run / "checkpoints" / "step-00000020").iterdir())
    assert [path.suffix for path in files] == [".safetensors", ".json"]
    state = json.loads(files[1].read_text())
    assert state["step"] == 20
    assert state["position"]["windows_seen"] == 20 * 8
    assert state["spec"]["head"] == "harmonic"


def test_a_list_that_is_none_is_named(half: Path) -> None:
    (half / "checkpoints" / "step-00000016" / "state.json").write_text("{}")
    with pytest.raises(DamagedError, match=r"state\.json does not describe this checkpoint: `format` is missing"):
        pretrain(spec(), half, device="cpu")
