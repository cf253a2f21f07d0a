"""What each of two processes does: train a small model on its half of every batch, and save it from all ranks."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard

from harmax import HarmonicHead, LearnableHarmonicHead
from leaving import leave

HEADS: dict[str, tuple[type[HarmonicHead], dict[str, Any]]] = {
    "known": (HarmonicHead, {"scale": 0.5}),
    "unknown": (HarmonicHead, {}),
    "prior": (HarmonicHead, {"prior": True}),
    "learned": (LearnableHarmonicHead, {"prior": True}),
}
WRAPPINGS = ("ddp", "fsdp", "fsdp of the head")
RANKS = 2


class Classifier(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        make, settings = HEADS[kind]
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.head = make(16, 6, exponent=5.0, **settings)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.head(self.body(x), target)


def train(model: nn.Module, rank: int = 0, ranks: int = 1) -> Tensor:
    """Return the loss of each step. The halves of a batch differ much in length."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    losses = []
    for _ in range(4):
        x = torch.randn(8, 8, generator=generator) * torch.linspace(0.1, 10, 8)[:, None]
        target = torch.randint(6, (8,), generator=generator)
        own = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
        optimizer.zero_grad()
        loss = model(x[own], target[own])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def wrap(model: Classifier, wrapping: str) -> nn.Module:
    if wrapping == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if wrapping == "fsdp of the head":
        fully_shard(model.head)
    fully_shard(model)
    return model


def run(wrapping: str, kind: str, rank: int, folder: Path) -> dict[str, Any]:
    bare = Classifier(kind)
    model = wrap(bare, wrapping)
    losses = train(model, rank, RANKS)
    dist.all_reduce(losses)
    scales: list[Any] = [None] * RANKS
    dist.all_gather_object(scales, bare.head.scale)
    # As a job resumes: each rank loads its part into a new model that does not know its scale.
    place = folder / f"{wrapping} {kind}"
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=place)
    resumed_head = Classifier(kind)
    resumed = wrap(resumed_head, wrapping)
    state = {"model": get_model_state_dict(resumed)}
    dcp.load(state, checkpoint_id=place)
    set_model_state_dict(resumed, state["model"])
    return {
        "losses": losses / RANKS,
        "scales": scales,
        "resumed": resumed_head.head.scale,
        "state": get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)),
    }


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder / 'meeting'}", timedelta(seconds=60), rank=rank, world_size=RANKS)
    found = {(wrapping, kind): run(wrapping, kind, rank, folder) for wrapping in WRAPPINGS for kind in HEADS}
    if rank == 0:
        torch.save(found, folder / "found.pt")
    leave()
