"""metrics.jsonl: one JSON object per logged step, repaired to the step of the checkpoint when a run is resumed."""

import hashlib
import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from harmax.errors import DamagedError
from harmax.files import digest, from_json, read_whole, to_json, write_atomically

MOST_METRICS = 2**31
"""Bytes of metrics.jsonl: more than ten million lines."""


class MetricsFile:
    """A file that lines are appended to.

    Args:
        path: the file.
        lines: its lines so far; whatever else the file holds is deleted.
    """

    def __init__(self, path: Path, lines: bytes = b"") -> None:
        self.path = path
        self._bytes, self._hash = len(lines), hashlib.sha256(lines)
        self.last: dict[str, Any] | None = from_json(lines.splitlines()[-1]) if lines else None
        """The last line."""
        if not path.is_file() or path.read_bytes() != lines:
            write_atomically(path, lines)

    @property
    def digest(self) -> str:
        """Length and checksum of all lines so far."""
        return f"{self._bytes} bytes, sha256 {self._hash.hexdigest()}"

    def add(self, record: dict[str, Any]) -> None:
        """Append one line."""
        line = f"{to_json(record)}\n".encode()
        try:
            with self.path.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise OSError(
                f"{self.path} could not be written ({error}); make room, and the same command resumes the run."
            ) from error
        self.last = record
        self._bytes += len(line)
        self._hash.update(line)

    def sync(self) -> None:
        """Bring all lines to the disk, as a checkpoint that carries their checksum needs them."""
        with self.path.open("ab") as file:
            os.fsync(file.fileno())


def lines_until(path: Path, step: int, written: str | None) -> tuple[bytes, str | None]:
    """Return the lines of metrics.jsonl up to a checkpoint's step, and what to know about them.

    Args:
        path: the file.
        step: that of the checkpoint; 0 for none.
        written: length and checksum of the file when the checkpoint was written; None where they are not known.
    """
    if not step:
        return b"", None
    if not path.is_file():
        raise DamagedError(
            f"{path} is missing, and the checkpoint of step {step} belongs to it; put it back, or create an empty file "
            "of that name to resume without the earlier lines."
        )
    data = read_whole(path, MOST_METRICS)
    if written is not None:
        known = data[: int(written.partition(" ")[0])]
        if digest(known) == written:
            return known, None
    lines = _valid_lines(path, data, step)
    caution = (
        f"{path} is not what was written up to the checkpoint of step {step}; {len(lines)} lines are kept, one per "
        "step; copy the file back from a backup if its numbers matter."
    )
    return b"".join(line for _, line in sorted(lines.items())), None if written is None else caution


def _valid_lines(path: Path, data: bytes, last: int) -> dict[int, bytes]:
    """Return the first line of every step up to the last one."""
    lines: dict[int, bytes] = {}
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):  # cut short by a kill
            break
        try:
            step = from_json(line)["step"]
            if not isinstance(step, int):
                raise TypeError(f"step {step!r}")
        except (ValueError, TypeError, LookupError) as error:
            raise DamagedError(
                f"line {number} of {path} is not a line of metrics ({error}); delete that line to resume without it."
            ) from error
        if step <= last:
            lines.setdefault(step, line)
    return lines


def memory_gib(device: torch.device) -> float:
    """Return the largest amount of memory held so far: of the GPU as torch counts it, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
