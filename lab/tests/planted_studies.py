"""Results of studies with planted scores, for tests of judges, tables and figures."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from harmax_lab.algorithmic.training import RunCell, task_of
from harmax_lab.kit.store import CellResult


def planted(
    cells: Iterable[Any], score: Callable[[Any], float], *, spread: float = 0.01, **metrics: Any
) -> dict[Any, CellResult]:
    """Give each cell a score in everything, a little noise of its own, and other metrics: values, or made of a cell."""

    def own(cell: Any) -> dict[str, Any]:
        return {name: value(cell) if callable(value) else value for name, value in metrics.items()}

    return {cell: result(cell, score(cell), spread=spread, **own(cell)) for cell in cells}


def result(cell: RunCell, score: float, *, spread: float = 0.01, **metrics: Any) -> CellResult:
    """Return what a study stores of one run."""
    generator = np.random.default_rng(list(cell.name.encode()))
    noisy = score + spread * generator.uniform(-1, 1)
    tokens = len(task_of(cell).shown)
    return CellResult(
        curves={"epoch": np.arange(3), "train_accuracy": np.ones(3), "test_accuracy": np.full(3, noisy)},
        arrays={"embedding": generator.normal(size=(1, tokens, 16)).astype(np.float32), "snapshot_epoch": np.ones(1)},
        metrics={
            "structure": noisy,
            "variance": noisy,
            "accuracy": noisy,
            "plane": noisy,
            "train_epoch": 10,
            "test_epoch": int(1000 * (1 - score)) if score > 0.5 else None,
            "diverged_at": None,
            "learning_rate": 2e-3,  # inside the grid of the search, as the weight decay is
            "weight_decay": 0.01,
            **metrics,
        },
    )
