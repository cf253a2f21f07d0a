"""Shared basics of the measures: checked arrays, centered points, distances, ranks."""

# K points, D features

from collections.abc import Sequence
from typing import Any

import numpy as np


def checked_points(points: Any, least: int = 2) -> np.ndarray:
    """Return points as a finite float64 array (K, D); refuse other shapes, fewer than `least`, NaN and infinity."""
    found = np.asarray(points, dtype=np.float64)
    if found.ndim != 2 or found.shape[1] == 0:
        raise ValueError(f"`points` must have shape (points, features), got {found.shape}; pass one row per point.")
    if len(found) < least:
        raise ValueError(f"`points` must hold at least {least} points, got {len(found)}; pass more.")
    broken = int((~np.isfinite(found)).any(1).sum())
    if broken:
        raise ValueError(
            f"`points` must be finite, got NaN or infinity in {broken} of {len(found)} rows; leave diverged runs out."
        )
    return found


def checked_labels(name: str, labels: Any, count: int) -> np.ndarray:
    """Return one whole number per point, (K,), as int64."""
    found = np.asarray(labels)
    if found.shape != (count,):
        raise ValueError(
            f"`{name}` must have shape ({count},), one number per point, got {found.shape}; pass them in the order of "
            "the points."
        )
    if not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"`{name}` must be whole numbers, got {found.dtype}; convert them to int.")
    return found.astype(np.int64)


def checked_classes(name: str, labels: Any, count: int) -> np.ndarray:
    """Return labels as 0, 1, ... without gaps; refuse fewer than two classes, and as many classes as points."""
    _, classes = np.unique(np.asarray(labels), return_inverse=True)
    found = checked_labels(name, classes.reshape(np.shape(labels)), count)
    kinds = int(found.max()) + 1
    if not 2 <= kinds < count:
        raise ValueError(
            f"`{name}` must divide {count} points into 2 to {count - 1} classes, got {kinds}; pass other labels."
        )
    return found


def centered(points: np.ndarray) -> np.ndarray:
    """Subtract the mean; points that differ only by rounding become exactly zero.

    >>> centered(np.full((3, 1), 0.1))
    array([[0.],
           [0.],
           [0.]])
    """
    shifted = points - points.mean(0)
    rounding = len(points) * np.finfo(np.float64).eps * np.abs(points).max()
    return np.zeros_like(shifted) if np.abs(shifted).max() <= rounding else shifted


def distances(points: np.ndarray) -> np.ndarray:
    """Return all Euclidean distances, (K, K), computed from differences: equal points have a distance of exactly 0.

    >>> distances(np.array([[0.0, 0.0], [3.0, 4.0]]))
    array([[0., 5.],
           [5., 0.]])
    """
    squares = np.zeros((len(points), len(points)))
    for column in points.T:
        squares += np.square(column[:, None] - column)
    return np.sqrt(squares)


def ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return ranks, counted from 1; equal values get the mean of their ranks.

    >>> ranks([10.0, 30.0, 10.0, float("inf")])
    array([1.5, 3. , 1.5, 4. ])
    """
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[which]


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's correlation of two vectors, or 0 if one of them is constant.

    >>> round(rank_correlation(np.array([1, 2, 3]), np.array([1, 10, 100])), 6)
    1.0
    """
    one, two = (found - found.mean() for found in (ranks(first), ranks(second)))
    norms = np.sqrt((one @ one) * (two @ two))
    return float(np.clip(one @ two / norms, -1, 1)) if norms > 0 else 0.0
