"""metrics.jsonl: repaired to the checkpoint's step, and damage is named with its line and what to do."""

from pathlib import Path

import pytest

from harmax.errors import DamagedError
from harmax.train.metrics import MetricsFile, lines_until


def line(step: int, loss: float = 1.5) -> bytes:
    return f'{{"step": {step}, "loss": {loss}}}\n'.encode()


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, str]:
    """A file of three lines, and its checksum."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        metrics.add({"step": step, "loss": 1.5})
    return metrics.path, metrics.digest


def test_a_file_is_its_lines_and_knows_the_last(written: tuple[Path, str]) -> None:
    path, digest = written
    assert path.read_bytes() == line(1) + line(2) + line(3)
    again = MetricsFile(path, path.read_bytes())
    assert (again.digest, again.last) == (digest, {"step": 3, "loss": 1.5})


@pytest.mark.parametrize("rest", [b"", line(4), line(4) + b'{"st', b"\0\0\0\n"])
def test_what_came_after_the_checkpoint_is_cut(written: tuple[Path, str], rest: bytes) -> None:
    path, digest = written
    path.write_bytes(path.read_bytes() + rest)
    assert lines_until(path, 3, digest) == (line(1) + line(2) + line(3), None)


def test_without_a_checksum_lines_are_kept_by_their_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + line(2) + line(3) + b'{"st')
    lines, caution = lines_until(path, 2, None)
    assert (lines, caution) == (line(1) + line(2), None)
    MetricsFile(path, lines).add({"step": 3, "loss": 2.5})
    assert path.read_bytes() == line(1) + line(2) + line(3, 2.5)


def test_lines_of_two_processes_become_one_per_step(written: tuple[Path, str]) -> None:
    path, digest = written
    path.write_bytes(line(2) + line(1) + line(2) + line(3) + line(4) + line(3) + line(4))
    lines, caution = lines_until(path, 3, digest)
    assert lines == line(1) + line(2) + line(3)
    assert caution is not None
    assert f"{path} is not what was written up to the checkpoint of step 3; 3 lines are kept" in caution


@pytest.mark.parametrize("damage", [b"{nonsense\n", b"[]\n", b'{"step": "x"}\n', b"\xff\n"])
@pytest.mark.parametrize("known", [True, False])
def test_a_damaged_line_is_named_and_can_be_deleted(written: tuple[Path, str], damage: bytes, known: bool) -> None:
    path, digest = written
    path.write_bytes(line(1) + damage + line(3))
    with pytest.raises(DamagedError, match=r"line 2 of .*metrics\.jsonl is not a line .*; delete that line to resume"):
        lines_until(path, 3, digest if known else None)
    path.write_bytes(line(1) + line(3))
    assert lines_until(path, 3, digest if known else None)[0] == line(1) + line(3)


def test_a_lost_file_is_named_and_can_be_done_without(written: tuple[Path, str]) -> None:
    path, digest = written
    path.unlink()
    with pytest.raises(DamagedError, match=r"metrics\.jsonl is missing, .* step 3 .* create an empty file"):
        lines_until(path, 3, digest)
    path.touch()
    assert lines_until(path, 3, digest)[0] == b""


def test_a_new_run_begins_with_no_line(written: tuple[Path, str]) -> None:
    path, _ = written
    path.write_bytes(b"{nonsense\n")
    assert lines_until(path, 0, None) == (b"", None)


def test_a_line_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "run" / "metrics.jsonl")
    metrics.path.unlink()
    metrics.path.mkdir()
    with pytest.raises(OSError, match=r"metrics\.jsonl could not be written .* the same command resumes"):
        metrics.add({"step": 1})
