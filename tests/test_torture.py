"""A sample of `make torture`: a few cases of its quick trials, its table, and that its trials can fail."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torture import children, draws, hostile, readers, table, works
from torture.__main__ import run
from torture.table import Line, Trial
from torture.trials import TRIALS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and limited")


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    yield
    works.clear()
    hostile.clear()


def test_drawn_calls_match_float64() -> None:
    assert [words for seed in range(150) if (words := TRIALS["draws"].case(seed))] == []


def test_a_wrong_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = draws.harmonic_loss
    monkeypatch.setattr(draws, "harmonic_loss", lambda *given, **options: loss(*given, **options) * 1.0001)
    assert any(TRIALS["draws"].case(seed) for seed in range(20))


@pytest.mark.parametrize("fault", ["kill", "pair", "disk", "power"])
def test_text_survives(fault: str) -> None:
    pytest.importorskip("tiktoken")
    assert [words for seed in range(2) if (words := TRIALS[f"{fault}-text"].case(seed))] == []


def test_a_result_that_changed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tiktoken")
    here = works.bench("text")
    monkeypatch.setitem(here.wanted, "train-00000.bin", "of another text")
    words = TRIALS["kill-text"].case(0)
    assert words is not None
    assert words.startswith("lost or different after resuming: train-00000.bin")


@pytest.mark.parametrize("name", ["png", "idx", "npz", "sums", "text.gz", "glue", "pictures.json", "labels.csv"])
def test_hostile_files_are_refused_with_a_clear_error(name: str) -> None:
    assert [words for seed in range(2) if (words := hostile.case(seed, name))] == []


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda folder: {}["key"], "KeyError: 'key'"),
        (lambda folder: bytes(2 * hostile.MOST_MEMORY), "MemoryError"),
        (lambda folder: __import__("subprocess").run(["true"]), "Forbidden: subprocess.Popen"),
        (lambda folder: (_ for _ in ()).throw(ValueError("something is wrong")), "something is wrong"),
    ],
)
def test_a_reader_that_does_what_none_may_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: object, words: str
) -> None:
    monkeypatch.setitem(readers.READERS, "bad", readers.Reader(Path.touch, read))  # type: ignore[arg-type]
    ended = children.run(hostile.reading("bad", tmp_path), tmp_path / "said")
    assert words in ended.words


def test_pieces_add_up_and_a_failure_can_be_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.jsonl"
    asked = []

    def odd(seed: int) -> str | None:
        asked.append(seed)
        return "thirteen" if seed == 13 else None

    trial = Trial(odd, "about odd numbers", calls=2, batch=5)
    for count in (8, 8):
        run("odd", trial, path, None, count, None)
    assert asked == [*range(16)]
    tallies = table.tally(table.read(path))
    assert (tallies["odd"].tried, tallies["odd"].failed) == (32, {"13": "thirteen"})
    shown = table.as_text(tallies, {"odd": trial})
    assert "repeat: make torture TRIALS=odd SEED=13 COUNT=1" in shown
    assert shown.splitlines()[1].split() == ["odd", "32", "31", "1", "0.00", "0-15"]
    assert run("odd", trial, path, 13, 1, None) == 1
    assert table.tally(table.read(path))["odd"].tried == 32, "a repeated seed counts once"
    table.append(path, Line("odd", 16, 1, 2, {}, 0.0))
    assert table.tally(table.read(path))["odd"].tried == 34
    assert len(table.read(path)) == 2, "consecutive pieces are one line"


@pytest.mark.slow
def test_the_triton_kernels_are_drawn_in_their_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    words = ["draws-triton", "--count", "2", "--table", str(tmp_path / "table.jsonl")]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "torture", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert table.tally(table.read(tmp_path / "table.jsonl"))["draws-triton"].held == 2


def test_a_kill_comes_at_the_operation_that_was_drawn(tmp_path: Path) -> None:
    place = tmp_path / "place"

    def write() -> None:
        place.mkdir()
        for number in range(5):
            (place / str(number)).write_text("x")

    said = tmp_path / "said"
    assert children.count_operations(place, write, said)[0] == 6
    for path in place.iterdir():
        path.unlink()
    place.rmdir()
    counts = set()
    for seed in range(8):
        assert children.killed(place, write, said, random.Random(seed), (6, 0.0)) == ""
        counts.add(len(list(place.iterdir())) if place.exists() else -1)
        for path in place.iterdir() if place.exists() else ():
            path.unlink()
        if place.exists():
            place.rmdir()
    assert len(counts) > 1
