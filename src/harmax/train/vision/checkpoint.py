"""Checkpoints of a classifier: whole or not there. All processes hold the same, so the first one writes.

    <folder>/step-00000500/state.safetensors    weights, running statistics, momenta, sums since the last line
    <folder>/step-00000500/state.json           step, spec, what the images were, checksum

No random state is kept: order and augmentation are functions of seed and step.
"""

import hashlib
import math
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harmax.extras import needs
from harmax.files import DamagedError, write_json
from harmax.train.checkpoint import PARTIAL, STATE, Checkpoint, find_checkpoints
from harmax.train.vision.spec import VisionSpec
from harmax.train.world import World

with needs("run"):
    from safetensors.torch import load_file, save_file

TENSORS = "state.safetensors"
MOMENTUM = "momentum_buffer"


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    spec: VisionSpec,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    totals: Tensor,
    fingerprint: dict[str, Any],
    world: World,
) -> None:
    """Write a checkpoint beside its place, put it there, and forget all but the newest `spec.keep`.

    Raises OSError on every process where the first could not write; older checkpoints are then as they were.
    """
    failure = None
    if world.leads:
        state = {"step": step, "world": world.size, "spec": spec.identity, "position": fingerprint}
        try:
            _write(folder, step, _tensors(model, optimizer, totals), state)
        except OSError as error:
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
            failure = f"{type(error).__name__}: {error}"
        else:
            for old in find_checkpoints(folder)[: -spec.keep]:
                # Without its list a folder counts no more, so that one half deleted is never taken for a checkpoint.
                (old.folder / STATE).unlink()
                shutil.rmtree(old.folder, ignore_errors=True)
    if (failure := world.tell(failure)) is not None:
        raise OSError(
            f"the checkpoint of step {step} must fit into {str(folder)!r}, and could not be written: {failure}; older "
            "ones are kept: make room, and the same command goes on there."
        )


def check_checkpoint(checkpoint: Checkpoint, spec: VisionSpec, fingerprint: dict[str, Any]) -> None:
    """Refuse to go on with another spec or other images, and name what is not the same."""
    state = checkpoint.read_state()
    theirs, ours = state["spec"], spec.identity
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    words = [f"`{name}` {theirs.get(name)} there and {ours.get(name)} here" for name in names]
    if not words and state["position"] != fingerprint:
        words = [f"{state['position']['images']} images there and {fingerprint['images']} others here"]
    if words:
        raise ValueError(
            f"the checkpoints of a run must be of its spec and images, got {str(checkpoint.folder)!r} with "
            f"{', '.join(words)}; give the same to go on, or another output folder."
        )


def load_checkpoint(
    checkpoint: Checkpoint, *, model: nn.Module, optimizer: torch.optim.Optimizer, totals: Tensor, world: World
) -> None:
    """Read a checkpoint into a model, its optimiser and, on the first process, the sums; `check_checkpoint` first."""
    path, files = checkpoint.folder / TENSORS, checkpoint.read_state()["files"]
    if files.get(TENSORS) != (_digest(path) if path.is_file() else None):
        raise DamagedError(
            f"{path} must be what was written, got {'other bytes' if path.is_file() else 'nothing'}; delete "
            f"{str(checkpoint.folder)!r} to go on from the checkpoint before it."
        )
    stored = load_file(path)
    for name, parameter in model.named_parameters():
        if f"momentum.{name}" in stored:
            optimizer.state[parameter][MOMENTUM] = torch.zeros_like(parameter)
    with torch.no_grad():
        for name, tensor in _tensors(model, optimizer, totals).items():
            tensor.copy_(stored[name])
    if not world.leads:
        totals.zero_()


def count_non_finite(model: nn.Module, optimizer: torch.optim.Optimizer, totals: Tensor) -> int:
    """Count the tensors of a checkpoint in which some number is infinite or none at all."""
    tensors = [t for t in _tensors(model, optimizer, totals).values() if t.is_floating_point()]
    largest = [torch.linalg.vector_norm(tensor, math.inf).double() for tensor in tensors]
    return int((~torch.stack(largest).isfinite()).sum().item())


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer, totals: Tensor) -> dict[str, Tensor]:
    """Views of everything that training changes."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if MOMENTUM in optimizer.state[parameter]:  # without momentum there is none
            tensors[f"momentum.{name}"] = optimizer.state[parameter][MOMENTUM]
    return {**tensors, "totals": totals}


def _write(folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    partial, target = folder / PARTIAL, folder / f"step-{step:08d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, partial / TENSORS)
    with (partial / TENSORS).open("rb+") as file:
        os.fsync(file.fileno())
    write_json(partial / STATE, {**state, "files": {TENSORS: _digest(partial / TENSORS)}})
    shutil.rmtree(target, ignore_errors=True)  # one without its list, or the same step again
    os.replace(partial, target)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"{path.stat().st_size} bytes, sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
