"""What a rounded gradient does to harmonic MLPs of large exponents (lab/results/unexplained.md).

    python tools/rounding.py                                      n = 4 and 8, two tasks, 4 seeds: 20 minutes
    python tools/rounding.py --task lattice --n 4 --seeds 1       one task: some minutes
    python tools/rounding.py --epochs 20                          only that it works

Each row is one training of the authors' MLP with n on the squared distance. "usual" is cross-entropy in float32, whose
gradient at the true class, p - 1, is rounded to a multiple of 6e-8. "float64" is the same in float64. "exact" is the
laboratory's cross-entropy that loses no digits, in float32.
"""

import argparse
from functools import partial

import numpy as np
import torch

from harmax.analysis import explained_variance
from harmax_lab.algorithmic.anchors import EPOCHS, SEEDS
from harmax_lab.algorithmic.protocols import settings
from harmax_lab.algorithmic.training import RunCell, split_of, task_of
from harmax_lab.ensemble import Ensemble, Plan, fit
from harmax_lab.tasks import PROTOCOLS

LOSSES = {"usual": (torch.float32, False), "float64": (torch.float64, False), "exact": (torch.float32, True)}
TASKS = ("lattice", "modular_addition")


def train(
    task: str, loss: str, protocol: str, exponents: list[float], seeds: tuple[int, ...], epochs: int
) -> np.ndarray:
    """Return the explained variance of two components, (exponents, seeds)."""
    cells = [RunCell(protocol, task, "mlp", "harmonic", 0.8, seed) for seed in seeds]
    how = settings(protocol, "mlp", "harmonic", epochs=epochs)
    dtype, exact = LOSSES[loss]
    runs = [(cell, exponent) for exponent in exponents for cell in cells]
    builds = [partial(how.build, task_of(cell), "mlp", "harmonic") for cell, _ in runs]
    plan = Plan(epochs=epochs, exponent=[one for _, one in runs], exact=exact, snapshots=[epochs], evaluate=False)
    ensemble = Ensemble(builds, [cell.seed for cell, _ in runs], dtype=dtype)
    history = fit(ensemble, [split_of(cell) for cell, _ in runs], plan)
    found = [
        explained_variance(last[task_of(cell).shown])
        for last, (cell, _) in zip(history.snapshots[:, -1], runs, strict=True)
    ]
    return np.array(found).reshape(len(exponents), len(seeds))


def main() -> None:
    """Train, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, action="append", help="may be repeated; left out: both")
    parser.add_argument("--loss", choices=LOSSES, action="append", help="may be repeated; left out: all")
    parser.add_argument("--n", type=float, nargs="+", default=[4, 8], help="powers of the squared distance")
    parser.add_argument("--seeds", type=int, default=4, help="how many of the authors' seeds")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--protocol", choices=PROTOCOLS, default="authors")
    given = parser.parse_args()
    seeds = SEEDS[: given.seeds]
    print(f"| task | n | loss | {' | '.join(f'seed {seed}' for seed in seeds)} |\n|{'---|' * (3 + len(seeds))}")
    for task in given.task or TASKS:
        for loss in given.loss or LOSSES:
            found = train(task, loss, given.protocol, [2 * n for n in given.n], seeds, given.epochs)
            for n, row in zip(given.n, found, strict=True):
                print(f"| {task} | {n:g} | {loss} | {' | '.join(f'{100 * one:.2f}' for one in row)} |", flush=True)


if __name__ == "__main__":
    main()
