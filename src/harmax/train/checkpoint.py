"""Checkpoints by torch.distributed.checkpoint: whole or not there, for any number of processes.

    <folder>/step-00000500/*.safetensors    weights, AdamW's moments and random states, a file a process
    <folder>/step-00000500/state.json       step, spec, position in the data, checksums of the files
    <folder>/.partial/                      a checkpoint that is being written: never read

A folder takes its name only when everything in it is on the disk.
"""

import hashlib
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from harmax.extras import needs
from harmax.files import DamagedError, read_json, write_json
from harmax.train.spec import SCHEDULE, PretrainSpec
from harmax.train.world import World

with needs("run"):
    import safetensors  # noqa: F401  (what the files are written with: no pickle)

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


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the complete checkpoints of a run, the oldest first."""
    found = [(path, NAME.fullmatch(path.name)) for path in sorted(folder.glob("step-*"))]
    return [Checkpoint(path, int(match[1])) for path, match in found if match and (path / STATE).is_file()]


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    spec: PretrainSpec,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: dict[str, Any],
    world: World,
) -> Checkpoint:
    """Write a checkpoint beside its place, put it there, and forget all but the newest `spec.keep`.

    Raises OSError on every process where one of them could not write; older checkpoints are then as they were.
    """
    partial = folder / PARTIAL
    target = folder / f"step-{step:08d}"
    tensors = {**_tensors(model, optimizer), **_random_states(world)}
    # Each phase ends where all processes hear whether it went well, so that none waits for one that has given up.
    failure = world.tell(_attempt(lambda: _make_room(partial)) if world.leads else None)
    if failure is None:
        writer = dcp.HuggingFaceStorageWriter(str(partial), save_distributed=True)
        failure = _attempt(lambda: _write(tensors, writer))
        if failure is None and world.leads:
            state = {"step": step, "world": world.size, "spec": spec.identity, "position": position}
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
    if world.leads:
        for old in find_checkpoints(folder)[: -spec.keep]:
            # Without its list a folder counts no more, so that one half deleted is never taken for a checkpoint.
            (old.folder / STATE).unlink()
            shutil.rmtree(old.folder, ignore_errors=True)
    return Checkpoint(target, step)


def is_finite(model: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> bool:
    """Whether all weights and moments of all processes are numbers, as those of a checkpoint must be."""
    parts = [t.to_local() if isinstance(t, DTensor) else t for t in _tensors(model, optimizer).values()]
    # The largest magnitude says it without a copy of the tensor; a process may hold nothing of a small one.
    largest = [torch.linalg.vector_norm(part, math.inf) for part in parts if part.numel()]
    bad = (~torch.stack(largest).isfinite()).sum() if largest else torch.zeros((), device=world.device)
    return not world.total(bad.double()).item()


def check_spec(checkpoint: Checkpoint, spec: PretrainSpec, *, change_schedule: bool = False) -> None:
    """Refuse to go on where a field that decides the numbers has another value, and name it.

    Args:
        checkpoint: what to go on from.
        spec: what to go on with.
        change_schedule: whether the schedule's own fields may have another value.
    """
    theirs, ours = checkpoint.read_state()["spec"], spec.identity
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    others = [name for name in names if name not in SCHEDULE]
    if others or (names and not change_schedule):
        words = ", ".join(f"`{name}` {theirs.get(name)} there and {ours.get(name)} here" for name in names)
        way = "" if others else ", or `--change-schedule` to go on with these"
        raise ValueError(
            f"the checkpoints of a run must be of its spec, got {str(checkpoint.folder)!r} with {words}; give the same "
            f"values to go on, or another output folder{way}."
        )


def load_checkpoint(
    checkpoint: Checkpoint,
    *,
    spec: PretrainSpec,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    world: World,
) -> dict[str, Any]:
    """Read a checkpoint into a model and its optimiser, whatever number of processes wrote it; `check_spec` first.

    Returns the position in the data.
    """
    state = checkpoint.read_state()
    damage = None
    if world.leads:
        for name, digest in state["files"].items():
            path = checkpoint.folder / name
            if not path.is_file() or _digest(path) != digest:
                damage = f"{path} must be what was written, got {'other bytes' if path.is_file() else 'nothing'}"
    damage = world.tell(damage)
    if damage is not None:
        raise DamagedError(f"{damage}; delete {str(checkpoint.folder)!r} to go on from the checkpoint before it.")
    _fill_optimizer(optimizer, state["step"])
    same_world = state["world"] == world.size
    tensors = {**_tensors(model, optimizer), **(_random_states(world) if same_world else {})}
    reader = dcp.HuggingFaceStorageReader(str(checkpoint.folder))
    with _alone():
        dcp.load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    if same_world:
        torch.set_rng_state(tensors[f"random.{world.rank}"])
        if world.device.type == "cuda":
            torch.cuda.set_rng_state(tensors[f"cuda_random.{world.rank}"], world.device)
    else:
        # Nothing in a step draws numbers today; were it to, all processes would go on from one state.
        torch.manual_seed(int(hashlib.sha256(f"{spec.seed} {state['step']}".encode()).hexdigest()[:15], 16))
    return dict(state["position"])


@contextmanager
def _alone() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # as it may be
        yield


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Views of everything that training changes; a tied matrix is there once."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter
        for moment in ("exp_avg", "exp_avg_sq"):
            tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
    # A single number is stored as a list of one, as slices of safetensors need an axis.
    return {name: (t.detach() if t.ndim else t.detach().view(1)) for name, t in tensors.items()}


def _fill_optimizer(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Give AdamW the state that it makes itself at its first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            device = parameter.device if group["fused"] else "cpu"
            optimizer.state[parameter] = {
                "step": torch.tensor(float(step), dtype=torch.float32, device=device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def _random_states(world: World) -> dict[str, Tensor]:
    states = {f"random.{world.rank}": torch.get_rng_state()}
    if world.device.type == "cuda":
        states[f"cuda_random.{world.rank}"] = torch.cuda.get_rng_state(world.device)
    return states


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


def _write(tensors: dict[str, Tensor], writer: dcp.HuggingFaceStorageWriter) -> None:
    with _alone():
        dcp.save(tensors, storage_writer=writer, no_dist=not dist.is_initialized())


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
