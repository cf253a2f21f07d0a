"""What cannot be right, tried on every rank. A rank that hangs ends the tests with the timeout of its group."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

from harmax import HarmonicHead, harmonic_loss
from harmax.functional import harmonic_log_probabilities
from harmax.parallel import ClassParallel


def make_mistakes(mesh: DeviceMesh) -> dict[str, str]:
    """Return the message of each mistake, as this rank saw it."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    target = torch.arange(6)
    x = distribute_tensor(torch.randn(6, 4), mesh, [Replicate()])
    w = distribute_tensor(torch.randn(12, 4), mesh, [Shard(0)])
    few = distribute_tensor(torch.randn(ranks - 1, 4), mesh, [Shard(0)])
    by_feature = distribute_tensor(torch.randn(12, 4), mesh, [Shard(1)])
    square = init_device_mesh("cpu", (ranks // 2, 2))
    on_square = [distribute_tensor(torch.randn(12, 4), square, [Replicate(), Shard(0)]) for _ in range(2)]
    head = parallelize_module(HarmonicHead(4, 12), mesh, ClassParallel())
    attempts: dict[str, Callable[[], Any]] = {
        "other exponents": lambda: harmonic_loss(x, w, target, exponent=3.0 + rank),
        "other exponents of log-probabilities": lambda: harmonic_log_probabilities(x, w, exponent=3.0 + rank),
        "a bad exponent on one rank": lambda: harmonic_loss(x, w, target, exponent=3.0 if rank else -3.0),
        "a bad exponent of log-probabilities": lambda: harmonic_log_probabilities(x, w, exponent=3.0 if rank else 0.0),
        "a prior on one rank": lambda: harmonic_loss(x, w, target, prior=None if rank else torch.ones(12)),
        "a prior on one rank, log-probabilities": lambda: harmonic_log_probabilities(
            x, w, prior=None if rank else torch.ones(12)
        ),
        "class weights on one rank": lambda: harmonic_loss(x, w, target, weight=None if rank else torch.ones(12)),
        "probabilities on one rank": lambda: harmonic_loss(x, w, target if rank else torch.full((6, 12), 1 / 12)),
        "other targets": lambda: harmonic_loss(x, w, (target + rank) % 12),
        "fewer classes than ranks": lambda: harmonic_loss(x, few, target[:1].expand(6)),
        "a head with fewer classes": lambda: parallelize_module(HarmonicHead(4, ranks - 1), mesh, ClassParallel()),
        "a linear head": lambda: parallelize_module(nn.Linear(4, 8), mesh, ClassParallel()),
        "class means of divided centers": lambda: head.init_from_class_means(torch.randn(6, 4), target),
        "plain centers": lambda: harmonic_loss(x, torch.randn(12, 4), target),
        "divided features": lambda: harmonic_loss(x, by_feature, target),
        "two dimensions": lambda: harmonic_loss(*on_square, torch.arange(12)),
        "another implementation": lambda: harmonic_loss(x, w, target, impl="eager"),
        "a target out of range": lambda: harmonic_loss(x, w, target + 7),
        "after all of them": lambda: float(harmonic_loss(x, w, target).isfinite()),
    }
    return {name: _message(attempt) for name, attempt in attempts.items()}


def _message(attempt: Callable[[], Any]) -> str:
    try:
        return f"no error: {attempt()}"
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
