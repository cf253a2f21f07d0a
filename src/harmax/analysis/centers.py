"""Token centers: the nearest tokens, the lengths, and the number of directions in use.

For a harmonic head the centers are the class centers. For another head or any embedding they are its rows.
"""

# V tokens, D features, R = min(V, D) components, Q query tokens, N neighbors, B tokens per block

from typing import Any, NamedTuple

import numpy as np

from harmax.analysis.arrays import checked_labels, checked_points
from harmax.analysis.pca import PCA, pca

LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)  # quantiles of the norms
BLOCK, ASKED = 4096, 256  # tokens of the vocabulary, and query tokens, that are processed together


class Neighbors(NamedTuple):
    """The nearest other tokens of each query token, nearest first."""

    tokens: np.ndarray
    """(Q, N) int64"""
    distances: np.ndarray
    """(Q, N), Euclidean."""


def nearest_tokens(embedding: Any, tokens: Any, count: int = 10) -> Neighbors:
    """Find the nearest tokens of some tokens by Euclidean distance, without the tokens themselves.

    The vocabulary is processed in blocks, without V x V distances and without a float64 copy of the embedding. Equally
    near tokens are ordered by their numbers.

    Args:
        embedding: one row per token, (V, D), V at least 2.
        tokens: the query tokens, (Q,).
        count: number of neighbors per token; all other tokens if there are fewer.

    >>> nearest_tokens([[0.0], [1.0], [5.0], [7.0]], [0, 3], count=2)
    Neighbors(tokens=array([[1, 2],
           [2, 1]]), distances=array([[1., 5.],
           [2., 6.]]))
    """
    x_VD = _checked_embedding(embedding)
    asked_Q = checked_labels("tokens", tokens, np.size(tokens))
    if not len(asked_Q) or asked_Q.min() < 0 or asked_Q.max() >= len(x_VD):
        raise ValueError(
            f"`tokens` must be one or more numbers from 0 to {len(x_VD) - 1}, got {asked_Q}; pass row numbers."
        )
    if count < 1:
        raise ValueError(f"`count` must be at least 1, got {count}; 10 is usual.")
    parts = np.split(asked_Q, range(ASKED, len(asked_Q), ASKED))
    tokens_QN, distances_QN = zip(*(_nearest(x_VD, part, min(count, len(x_VD) - 1)) for part in parts), strict=True)
    return Neighbors(np.concatenate(tokens_QN), np.concatenate(distances_QN))


def token_norms(embedding: Any) -> np.ndarray:
    """Return the Euclidean length of each token's row, (V,) float64.

    >>> token_norms([[3.0, 4.0], [0.0, 1.0]])
    array([5., 1.])
    """
    x_VD = _checked_embedding(embedding)
    blocks = [checked_points(x_VD[start : start + BLOCK], least=1) for start in range(0, len(x_VD), BLOCK)]
    return np.concatenate([np.linalg.norm(block, axis=1) for block in blocks])


class CentersSummary(NamedTuple):
    """A description of the rows of an embedding as a cloud of points."""

    norms: dict[float, float]
    """Quantiles of the lengths: level to length."""
    mean_share: float
    """Squared length of the mean row as a share of the mean squared length: 0 for a centered cloud, 1 for one point."""
    explained: np.ndarray
    """(R,), the share of the variance in the first 1, 2, ... components; ones if all rows are equal."""
    participation_ratio: float
    """(sum of variances)^2 / sum of squared variances, as `participation_ratio`: the number of directions in use."""
    effective_rank: float
    """exp of the entropy of the variances' shares (Roy and Vetterli, with variances). It also counts directions, with
    more weight for weak ones; 0 if all rows are equal."""


def summarize_centers(embedding: Any, *, fitted: PCA | None = None) -> CentersSummary:
    """Describe an embedding: lengths, common mean, and the variance along its principal components.

    Args:
        embedding: one row per token, (V, D), without rows that only pad the vocabulary.
        fitted: `pca(embedding)`, if it is known already; None means compute it here.

    >>> found = summarize_centers([[2.0, 1.0], [2.0, -1.0], [2.0, 3.0], [2.0, -3.0]])
    >>> round(found.norms[1.0] ** 2, 6), round(found.mean_share, 6), found.explained, found.participation_ratio
    (13.0, 0.444444, array([1., 1.]), 1.0)
    """
    norms = token_norms(embedding)
    axes = pca(embedding) if fitted is None else fitted
    if axes.mean.shape != np.shape(embedding)[1:]:
        raise ValueError(
            f"`fitted` must have the {np.shape(embedding)[1:]} features of `embedding`, got {axes.mean.shape}; pass "
            "pca(embedding)."
        )
    longest = norms.max()
    # Lengths are divided before they are squared, so that huge and tiny rows neither overflow nor vanish.
    shares = np.square(np.linalg.norm(axes.mean / longest)) / np.square(norms / longest).mean() if longest > 0 else 0.0
    used = axes.ratio[axes.ratio > 0]
    left = np.concatenate([np.cumsum(axes.ratio[::-1])[::-1][1:], [0.0]])
    return CentersSummary(
        dict(zip(LEVELS, map(float, np.quantile(norms, LEVELS)), strict=True)),
        float(np.clip(shares, 0, 1)),
        np.clip(1 - left, 0, 1),
        float(1 / np.square(used).sum()) if len(used) else 0.0,
        float(np.exp(-(used * np.log(used)).sum())) if len(used) else 0.0,
    )


def _nearest(x_VD: np.ndarray, asked_Q: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    x_QD = checked_points(x_VD[asked_Q], least=1)
    # Subtracting a common vector leaves distances unchanged and avoids cancellation.
    middle_D = x_QD.mean(0)
    one_QD = x_QD - middle_D
    best_QN, found_QN = np.empty((len(asked_Q), 0)), np.empty((len(asked_Q), 0), dtype=np.int64)
    for start in range(0, len(x_VD), BLOCK):
        two_BD = checked_points(x_VD[start : start + BLOCK], least=1) - middle_D
        numbers_B = np.arange(start, start + len(two_BD))
        squares_QB = np.square(one_QD).sum(1)[:, None] + np.square(two_BD).sum(1) - 2 * one_QD @ two_BD.T
        squares_QB[asked_Q[:, None] == numbers_B] = np.inf
        best_QN = np.concatenate([best_QN, squares_QB], axis=1)
        found_QN = np.concatenate([found_QN, np.broadcast_to(numbers_B, squares_QB.shape)], axis=1)
        # Some more neighbors than needed are kept until the end, where exact distances decide.
        kept = np.argsort(best_QN, axis=1, kind="stable")[:, : 2 * count + 1]
        best_QN, found_QN = np.take_along_axis(best_QN, kept, 1), np.take_along_axis(found_QN, kept, 1)
    exact_QN = np.linalg.norm(x_VD[found_QN].astype(np.float64) - x_QD[:, None], axis=2)
    exact_QN[np.isinf(best_QN)] = np.inf  # the token itself
    order = np.lexsort((found_QN, exact_QN), axis=1)[:, :count]
    return np.take_along_axis(found_QN, order, 1), np.take_along_axis(exact_QN, order, 1)


def _checked_embedding(embedding: Any) -> np.ndarray:
    """Return the rows in their own precision. Shapes are checked here, numbers later in blocks."""
    found = np.asarray(embedding)
    if found.ndim != 2 or found.shape[1] == 0 or len(found) < 2:
        raise ValueError(
            f"`embedding` must have shape (tokens, features) with 2 tokens or more, got {found.shape}; "
            "pass one row per token."
        )
    return found
