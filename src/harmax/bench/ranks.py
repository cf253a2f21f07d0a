"""The memory of each process where several divide the classes of the loss among themselves, beside one that has all.

Shape suffixes: B tokens, D features, V classes.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from harmax.bench.loss import Shape, operands
from harmax.bench.measure import peak_mib
from harmax.bench.options import BenchOptions
from harmax.functional import harmonic_loss
from harmax.sharding import local_part, whole

RANKS = (1, 2, 4)
SHAPE, SMOKE = Shape(1024, 768, 50257), Shape(64, 32, 1001)
"""Numbers of classes that no number of processes divides."""


def rows(options: BenchOptions) -> Iterator[dict[str, Any]]:
    """Memory per process of the loss, with the classes divided among 1, 2 and 4 processes.

    A step is forward and backward. Its loss and gradients are compared with those of one process.
    """
    if options.device != "cpu":
        raise ValueError(f"`device` must be cpu for the benchmark ranks, got {options.device!r}; leave it out.")
    shape = SMOKE if options.smoke else SHAPE
    with tempfile.TemporaryDirectory() as folder:
        for ranks in RANKS[:2] if options.smoke else RANKS:
            mp.start_processes(_measure, (ranks, shape, Path(folder)), nprocs=ranks)
            found = [json.loads((Path(folder) / f"{ranks}-{rank}.json").read_text()) for rank in range(ranks)]
            yield {
                "ranks": ranks,
                **shape._asdict(),
                "dtype": "float32",
                "device": options.device,
                **{name: round(max(one[name] for one in found), 2) for name in found[0] if name != "difference"},
                "difference": max(one["difference"] for one in found),
                "torch": torch.__version__,
                "cpus": os.cpu_count(),
            }


def _measure(rank: int, ranks: int, shape: Shape, folder: Path) -> None:
    """Write what one process needs, and how far its numbers are from those of one process."""
    torch.set_num_threads(1)
    x_BD, w_VD, target_B = operands(shape, "cpu")
    if ranks > 1:
        store = dist.FileStore(str(folder / f"meeting-{ranks}"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        x_BD, w_VD = _divided(x_BD, w_VD, ranks)

    def step() -> list[Tensor]:
        loss = harmonic_loss(x_BD, w_VD, target_B, impl="auto" if ranks > 1 else "chunked")
        return [loss.detach(), *torch.autograd.grad(loss, (x_BD, w_VD))]

    own_mib = [local_part(tensor).nbytes / 2**20 for tensor in (x_BD, w_VD)]
    found = {
        "centers_mib": own_mib[1],
        "gradients_mib": sum(own_mib),
        "peak_mib": peak_mib(step, "cpu") - sum(own_mib),
        "difference": _difference([whole(tensor) for tensor in step()], folder / "one.pt"),
    }
    (folder / f"{ranks}-{rank}.json").write_text(json.dumps(found))
    if ranks > 1:
        dist.destroy_process_group()


def _divided(x_BD: Tensor, w_VD: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (ranks,))
    placed = zip((x_BD, w_VD), (Replicate(), Shard(0)), strict=True)
    x, w = (distribute_tensor(tensor.detach(), mesh, [placement]).requires_grad_() for tensor, placement in placed)
    return x, w


def _difference(found: list[Tensor], path: Path) -> float:
    """Return the largest difference to what one process has stored, in parts of the largest number of each tensor."""
    if not path.exists():
        torch.save(found, path)
    pairs = zip(found, torch.load(path, weights_only=True), strict=True)
    return max(((got - want).abs().max() / want.abs().max()).item() for got, want in pairs)
