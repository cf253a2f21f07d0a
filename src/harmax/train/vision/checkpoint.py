"""Checkpoints of a classifier: all processes hold the same, so the first one writes.

A folder (see checkpoint_folder.py) has state.safetensors: weights, running statistics, momenta, and sums since the last
line of metrics.
No random state is kept: order and augmentation are functions of seed and step.
"""

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harmax.errors import needs
from harmax.train.checkpoint_folder import Checkpoint, write_checkpoint
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
    """Write a checkpoint, as `write_checkpoint` does."""

    def write(partial: Path) -> None:
        if world.leads:
            _write(_tensors(model, optimizer, totals), partial / TENSORS)

    state = {"spec": spec.identity, "position": fingerprint}
    write_checkpoint(folder, step, write, state, keep=spec.keep, world=world)


def check_checkpoint(checkpoint: Checkpoint, spec: VisionSpec, fingerprint: dict[str, Any]) -> None:
    """Refuse to go on with another spec or other images, and name what is not the same."""
    words = list(checkpoint.differences(spec.identity).values())
    there = checkpoint.read_state()["position"]
    if not words and there != fingerprint:
        words = [f"{there['images']} images there and {fingerprint['images']} others here"]
    if words:
        raise ValueError(
            f"the checkpoints of a run must be of its spec and images, got {str(checkpoint.folder)!r} with "
            f"{', '.join(words)}; give the same to go on, or another output folder."
        )


def load_checkpoint(
    checkpoint: Checkpoint, *, model: nn.Module, optimizer: torch.optim.Optimizer, totals: Tensor, world: World
) -> None:
    """Read a checkpoint into a model, its optimizer and, on the first process, the sums; `check_checkpoint` first."""
    checkpoint.refuse_damage(world)
    stored = load_file(checkpoint.folder / TENSORS)
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


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())
