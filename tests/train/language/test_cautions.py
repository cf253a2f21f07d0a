"""What a user hears before a run costs a day."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harmax.cli.main import main
from harmax.data.text import TokenShards
from harmax.train.language.cautions import find_cautions, needed_bytes
from harmax.train.language.text import generate_shards
from harmax.train.language.train import pretrain
from train.language.tiny import flags, lines, spec


class Disk(NamedTuple):
    free: int


@pytest.fixture
def text(tmp_path: Path) -> TokenShards:
    generate_shards(tmp_path, vocab=50)
    return TokenShards(tmp_path)


@pytest.mark.parametrize(
    ("fields", "caution"),
    [
        ({}, None),
        ({"steps": 7, "warmup": 6}, None),
        ({"steps": 7, "decay_steps": 100, "warmup": 10}, None),  # the beginning of a longer run
        ({"steps": 7, "warmup": 9}, "`warmup` should end before the schedule does at step 7, got 9"),
        ({"steps": 2000}, None),
        ({"steps": 2560}, "read at most 4 times, got 5.0: 65,536 tokens for 2560 steps of 128"),
    ],
)
def test_what_is_seldom_meant_is_said(text: TokenShards, fields: dict[str, Any], caution: str | None) -> None:
    settings = spec(**fields)
    settings = type(settings)(**{**vars(settings), **fields})  # `spec` shortens a warm-up that is too long
    found = list(find_cautions(settings, text, 10_000, text.folder))
    assert len(found) == (caution is not None)
    assert caution is None or caution in found[0]


def test_a_disk_too_small_for_the_checkpoints_is_noticed_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk(100_000))
    with pytest.warns(UserWarning, match=r"should have 0.0 GiB free, for 2 checkpoints, the next one and the model"):
        pretrain(spec(), tmp_path, device="cpu")
    assert len(lines(tmp_path)) == 20  # a guess that may be wrong stops nobody


def test_the_estimate_is_what_a_run_leaves(tmp_path: Path, text: TokenShards, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = spec(n_embd=64, keep=2)
    pretrain(settings, tmp_path / "run", device="cpu")
    sizes = [path.stat().st_size for path in (tmp_path / "run").rglob("*.safetensors")]
    parameters = 2 * 64 * (12 * 64 + 13) + 64 * (64 + 16 + 2)
    # Two checkpoints and the model; while one is written there is a third.
    one = 12 * parameters
    assert needed_bytes(settings, parameters) == pytest.approx(sum(sizes) + one, rel=0.1)
    # What lies there already needs no room.
    for free, count in ((one, 1), (1.6 * one, 0)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: Disk(int(free)))
        assert len(list(find_cautions(settings, text, parameters, tmp_path / "run"))) == count


def test_the_command_says_it_once_and_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*flags(spec(steps=3)), "--warmup", "30", "--device", "cpu", "--output", str(tmp_path)]
    assert main(["pretrain", *settings]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("harmax: `warmup` should end before the schedule does at step 3, got 30: ")
    assert said[1].startswith("step 1/3")
