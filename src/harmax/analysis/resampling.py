"""Bootstrap intervals over the images of one test set. Images are drawn with replacement; the model does not change."""

# N images

from collections.abc import Iterator

import numpy as np

from harmax.analysis.statistics import Interval


def resampled_counts(count: int, draws: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield, draw by draw, how often each of N images is among N draws with replacement, (N,).

    With counts instead of indices, a sum over images is one product, and sorting is done once.

    >>> [int(counts.sum()) for counts in resampled_counts(5, 3, np.random.default_rng(0))]
    [5, 5, 5]
    """
    for _ in range(draws):
        yield np.bincount(generator.integers(count, size=count), minlength=count)


def check_draws(draws: int, level: float) -> None:
    """Refuse fewer than one draw, and a level that is not between 0 and 1."""
    if draws < 1:
        raise ValueError(f"`draws` must be at least 1, got {draws}; 1000 is usual.")
    if not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, got {level}; 0.95 is usual.")


def percentile_interval(estimate: float, drawn: np.ndarray, level: float) -> Interval:
    """Return an estimate with the interval that contains the middle `level` of the draws.

    >>> percentile_interval(2.0, np.arange(101.0), 0.9)
    Interval(estimate=2.0, low=5.0, high=95.0)
    """
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], method="nearest")
    return Interval(float(estimate), float(low), float(high))
