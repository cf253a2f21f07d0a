"""The shapes that the paper's sentences name, as shares of which 1 is all of it, and what chance gives.

They are stricter than the fits of `harmax.analysis`: a circle is no ellipse, and a lattice is no line.
"""

# K shown tokens, D features, R components in use, F frequencies, G groups

from collections.abc import Callable
from typing import Any

import numpy as np

from harmax.analysis import lattice_fit, project, tree_distances
from harmax.analysis.arrays import distances, ranks
from harmax.analysis.pca import seen
from harmax_lab.algorithmic import measures
from harmax_lab.kit.judges import SIGNIFICANT
from harmax_lab.tasks import Structure

FLAT = 1e-9  # a component that is narrower than the widest by this factor has no width
NOTHING: dict[str, dict[str, float]] = {
    "lattice": {"lattice residual": 1.0, "lattice, both directions": 0.0},
    "circle": {"circle": 0.0, "circle (plane)": 0.0},
    "classes": {"between classes": 0.0, "classes by chance": 1.0},
    "tree": {"tower": 0.0, "tree by chance": 1.0},
    "group": {"coset silhouette (plane)": 0.0, "clusters": 0.0},
}
"""By kind of structure, what a diverged run shows: the measures that claims are judged by, of no structure."""


def shapes(structure: Structure, embedding_KD: np.ndarray) -> dict[str, float]:
    """Return the measures of `NOTHING` that `measures.measure` does not have."""
    values = structure.values
    if structure.kind == "lattice":
        return {"lattice, both directions": lattice_of_equal_widths(embedding_KD, values)}
    if structure.kind == "circle":
        return {
            "circle": circle_share(embedding_KD, values, None),
            "circle (plane)": circle_share(embedding_KD, values),
        }
    if structure.kind == "classes":
        return {"classes by chance": classes_by_chance(embedding_KD, values)}
    if structure.kind == "tree":
        assert structure.parents is not None
        by_chance = tree_by_chance(embedding_KD, values, structure.parents)
        return {"tower": tower_share(embedding_KD, values), "tree by chance": by_chance}
    best = measures.cosets_of(structure, embedding_KD)
    return {"clusters": best.score if best.p_value < SIGNIFICANT else 0.0}


def circle_share(points: Any, residues: np.ndarray, components: int | None = 2) -> float:
    r"""Return the share of the variance that a circle explains on which the residues follow one another in order.

    .. math:: \max_k \frac{(s_1 + s_2)^2}{\|X\|^2 \|Y_k\|^2},
        \qquad Y_k = (\cos \tfrac{2 \pi k r}{p}, \sin \tfrac{2 \pi k r}{p})

    Here s are the singular values of X^T Y_k (Procrustes), so that both half axes of the circle are equal.

    Args:
        points: (K, D).
        residues: r, each of 0 .. p - 1 once, (K,).
        components: number of principal components to use; None means the whole space.

    >>> angle = 2 * np.pi * 2 * np.arange(5) / 5
    >>> round(circle_share(np.stack([np.cos(angle), np.sin(angle)], 1), np.arange(5)), 6)
    1.0
    >>> round(circle_share(np.stack([np.cos(angle), 0.5 * np.sin(angle)], 1), np.arange(5)), 6)
    0.9
    """
    x_KR, count = seen(points, components), len(residues)
    angle_FK = 2 * np.pi * np.outer(np.arange(1, (count + 1) // 2), residues) / count
    y_FK2 = np.stack([np.cos(angle_FK), np.sin(angle_FK)], -1)
    singular_F2 = np.linalg.svd(x_KR.T @ y_FK2, compute_uv=False)
    total = np.square(x_KR).sum() * count
    return float(np.square(singular_F2.sum(-1)).max() / total) if total > 0 else 0.0


def lattice_of_equal_widths(points: Any, coordinates: np.ndarray) -> float:
    """Return how much of two principal components a lattice explains when both are scaled to the same width.

    A lattice that is squeezed into a line explains nearly all of the variance, yet it has one direction only.

    >>> grid = np.array([[x, y] for x in range(3) for y in range(3)])
    >>> round(lattice_of_equal_widths(grid * [1.0, 0.1], grid), 6)
    1.0
    >>> bow = np.stack([grid[:, 0] + grid[:, 1], 0.1 * (grid[:, 0] - 1.0) ** 2], 1)
    >>> round(lattice_of_equal_widths(bow, grid), 6)
    0.5
    """
    plane_K2 = project(points)
    width_2 = plane_K2.std(0)
    if width_2.min() <= FLAT * width_2.max():
        return 0.0
    return 1 - lattice_fit(plane_K2 / width_2, coordinates).residual


def tower_share(points: Any, depth: np.ndarray) -> float:
    """Return how far the generations are parallel rows in order: the share of the variance of depth that is linear in
    the place in the plane of two principal components.

    >>> tower_share([[0.0, 0], [1, 1], [1, -1], [2, 3], [2, -3]], np.array([0, 1, 1, 2, 2])) > 0.999
    True
    """
    plane_K2, depth_K = project(points), depth - depth.mean()
    width_2 = np.linalg.norm(plane_K2, axis=0)
    wide = width_2 > FLAT * width_2.max()
    axes = plane_K2[:, wide] / width_2[wide]
    return float(np.square(axes.T @ depth_K).sum() / np.square(depth_K).sum())


def classes_by_chance(points: Any, classes: np.ndarray) -> float:
    """Return the p-value of the share of the variance between classes, against the points in random order."""
    x_KD = seen(points, None)
    member_GK = (np.unique(classes)[:, None] == classes).astype(float)
    member_GK /= np.sqrt(member_GK.sum(1, keepdims=True))
    return _p_value(lambda order: float(np.square(member_GK @ x_KD[order]).sum()), len(x_KD))


def tree_by_chance(points: Any, depth: np.ndarray, parents: np.ndarray) -> float:
    """Return the p-value of the rank correlation of distances with steps in the tree, likewise."""
    far_KK, steps_KK = (_ranked(found) for found in (distances(seen(points, None)), tree_distances(depth, parents)))
    return _p_value(lambda order: float((far_KK[np.ix_(order, order)] * steps_KK).sum()), len(far_KK))


def _ranked(distances_KK: np.ndarray) -> np.ndarray:
    """Return the centered ranks of the distances of pairs, symmetric, with zeros for a point and itself."""
    pairs = np.triu_indices(len(distances_KK), 1)
    ranked, found = ranks(distances_KK[pairs]), np.zeros_like(distances_KK)
    found[pairs] = ranked - ranked.mean()
    return found + found.T


def _p_value(score: Callable[[np.ndarray], float], count: int) -> float:
    """Return how often random orders of the points score as high: (1 + times) / (1 + draws)."""
    draws, generator, observed = measures.DRAWS, np.random.default_rng(0), score(np.arange(count))
    limit = observed - 1e-12 * abs(observed)  # the same score up to rounding
    return (1 + sum(score(generator.permutation(count)) >= limit for _ in range(draws))) / (1 + draws)
