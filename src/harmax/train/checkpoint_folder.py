"""Folders of checkpoints, whatever is in them: whole or not there, and the older ones survive what goes wrong.

    <folder>/step-00000500/             what the writer put there
    <folder>/step-00000500/state.json   step, spec, position in the data, checksums of the files
    <folder>/.partial/                  a checkpoint that is being written: never read

A folder takes its name only when everything in it is on the disk.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException

from harmax.errors import DamagedError
from harmax.files import read_json, write_json
from harmax.train.world import World

STATE = "state.json"
PARTIAL = ".partial"
NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on the disk."""

    folder: Path
    step: int

    def read_state(self) -> dict[str, Any]:
        """Read state.json."""
        state = read_json(self.folder / STATE)
        if not isinstance(state, dict) or not {"step", "world", "spec", "position", "files"} <= state.keys():
            raise DamagedError(
                f"{self.folder / STATE} must describe a checkpoint, got something else; delete the folder."
            )
        return state

    def refuse_damage(self, world: World) -> None:
        """Raise DamagedError on every process where a file is not what was written."""
        damage = None
        for name, digest in self.read_state()["files"].items() if world.leads else ():
            path = self.folder / name
            if not path.is_file() or _digest(path) != digest:
                damage = f"{path} must be what was written, got {'other bytes' if path.is_file() else 'nothing'}"
        damage = world.tell(damage)
        if damage is not None:
            raise DamagedError(f"{damage}; delete {str(self.folder)!r} to go on from the checkpoint before it.")

    def differences(self, identity: dict[str, Any]) -> dict[str, str]:
        """Return the fields of a spec that have another value there, each with words that say so."""
        theirs = self.read_state()["spec"]
        names = [name for name in {**theirs, **identity} if theirs.get(name) != identity.get(name)]
        return {name: f"`{name}` {theirs.get(name)} there and {identity.get(name)} here" for name in names}


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the complete checkpoints of a run, the oldest first."""
    found = [(path, NAME.fullmatch(path.name)) for path in sorted(folder.glob("step-*"))]
    return [Checkpoint(path, int(match[1])) for path, match in found if match and (path / STATE).is_file()]


def write_checkpoint(
    folder: Path, step: int, write: Callable[[Path], None], state: dict[str, Any], *, keep: int, world: World
) -> Checkpoint:
    """Write a checkpoint beside its place, put it there, and forget all but the newest `keep`.

    Args:
        folder: of all checkpoints.
        step: which one this is.
        write: puts this process's files into a folder.
        state: what state.json says besides step, number of processes and checksums.
        keep: how many to keep.
        world: the processes.

    Raises OSError on every process where one of them could not write; older checkpoints are then as they were.
    """
    partial, target = folder / PARTIAL, folder / f"step-{step:08d}"
    state = {"step": step, "world": world.size, **state}
    # Each phase ends where all processes hear whether it went well, so that none waits for one that has given up.
    failure = world.tell(_attempt(lambda: _make_room(partial)) if world.leads else None)
    if failure is None:
        failure = _attempt(lambda: write(partial))
        if failure is None and world.leads:
            failure = _attempt(lambda: _publish(partial, target, state))
        failure = world.tell(failure)
    if failure is not None:
        if world.leads:
            shutil.rmtree(partial, ignore_errors=True)
        good = [f"step {found.step}" for found in find_checkpoints(folder)[-1:]]
        raise OSError(
            f"the checkpoint of step {step} must fit into {str(folder)!r}, and could not be written: {failure}; the "
            f"last good one ({', '.join(good) or 'none yet'}) is kept: make room, and the same command goes on there."
        )
    for old in find_checkpoints(folder)[:-keep] if world.leads else ():
        # Without its list a folder counts no more, so that one half deleted is never taken for a checkpoint.
        (old.folder / STATE).unlink()
        shutil.rmtree(old.folder, ignore_errors=True)
    return Checkpoint(target, step)


def _attempt(action: Callable[[], None]) -> str | None:
    """Do something with files; return what went wrong."""
    try:
        action()
    except (OSError, CheckpointException) as error:
        return _reason(error)
    return None


def _make_room(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def _publish(partial: Path, target: Path, state: dict[str, Any]) -> None:
    files = {path.name: _digest(path) for path in sorted(partial.iterdir())}
    write_json(partial / STATE, {**state, "files": files})
    shutil.rmtree(target, ignore_errors=True)  # one without its list, or the same step again
    os.replace(partial, target)
    handle = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"{path.stat().st_size} bytes, sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"


def _reason(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        return "; ".join(f"process {rank}: {_reason(wrapped[0])}" for rank, wrapped in error.failures.items())
    return f"{type(error).__name__}: {error}"
