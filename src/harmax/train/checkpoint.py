"""The checkpoint format, for any recipe and any number of processes. No pickle.

    <output>/checkpoints/step-00000500/*.safetensors   weights, optimizer state and random states, one file per process
    <output>/checkpoints/step-00000500/state.json      everything else; see FIELDS
    <output>/checkpoints/.partial/                     a checkpoint that is being written: never read

A folder gets its name only when all of it is on the disk. state.json carries checksums of the other files, of the data,
of metrics.jsonl and of itself, so that resuming (resume.py) can verify every part.
"""

import hashlib
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from harmax.errors import DamagedError, needs
from harmax.files import make_folder, read_json, sync_folder, to_json, write_json
from harmax.train import old_checkpoint
from harmax.train.world import World

with needs("run"):
    import safetensors  # noqa: F401  (torch writes the files with it)

FORMAT = 2
STATE, PARTIAL, REMOVED, OWN_DIGEST = "state.json", ".partial", ".removed", "sha256"
NAME = re.compile(r"step-(\d{8})")

FIELDS: dict[str, type] = {
    "format": int,  # FORMAT
    "task": str,  # of the recipe: language or vision
    "step": int,  # updates done
    "world": int,  # processes that wrote it
    "spec": dict,  # every field that decides the numbers
    "data": dict,  # a checksum per split of the data
    "position": dict,  # where the recipe is in its data, and what it has summed up since the last line of metrics
    "metrics": str,  # length and checksum of metrics.jsonl at that moment
    "files": dict,  # length and checksum of every other file of the folder
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk."""

    folder: Path
    step: int

    def read_state(self) -> dict[str, Any]:
        """Read and verify state.json; an older format is returned as the current one."""
        path = self.folder / STATE
        remedy = f"delete {str(self.folder)!r} to resume from the checkpoint before it."
        try:
            state = read_json(path)
        except DamagedError as error:
            raise DamagedError(f"{path} cannot be read: {error}; {remedy}") from error
        if not isinstance(state, dict):
            raise DamagedError(f"{path} does not describe a checkpoint; {remedy}")
        if state.get("format", 1) == 1:
            state = old_checkpoint.modernize(state)
        elif state["format"] != FORMAT:
            raise ValueError(
                f"{path} has format {state['format']}, and this version of harmax reads formats 1 and {FORMAT}; "
                "update harmax, or name another output folder."
            )
        elif state.pop(OWN_DIGEST, None) != _sha256(state):
            raise DamagedError(f"{path} is not what was written: its checksum is another; {remedy}")
        wrong = [name for name, kind in FIELDS.items() if not isinstance(state.get(name), kind)]
        if wrong or state["step"] != self.step:
            words = f"`{wrong[0]}` is missing or has a wrong type" if wrong else f"it is of step {state['step']}"
            raise DamagedError(f"{path} does not describe this checkpoint: {words}; {remedy}")
        return state

    def verify_files(self, files: Mapping[str, str]) -> None:
        """Raise DamagedError where a file is not what was written."""
        for name, digest in files.items():
            path = self.folder / name
            size = digest.partition(" ")[0]  # compared first: a file may be larger than what it occupies on the disk
            if not path.is_file() or str(path.stat().st_size) != size or _digest(path) != digest:
                words = "is not what was written: its checksum is another" if path.is_file() else "is missing"
                raise DamagedError(
                    f"{path} {words}; copy it back, or delete {str(self.folder)!r} to resume from the checkpoint "
                    "before it."
                )


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the complete checkpoints of a run, the oldest first."""
    return [found for found in _step_folders(folder) if (found.folder / STATE).is_file()]


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the checkpoint to resume from, and refuse to pass over a newer one that has lost its state.json."""
    newest = next(reversed(find_checkpoints(folder)), None)
    for found in _step_folders(folder):
        if found.step > (newest.step if newest else -1) and any(found.folder.glob("*.safetensors")):
            raise DamagedError(
                f"{found.folder / STATE} is missing; copy it back, or delete {str(found.folder)!r} to resume from "
                f"{f'step {newest.step}' if newest else 'the start'}."
            )
    return newest


def clear_leftovers(folder: Path) -> None:
    """Delete what a kill left of checkpoints that were being written or deleted."""
    newest = max((found.step for found in find_checkpoints(folder)), default=-1)
    leftovers = [folder / PARTIAL, folder / REMOVED]
    # Version 1 deleted a checkpoint's state.json first, and might have been killed before it deleted the rest.
    leftovers += [
        found.folder
        for found in _step_folders(folder)
        if not (found.folder / STATE).is_file() and (found.step < newest or not any(found.folder.iterdir()))
    ]
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)


def write_checkpoint(
    folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any], *, keep: int, world: World
) -> None:
    """Write a checkpoint beside its place, put it there, and delete all but the newest `keep`.

    Args:
        folder: the folder of all checkpoints.
        step: updates done.
        tensors: what training changes, this process's part of it.
        state: the fields of state.json besides format, step, world and files.
        keep: how many to keep.
        world: the processes.

    Raises OSError on every process where one of them could not write; older checkpoints are then as they were.
    """
    partial, target = folder / PARTIAL, folder / f"step-{step:08d}"
    state = {"format": FORMAT, "step": step, "world": world.size, **state}
    tensors = {**tensors, **random_states(world)}
    # After each phase all processes learn whether it went well, so that none waits for one that has given up.
    failure = world.tell(_attempt(lambda: _make_room(partial)) if world.leads else None)
    if failure is None:
        failure = _attempt(lambda: _write(tensors, partial))
        if failure is None and world.leads:
            failure = _attempt(lambda: _publish(partial, target, state))
        failure = world.tell(failure)
    if failure is not None:
        if world.leads:
            shutil.rmtree(partial, ignore_errors=True)
        good = [f"step {found.step}" for found in find_checkpoints(folder)[-1:]]
        raise OSError(
            f"the checkpoint of step {step} could not be written to {str(folder)!r} ({failure}); the last good one "
            f"({', '.join(good) or 'none yet'}) is kept: make room, and the same command resumes from there."
        )
    for old in find_checkpoints(folder)[:-keep] if world.leads else ():
        # It loses its name at once, so that one half deleted is never taken for a damaged checkpoint.
        os.replace(old.folder, folder / REMOVED)
        shutil.rmtree(folder / REMOVED, ignore_errors=True)


def read_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Read a checkpoint into tensors, whatever number of processes wrote it."""
    with _alone():
        reader = dcp.HuggingFaceStorageReader(str(folder))
        dcp.load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())


