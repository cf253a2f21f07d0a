"""What the tests of this folder start once: it imports everything, then forks two ranks, and four.

    python tests/parallel/worker.py FOLDER WHAT

Each group of ranks writes what it found to FOLDER, for the tests to compare with one process.
"""

import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from leaving import leave
from parallel.cases import CASES, LARGE, RANKS, TABLES, Case, Problem, make, solve, tabulate
from parallel.heads import compare_heads
from parallel.measure import measured
from parallel.mistakes import make_mistakes

Work = Callable[[DeviceMesh], dict[str, Any]]


def distributed(problem: Problem, mesh: DeviceMesh) -> Problem:
    """Divide the classes of a problem among the ranks of a mesh."""

    def divided(tensor: Tensor | None) -> Any:
        return None if tensor is None else distribute_tensor(tensor.detach(), mesh, [Shard(0)]).requires_grad_()

    x_BD = DTensor.from_local(problem.x_BD, mesh, [Replicate()], run_check=False)
    return problem._replace(x_BD=x_BD, w_VD=divided(problem.w_VD), prior_V=divided(problem.prior_V))


def whole(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in found.items()}


def compute_losses(mesh: DeviceMesh) -> dict[str, Any]:
    return {name: whole(solve(case, distributed(make(case), mesh))) for name, case in CASES.items()}


def compute_tables(mesh: DeviceMesh) -> dict[str, Any]:
    return {
        name: whole(tabulate(case, distributed(make(case), mesh))) for name, case in CASES.items() if name in TABLES
    }


def compute_large(mesh: DeviceMesh) -> dict[str, Any]:
    return {name: compute_and_measure(case, mesh) for name, case in LARGE.items()}


def compute_and_measure(case: Case, mesh: DeviceMesh) -> dict[str, Any]:
    problem = distributed(make(case), mesh)
    found, peak, largest = measured(lambda: solve(case, problem))
    return {**whole(found), "memory": {"peak": peak, "largest": largest}}


WORK: dict[str, tuple[Work, ...]] = {
    "small": (compute_losses, compute_tables, compare_heads, make_mistakes),
    "large": (compute_large,),
}


def main(rank: int, ranks: int, folder: Path, what: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    store = dist.FileStore(str(folder / f"meeting-{ranks}"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (ranks,))
    for work in WORK[what]:
        torch.save(work(mesh), folder / f"{work.__name__}-{ranks}-{rank}.pt")
    leave()


if __name__ == "__main__":
    for count in RANKS:
        arguments = (count, Path(sys.argv[1]), sys.argv[2])
        mp.start_processes(main, arguments, nprocs=count, start_method="fork")
