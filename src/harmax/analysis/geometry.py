"""How well points form the shape of a task: a circle, a lattice, a family tree, classes.

No measure changes when the points are rotated, moved or scaled, except that radius and axes scale with the points. By
default a measure uses the first two principal components, as the paper's figures do. `components=None` uses the whole
space, including everything outside the plane. Equal points have no shape: nothing is explained.
"""

# K points, D features, R components in use, F frequencies, G classes

from typing import Any, NamedTuple

import numpy as np

from harmax.analysis.arrays import (
    checked_classes,
    checked_labels,
    distances,
    rank_correlation,
)
from harmax.analysis.clusters import silhouette
from harmax.analysis.pca import pca, project, seen

LEAST_GENERATION = 5  # nodes; two or three nodes are always close to a line


class CircleFit(NamedTuple):
    """The circle through points that represent the residues of a modulus."""

    frequency: int
    """Number of turns around the circle while the residues go from 0 to the modulus."""
    radius: float
    """Root mean square of the two half axes of the fitted curve, in the unit of the points."""
    residual: float
    """Share of the variance that this frequency does not explain: 0 for a circle or ellipse, 1 for equal points."""
    roundness: float
    """Standard deviation divided by mean of the points' distances from their center, in the plane of two principal
    components: 0 for a circle, infinity for equal points."""
    spectrum: np.ndarray
    """(F,), share of the variance that each frequency alone explains, starting with frequency 1."""


