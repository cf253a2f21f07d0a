"""Runs of the algorithmic experiments with a planted answer: an embedding of the task's structure, and noise."""

# K shown tokens, D = 16 features

from collections.abc import Callable, Iterable

import numpy as np

from harmax.analysis import coset_partitions, tree_distances
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.store import CellResult
from harmax_lab.tasks import Structure, find_task

WIDTH = 16


def ideal(structure: Structure, generator: np.random.Generator, subgroup: str = "Klein four V4") -> np.ndarray:
    """Return a perfect embedding (K, D) of a structure, turned at random: of variance 1 per token.

    `subgroup` is the kind of subgroup by whose cosets permutations cluster; "tower" draws a tree as a tower.
    """
    values = structure.values
    if structure.kind == "lattice":
        points = values.astype(float)
    elif structure.kind == "circle":
        angle = 2 * np.pi * 7 * values / len(values)
        points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    elif structure.kind == "classes":
        points = np.eye(int(values.max()) + 1)[values]
    elif subgroup == "tower":
        across = np.concatenate([np.linspace(-1, 1, count) for count in np.unique(values, return_counts=True)[1]])
        points = np.stack([values.astype(float), across * (1 + values)], axis=1)
    elif structure.kind == "tree":
        steps = tree_distances(values, structure.parents)
        centering = np.eye(len(steps)) - 1 / len(steps)
        weights, axes = np.linalg.eigh(-centering @ steps @ centering / 2)  # square roots of steps are Euclidean
        points = axes[:, -10:] * np.sqrt(weights[-10:])
    else:
        labels = next(found.labels for found in coset_partitions(4) if found.subgroup.kind == subgroup)
        # In the plane, so that two principal components can show it.
        angle = 2 * np.pi * labels / (labels.max() + 1)
        points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points = points - points.mean(0)
    turn = np.linalg.qr(generator.normal(size=(WIDTH, WIDTH)))[0][: points.shape[1]]
    return points @ turn / np.sqrt(np.square(points).sum(1).mean())


def planted(
    task: str,
    protocol: str,
    *,
    noise: float,
    seed: int,
    epochs: int = 40,
    subgroup: str = "Klein four V4",
    learned: float = 1.0,
) -> CellResult:
    """Return the result of a run whose tokens move from noise to their structure.

    `noise` is what is left of it, and `learned` the last accuracy.
    """
    generator = np.random.default_rng([seed, int(1000 * noise)])
    structure = find_task(task, protocol=protocol).structure
    end = ideal(structure, generator, subgroup)
    start = generator.normal(size=end.shape) / WIDTH**0.5
    end = end + noise * generator.normal(size=end.shape) / WIDTH**0.5
    share = np.linspace(0, 1, 5)[:, None, None]
    rise = learned / (1 + np.exp(-(np.arange(epochs) - 0.4 * epochs) / 2))
    accuracy = {"train_accuracy": rise, "test_accuracy": rise**2}
    loss = {"train_loss": 1 - 0.9 * rise, "test_loss": 1.1 - 0.9 * rise}
    return CellResult(
        {name: curve.astype(np.float32) for name, curve in (accuracy | loss).items()},
        {
            "embedding": ((1 - share) * start + share * end).astype(np.float32),
            "snapshot_epoch": np.linspace(0, epochs, 5).astype(np.int64),
        },
        {"diverged_at": None, "train_rows": 800, "test_rows": 200, "leak": 0.0, "epochs": epochs, "waste": 0.1},
    )


def diverged(result: CellResult) -> CellResult:
    """Return the same run, broken at epoch 3."""
    embedding = result.arrays["embedding"].copy()
    embedding[1:] = np.nan
    return CellResult(result.curves, {**result.arrays, "embedding": embedding}, {**result.metrics, "diverged_at": 3})


def plant(cells: Iterable[RunCell], noise: Callable[[RunCell], float]) -> dict[RunCell, CellResult]:
    """Plant every cell, with the noise that it is said to have."""
    return {cell: planted(cell.task, cell.protocol, noise=noise(cell), seed=cell.seed) for cell in cells}