def training_tensors(
    model: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, moments: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return views of everything that training changes.

    Args:
        model: its parameters and buffers by name, a tied matrix once.
        optimizer: of those parameters; its state must have been made.
        moments: keys of its per-parameter state, by the name that they have in a checkpoint.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.items()}
    for name, tensor in model.items():
        for prefix, key in moments.items() if tensor in optimizer.state else ():
            tensors[f"{prefix}.{name}"] = optimizer.state[tensor][key]
    # A single number is stored as a list of one, since slices of safetensors need an axis.
    return {name: (t.detach() if t.ndim else t.detach().view(1)) for name, t in tensors.items()}


def all_finite(tensors: Mapping[str, Tensor], world: World) -> bool:
    """Whether all numbers of all processes are finite, as those of a checkpoint must be."""
    parts = [t.to_local() if isinstance(t, DTensor) else t for t in tensors.values() if t.is_floating_point()]
    # The largest magnitude tells without a copy of the tensor; a process may hold nothing of a small one.
    largest = [torch.linalg.vector_norm(part, math.inf).double() for part in parts if part.numel()]
    bad = (~torch.stack(largest).isfinite()).sum() if largest else torch.zeros((), device=world.device)
    return not world.total(bad.double()).item()


def random_states(world: World) -> dict[str, Tensor]:
    """Return the state of torch's random numbers on this process."""
    states = {f"random.{world.rank}": torch.get_rng_state()}
    if world.device.type == "cuda":
        states[f"cuda_random.{world.rank}"] = torch.cuda.get_rng_state(world.device)
    return states


def set_random_states(states: Mapping[str, Tensor], world: World) -> None:
    """Set the state of torch's random numbers on this process."""
    torch.set_rng_state(states[f"random.{world.rank}"])
    if world.device.type == "cuda":
        torch.cuda.set_rng_state(states[f"cuda_random.{world.rank}"], world.device)


def _step_folders(folder: Path) -> list[Checkpoint]:
    found = [(path, NAME.fullmatch(path.name)) for path in sorted(folder.glob("step-*"))]
    return [Checkpoint(path, int(match[1])) for path, match in found if match]


def _attempt(action: Callable[[], None]) -> str | None:
    """Do something with files; return what went wrong."""
    try:
        action()
    except (OSError, CheckpointException) as error:
        return _reason(error)
    return None


def _make_room(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(partial)


def _write(tensors: dict[str, Tensor], folder: Path) -> None:
    with _alone():
        writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
        dense = {name: t if isinstance(t, DTensor) else t.contiguous() for name, t in tensors.items()}
        dcp.save(dense, storage_writer=writer, no_dist=not dist.is_initialized())


def _publish(partial: Path, target: Path, state: dict[str, Any]) -> None:
    state["files"] = {path.name: _digest(path) for path in sorted(partial.iterdir())}
    write_json(partial / STATE, {**state, OWN_DIGEST: _sha256(state)})  # which syncs the names of all its files
    shutil.rmtree(target, ignore_errors=True)  # one without its state.json, or the same step again
    os.replace(partial, target)
    sync_folder(target.parent)


def _sha256(state: dict[str, Any]) -> str:
    return hashlib.sha256(to_json(state).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"{path.stat().st_size} bytes, sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"


def _reason(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        return "; ".join(f"process {rank}: {_reason(wrapped[0])}" for rank, wrapped in error.failures.items())
    return f"{type(error).__name__}: {error}"


@contextmanager
def _alone() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # as it may be
        yield