def circle_fit(points: Any, residues: Any, modulus: int, *, components: int | None = 2) -> CircleFit:
    r"""Find the frequency k that explains most of the points as a function of their residues.

    .. math:: x_r \approx c + a \cos(2 \pi k r / p) + b \sin(2 \pi k r / p), \qquad k = 1, \dots, (p - 1) / 2

    The fit is by least squares. In random points each frequency explains 2 / (K - 1) on average, and the best one
    clearly more.

    Args:
        points: (K, D), K at least 4.
        residues: r, (K,), in 0 .. p - 1.
        modulus: p, at least 3.
        components: number of principal components to use; None means the whole space.

    >>> angle = 2 * np.pi * 3 * np.arange(7) / 7
    >>> found = circle_fit(np.stack([np.cos(angle), np.sin(angle)], 1), np.arange(7), 7)
    >>> found.frequency, round(found.radius, 6), round(found.residual, 6), round(found.roundness, 6)
    (3, 1.0, 0.0, 0.0)
    """
    x_KR = seen(points, components, least=4)
    if modulus < 3:
        raise ValueError(f"`modulus` must be at least 3, got {modulus}; fewer residues form no circle.")
    r_K = checked_labels("residues", residues, len(x_KR))
    if r_K.min() < 0 or r_K.max() >= modulus:
        raise ValueError(
            f"`residues` must be 0 to {modulus - 1}, got {r_K.min()} to {r_K.max()}; pass them modulo {modulus}."
        )
    angle_FK = 2 * np.pi * np.outer(np.arange(1, (modulus + 1) // 2), r_K) / modulus
    waves_FK2 = np.stack([np.cos(angle_FK), np.sin(angle_FK)], -1)
    waves_FK2 -= waves_FK2.mean(1, keepdims=True)
    coefficients_F2R = np.linalg.pinv(waves_FK2, rcond=1e-10) @ x_KR
    spectrum = np.array([1 - _left(x_KR, fitted_KR) for fitted_KR in waves_FK2 @ coefficients_F2R])
    best = int(spectrum.argmax())
    radius = np.sqrt(np.square(coefficients_F2R[best]).sum() / 2)
    return CircleFit(best + 1, float(radius), float(1 - spectrum[best]), roundness(points), spectrum)


def roundness(points: Any) -> float:
    """Return standard deviation divided by mean of the distances from the center, in the plane of two components.

    Args:
        points: (K, D).

    >>> round(roundness([[1.0, 0, 0], [-1.0, 0, 0], [0, 3.0, 0], [0, -3.0, 0]]), 6)
    0.5
    """
    distance = np.linalg.norm(project(points), axis=1)
    return float(distance.std() / distance.mean()) if distance.any() else np.inf


class LatticeFit(NamedTuple):
    """The flat grid through points with two coordinates."""

    residual: float
    """Share of the variance that the grid does not explain; 1 for equal points."""
    angle: float
    """Angle between the two axes, in degrees: 90 for a grid of rectangles, NaN if an axis has no length."""
    length_ratio: float
    """Length of the shorter axis divided by the longer one, 0 to 1; NaN if both have no length."""
    axes: np.ndarray
    """(2, R), the vector of one step along each coordinate."""


def lattice_fit(points: Any, coordinates: Any, *, components: int | None = 2) -> LatticeFit:
    r"""Fit the affine map from coordinates to points by least squares.

    .. math:: x \approx c + u A, \qquad \mathrm{residual} = \sum \|x - c - u A\|^2 / \sum \|x - \bar x\|^2

    Args:
        points: x, (K, D), K at least 4.
        coordinates: u, (K, 2), not all on a line.
        components: number of principal components to use; None means the whole space.

    >>> grid = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> found = lattice_fit(grid @ np.array([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0]]), grid)
    >>> round(found.residual, 6), round(found.angle, 6), round(found.length_ratio, 6)
    (0.0, 45.0, 0.707107)
    """
    x_KR = seen(points, components, least=4)
    u_K2 = np.asarray(coordinates, dtype=np.float64)
    if u_K2.shape != (len(x_KR), 2) or not np.isfinite(u_K2).all():
        raise ValueError(
            f"`coordinates` must be finite and have shape ({len(x_KR)}, 2), got {u_K2.shape}; pass one row per point."
        )
    u_K2 = u_K2 - u_K2.mean(0)
    if np.linalg.matrix_rank(u_K2) < 2:
        raise ValueError("`coordinates` must span a plane, got points on a line; pass both coordinates.")
    axes = np.linalg.lstsq(u_K2, x_KR, rcond=None)[0]
    lengths = np.linalg.norm(axes, axis=1)
    ratio = lengths.min() / lengths.max() if lengths.any() else np.nan
    # An axis of rounding errors has no direction.
    cosine = (axes[0] / lengths[0]) @ (axes[1] / lengths[1]) if ratio > 1e-9 else np.nan
    angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    return LatticeFit(_left(x_KR, u_K2 @ axes), float(angle), float(ratio), axes)


class TreeFit(NamedTuple):
    """How well points show the family tree of their nodes. Equal points give 0 or the value of chance."""

    generations: float
    """Share of the variance between generations, 0 to 1; (generations - 1) / (nodes - 1) by chance."""
    along_axis: float
    """Absolute rank correlation of depth and first principal component: high if generations form rows."""
    outward: float
    """Rank correlation of depth and distance from the mean of all nodes: high for generations in rings, root inside."""
    siblings: float
    """Among nodes with a sibling, the share whose nearest neighbor in the same generation is a sibling."""
    siblings_by_chance: float
    """The same for nodes in random places."""
    distance_correlation: float
    """Rank correlation, over pairs of nodes, of the distance between their points and their distance in the tree."""
    line: float
    """How close the nodes of a generation are to a line, as the paper's authors measure it: the share of the first
    component in the variance, in the plane of two components. It is the mean over generations of 5 or more nodes, 0.5
    to 1, and NaN if there is none."""


def tree_fit(points: Any, depth: Any, parent: Any, *, components: int | None = 2) -> TreeFit:
    """Measure how well points show a family tree.

    Rank correlations are Spearman's. Equally near neighbors count in equal shares. Pairs of nodes without a path
    between them are left out.

    Args:
        points: one point per node, (K, D).
        depth: generation of each node, (K,). The depth of a child is the depth of its parent plus 1.
        parent: index of each node's parent among the nodes, (K,); -1 means none.
        components: number of principal components to use; None means the whole space.

    >>> found = tree_fit([[0.0, 0], [-2, 1], [2, 1], [-3, 2], [-2, 2], [2, 2], [3, 2]],
    ...                  depth=[0, 1, 1, 2, 2, 2, 2], parent=[-1, 0, 0, 1, 1, 2, 2])
    >>> found.siblings, round(found.siblings_by_chance, 3), found.distance_correlation > 0.5
    (1.0, 0.556, True)
    """
    x_KR = seen(points, components)
    depth_K = checked_labels("depth", depth, len(x_KR))
    parent_K = _checked_parents(parent, depth_K)
    d_KK, steps_KK = distances(x_KR), tree_distances(depth_K, parent_K)
    sibling_KK = (parent_K[:, None] == parent_K) & (parent_K >= 0) & ~np.eye(len(x_KR), dtype=bool)
    same_depth_KK = depth_K[:, None] == depth_K
    with_sibling = sibling_KK.any(1)
    pairs = np.triu(np.isfinite(steps_KK), 1)
    return TreeFit(
        generations=_between(x_KR, np.unique(depth_K, return_inverse=True)[1]),
        along_axis=abs(rank_correlation(depth_K, _settled(project(points, 1)[:, 0]))),
        outward=rank_correlation(depth_K, _settled(np.linalg.norm(x_KR, axis=1))),
        siblings=_nearest_share(d_KK, same_depth_KK, sibling_KK, with_sibling),
        siblings_by_chance=_nearest_share(np.zeros_like(d_KK), same_depth_KK, sibling_KK, with_sibling),
        distance_correlation=rank_correlation(_settled(d_KK[pairs]), steps_KK[pairs]) if pairs.any() else 0.0,
        line=_line(project(points), depth_K),
    )


def tree_distances(depth: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Return the number of steps between each two nodes of a tree, (K, K); infinity if no path connects them.

    >>> tree_distances(np.array([0, 1, 1, 2]), np.array([-1, 0, 0, 1]))[3]
    array([2., 1., 3., 0.])
    """
    top = int(depth.min()) - 1
    depths, parents = np.append(depth, top), np.append(parent, -1)  # -1 is the index of a node above all others
    ancestor_K, common_KK = np.arange(len(depth)), np.full((len(depth),) * 2, -np.inf)
    # From the leaves upward, two nodes meet in the first generation where they have the same ancestor.
    for generation in range(int(depth.max()), top, -1):
        ancestor_K = np.where(depths[ancestor_K] > generation, parents[ancestor_K], ancestor_K)
        here_K = depths[ancestor_K] == generation
        joined_KK = (ancestor_K[:, None] == ancestor_K) & here_K
        common_KK[joined_KK & np.isneginf(common_KK)] = generation
    return depth[:, None] + depth - 2 * common_KK


class Grouping(NamedTuple):
    """How well points cluster by class. Equal points give 0, a ratio of 1, or the value of chance."""

    between: float
    """Share of the variance between classes, 0 to 1; (classes - 1) / (points - 1) by chance."""
    silhouette: float
    """Mean silhouette, -1 to 1."""
    distance_ratio: float
    """Mean distance within classes divided by mean distance between classes: 0 if each class is one point, 1 by
    chance."""
    purity: float
    """Among points in classes of two or more, the share whose nearest neighbor is in the same class."""
    purity_by_chance: float
    """The same for points in random places."""


def grouping(points: Any, classes: Any, *, components: int | None = 2) -> Grouping:
    """Measure how well points cluster by class.

    Equally near neighbors count in equal shares.

    Args:
        points: (K, D).
        classes: (K,), with 2 to K - 1 different classes.
        components: number of principal components to use; None means the whole space.

    >>> found = grouping([[0.0], [1.0], [10.0], [11.0]], [0, 0, 1, 1])
    >>> round(found.between, 6), found.distance_ratio, found.purity, round(found.purity_by_chance, 6)
    (0.990099, 0.1, 1.0, 0.333333)
    """
    x_KR = seen(points, components)
    class_K = checked_classes("classes", classes, len(x_KR))
    d_KK, others_KK = distances(x_KR), ~np.eye(len(x_KR), dtype=bool)
    own_KK = (class_K[:, None] == class_K) & others_KK
    counted = own_KK.any(1)
    apart = d_KK[~own_KK & others_KK].mean()
    return Grouping(
        between=_between(x_KR, class_K),
        silhouette=silhouette(x_KR, class_K),
        distance_ratio=float(d_KK[own_KK].mean() / apart) if apart > 0 else 1.0,
        purity=_nearest_share(d_KK, others_KK, own_KK, counted),
        purity_by_chance=_nearest_share(np.zeros_like(d_KK), others_KK, own_KK, counted),
    )


def _left(x_KR: np.ndarray, fitted_KR: np.ndarray) -> float:
    """Return the share of the variance of centered points that a fit does not explain."""
    scale = np.abs(x_KR).max()
    if scale == 0:
        return 1.0
    # Points are divided before they are squared, so that huge and tiny ones neither overflow nor vanish.
    left, total = (np.square(found / scale).sum() for found in (x_KR - fitted_KR, x_KR))
    return float(np.clip(left / total, 0, 1))


def _between(x_KR: np.ndarray, class_K: np.ndarray) -> float:
    member_GK = np.eye(int(class_K.max()) + 1)[class_K].T
    means_GR = member_GK @ x_KR / member_GK.sum(1, keepdims=True)
    return 1 - _left(x_KR, means_GR[class_K])


def _nearest_share(d_KK: np.ndarray, among_KK: np.ndarray, wanted_KK: np.ndarray, counted: np.ndarray) -> float:
    """Return, averaged over the counted points, the share of wanted points among the nearest candidates."""
    if not counted.any():
        return float("nan")
    candidates = among_KK & ~np.eye(len(d_KK), dtype=bool)
    d_KK = np.where(candidates, d_KK, np.inf)
    # Distances that differ only by rounding are ties.
    nearest = candidates & (d_KK <= d_KK.min(1, keepdims=True) * (1 + 1e-9))
    return float(((nearest & wanted_KK).sum(1) / np.maximum(nearest.sum(1), 1))[counted].mean())


def _settled(values: np.ndarray) -> np.ndarray:
    """Round to ten digits of the largest value, so that ranks do not depend on rounding errors."""
    scale = np.abs(values).max()
    return np.round(values / scale, 10) if scale > 0 else values


def _line(plane_K2: np.ndarray, depth_K: np.ndarray) -> float:
    generations, counts = np.unique(depth_K, return_counts=True)
    shares = [
        pca(plane_K2[depth_K == generation]).ratio[0]
        for generation, count in zip(generations, counts, strict=True)
        if count >= LEAST_GENERATION
    ]
    return float(np.mean(shares)) if shares else float("nan")


def _checked_parents(parent: Any, depth_K: np.ndarray) -> np.ndarray:
    parent_K = checked_labels("parent", parent, len(depth_K))
    if parent_K.min() < -1 or parent_K.max() >= len(depth_K):
        raise ValueError(
            f"`parent` must be -1 to {len(depth_K) - 1}, got {parent_K.min()} to {parent_K.max()}; pass indices of "
            "nodes, not tokens."
        )
    child = np.flatnonzero(parent_K >= 0)
    wrong = child[depth_K[child] != depth_K[parent_K[child]] + 1]
    if len(wrong):
        node = int(wrong[0])
        raise ValueError(
            f"`depth` must grow by 1 from parent to child, got {depth_K[parent_K[node]]} and {depth_K[node]} for node "
            f"{node}; check `depth` and `parent`."
        )
    return parent_K
