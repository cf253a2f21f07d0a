"""Whether points cluster: silhouettes, and the cosets of a symmetric group that they cluster by."""

# K points, P partitions, G classes of all partitions together, B draws of the null

from math import factorial
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis.arrays import checked_classes, checked_points, distances
from harmax.analysis.groups import Subgroup, checked_images, coset_partitions, places
from harmax.analysis.pca import seen

LEVELS = (0.5, 0.95, 0.99)  # quantiles of the null that are returned
BATCH = 2**18  # numbers in memory at a time while the null is computed


def silhouette(points: Any, labels: Any) -> float:
    r"""Return the mean silhouette of points in classes, -1 to 1.

    .. math:: s_i = \frac{b_i - a_i}{\max(a_i, b_i)}

    Here a is the mean distance to the other points of the same class, and b is the smallest mean distance to another
    class. A point that is alone in its class counts 0, and so does a point with a = b = 0.

    Args:
        points: (K, D).
        labels: (K,), with 2 to K - 1 different labels.

    >>> round(silhouette([[0.0], [1.0], [10.0], [11.0]], [0, 0, 1, 1]), 6)
    0.899749
    """
    x_KD = checked_points(points)
    return float(_silhouettes(distances(x_KD)[None], checked_classes("labels", labels, len(x_KD))[None])[0, 0])


class BestCosets(NamedTuple):
    """The partition into cosets by which points cluster best, and a comparison with chance."""

    score: float
    """Mean silhouette of the best partition."""
    subgroup: Subgroup
    side: str
    labels: np.ndarray
    """(K,), the coset of each point."""
    p_value: float
    """Share of random orders of the points whose best score is as high: (1 + times) / (1 + draws)."""
    null: dict[float, float]
    """Quantiles of the best score of random orders: level to score."""
    scores: np.ndarray
    """(P,), the scores of all partitions, in the order of `coset_partitions`."""


def best_cosets(
    points: Any, permutations: Any, *, components: int | None = 2, draws: int = 1000, seed: int = 0
) -> BestCosets:
    """Find the cosets by which the points of a symmetric group cluster, and compare them with chance.

    The best score of many partitions is high by chance alone. So the same best score is computed `draws` times with
    the points assigned to the permutations at random.

    Args:
        points: one point per permutation, (n!, D).
        permutations: images 0 .. n - 1 of each point's permutation, (n!, n), every permutation once, in any order.
        components: number of principal components to use; None means the whole space.
        draws: number of random orders; 0 gives p = 1 and NaN as quantiles.
        seed: seed of the random orders.

    >>> from harmax.analysis import symmetric_group
    >>> four = symmetric_group(4)
    >>> stabilizers = np.eye(4)[four[:, 3]] + 0.01 * four  # mostly the image of 4 under each permutation
    >>> found = best_cosets(stabilizers, four, components=None, draws=99)
    >>> found.subgroup.name, found.side, found.score > 0.9, found.p_value
    ('S3 (stabilizer of 4)', 'left', True, 0.01)
    """
    images = _checked_permutations(permutations)
    partitions = coset_partitions(images.shape[1])
    if not partitions:
        raise ValueError(
            f"`permutations` must have at least 3 columns, got {images.shape[1]}; S_2 has no cosets to compare."
        )
    x_KD = seen(points, components)
    if len(x_KD) != len(images):
        raise ValueError(
            f"`points` must hold {len(images)} points, one per permutation, got {len(x_KD)}; leave other tokens out."
        )
    order = places(images)
    labels_PK = np.stack([found.labels[order] for found in partitions])
    d_KK = distances(x_KD)
    scores = _silhouettes(d_KK[None], labels_PK)[0]
    best = int(scores.argmax())
    null = _null(d_KK, labels_PK, draws, seed)
    # The same clusters in another order give the same score up to rounding.
    as_high = int((null >= scores[best] - 1e-12).sum())
    quantiles = np.quantile(null, LEVELS) if draws else np.full(len(LEVELS), np.nan)
    return BestCosets(
        float(scores[best]),
        partitions[best].subgroup,
        partitions[best].side,
        labels_PK[best],
        (1 + as_high) / (1 + draws),
        {level: float(found) for level, found in zip(LEVELS, quantiles, strict=True)},
        scores,
    )


def _null(d_KK: np.ndarray, labels_PK: np.ndarray, draws: int, seed: int) -> np.ndarray:
    if draws < 0:
        raise ValueError(f"`draws` must not be negative, got {draws}; 1000 is usual.")
    deals_BK = np.random.default_rng(seed).permuted(np.tile(np.arange(len(d_KK)), (draws, 1)), axis=1)
    batch = max(1, BATCH // (len(d_KK) * int((labels_PK.max(1) + 1).sum())))
    best = [np.empty(0)]
    for start in range(0, draws, batch):
        dealt = deals_BK[start : start + batch]
        best.append(_silhouettes(d_KK[dealt[:, :, None], dealt[:, None, :]], labels_PK).max(1))
    return np.concatenate(best)


def _silhouettes(d_BKK: np.ndarray, labels_PK: np.ndarray) -> np.ndarray:
    """Return the mean silhouette of each partition for each matrix of distances, (B, P), by one matrix product."""
    counts_P = labels_PK.max(1) + 1
    starts_P = np.cumsum(counts_P) - counts_P
    own_KP = (starts_P[:, None] + labels_PK).T  # the column of each point's class, all partitions side by side
    member_KG = np.zeros((len(own_KP), counts_P.sum()))
    np.put_along_axis(member_KG, own_KP, 1.0, axis=1)
    sizes_G = member_KG.sum(0)
    sums_BKG = d_BKK @ member_KG
    own = np.arange(len(own_KP))[:, None], own_KP
    a_BKP = sums_BKG[:, *own] / np.maximum(sizes_G[own_KP] - 1, 1)
    sums_BKG /= sizes_G
    sums_BKG[:, *own] = np.inf
    b_BKP = np.minimum.reduceat(sums_BKG, starts_P, axis=2)
    scale_BKP = np.maximum(a_BKP, b_BKP)
    counted = (scale_BKP > 0) & (sizes_G[own_KP] > 1)
    s_BKP = np.divide(b_BKP - a_BKP, scale_BKP, out=np.zeros_like(a_BKP), where=counted)
    return s_BKP.mean(1)


def _checked_permutations(permutations: Any) -> np.ndarray:
    images = checked_images("permutations", permutations)
    different, wanted = len(np.unique(images, axis=0)), factorial(images.shape[1])
    if len(images) != wanted or different != wanted:
        raise ValueError(
            f"`permutations` must be all {wanted} permutations, each once, got {len(images)} of which {different} are "
            "different; pass all of them, because a score of some would depend on the missing ones."
        )
    return images
