"""Checkpoints of a GPT-2 by torch.distributed.checkpoint, for any number of processes.

A folder (see checkpoint_folder.py) has *.safetensors: weights, AdamW's moments and random states, a file a process.
"""

import hashlib
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harmax.errors import needs
from harmax.train.checkpoint_folder import Checkpoint, write_checkpoint
from harmax.train.spec import SCHEDULE, PretrainSpec
from harmax.train.world import World

with needs("run"):
    import safetensors  # noqa: F401  (what the files are written with: no pickle)


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
    """Write a checkpoint, as `write_checkpoint` does."""
    tensors = {**_tensors(model, optimizer), **_random_states(world)}
    state = {"spec": spec.identity, "position": position}
    return write_checkpoint(folder, step, lambda partial: _write(tensors, partial), state, keep=spec.keep, world=world)


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
    differences = checkpoint.differences(spec.identity)
    others = [name for name in differences if name not in SCHEDULE]
    if others or (differences and not change_schedule):
        words = ", ".join(differences.values())
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
    """Read a checkpoint into a model and its optimizer, whatever number of processes wrote it; `check_spec` first.

    Returns the position in the data.
    """
    state = checkpoint.read_state()
    checkpoint.refuse_damage(world)
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


def _write(tensors: dict[str, Tensor], folder: Path) -> None:
    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _alone():
        dcp.save(tensors, storage_writer=writer, no_dist=not dist.is_initialized())
