"""Principal components of a cloud of points, and their share of the variance."""

# K points, D features, R = min(K, D) components

from typing import Any, NamedTuple

import numpy as np

from harmax.analysis.arrays import centered, checked_points


class PCA(NamedTuple):
    """The principal axes of a cloud of points, widest first."""

    mean: np.ndarray
    """(D,)"""
    components: np.ndarray
    """(R, D), orthonormal rows; the largest entry of each row in absolute value is positive."""
    variances: np.ndarray
    """(R,), with K - 1 in the denominator."""
    ratio: np.ndarray
    """(R,), the variances as shares of their sum; zeros if all points are equal."""


def pca(points: Any) -> PCA:
    r"""Find the principal components of points.

    .. math:: X - \bar x = U S V^T, \qquad \lambda_r = S_r^2 / (K - 1)

    Args:
        points: (K, D), finite, K at least 2.

    >>> found = pca([[0.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
    >>> found.components[0], found.variances
    (array([0., 1.]), array([4., 0.]))
    """
    x_KD = checked_points(points)
    _, singular, components = np.linalg.svd(centered(x_KD), full_matrices=False)
    greatest = np.abs(components).argmax(1)[:, None]
    components = components * np.where(np.take_along_axis(components, greatest, 1) < 0, -1.0, 1.0)
    # Values are divided before they are squared, so that huge and tiny points neither overflow nor vanish.
    relative = np.square(singular / singular[0]) if singular[0] > 0 else np.zeros_like(singular)
    ratio = relative / max(relative.sum(), 1.0)
    return PCA(x_KD.mean(0), components, np.square(singular) / (len(x_KD) - 1), ratio)


def explained_variance(points: Any, components: int = 2) -> float:
    r"""Return the share of the variance in the first components, 0 to 1.

    .. math:: \sum_{r \le k} \lambda_r / \sum_r \lambda_r

    It is 1 if there are no further components, and for equal points.

    Args:
        points: (K, D).
        components: k.

    >>> round(explained_variance([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [1.0, 1.0, 1.0]]), 6)
    0.666667
    """
    count = _count(components)
    left = pca(points).ratio[count:].sum()
    return float(np.clip(1 - left, 0, 1))


def participation_ratio(points: Any) -> float:
    r"""Return the number of directions that the points use: 1 for a line, D for a ball, 0 for equal points.

    .. math:: (\sum_r \lambda_r)^2 / \sum_r \lambda_r^2

    Args:
        points: (K, D).

    >>> round(participation_ratio([[1.0, 0], [-1.0, 0], [0, 1.0], [0, -1.0]]), 6)
    2.0
    """
    ratio = pca(points).ratio
    return float(1 / np.square(ratio).sum()) if ratio.any() else 0.0


def project(points: Any, components: int = 2, *, fitted: PCA | None = None) -> np.ndarray:
    """Return the coordinates of points along the first components, (K, components).

    Coordinates beyond the number of dimensions are zeros, so that a plane always has two.

    Args:
        points: (K, D).
        components: number of components.
        fitted: axes of other points, for example of the last snapshot of a film; None means the axes of these points.

    >>> project([[0.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
    array([[-2.,  0.],
           [ 0.,  0.],
           [ 2.,  0.]])
    """
    x_KD, count = checked_points(points, least=2 if fitted is None else 1), _count(components)
    axes = pca(x_KD) if fitted is None else fitted
    if axes.mean.shape != x_KD.shape[1:]:
        raise ValueError(
            f"`points` must have the {len(axes.mean)} features of `fitted`, got {x_KD.shape[1]}; fit the axes to "
            "points of the same space."
        )
    shifted = centered(x_KD) if fitted is None else x_KD - axes.mean
    found = shifted @ axes.components[:count].T
    return np.pad(found, ((0, 0), (0, count - found.shape[1]))) + 0.0  # no negative zeros


def seen(points: Any, components: int | None, least: int = 2) -> np.ndarray:
    """Return centered points for a measure: along the first components, or in the whole space (None)."""
    x_KD = checked_points(points, least)
    return centered(x_KD) if components is None else project(x_KD, components)


def _count(components: int) -> int:
    if not isinstance(components, int | np.integer) or components < 1:
        raise ValueError(f"`components` must be a whole number of at least 1, got {components!r}; 2 gives a plane.")
    return int(components)
