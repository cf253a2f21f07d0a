"""Whether an image resembles the known ones: scores, how well they separate, and what abstaining gains.

All scores have the same sign: **a higher score means more like the known images** ("inside"). Images to reject have
low scores.
"""

# N images, V classes, K distinct scores from high to low

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis.calibration import checked_scores
from harmax.analysis.resampling import check_draws, percentile_interval, resampled_counts
from harmax.analysis.statistics import Interval


def max_softmax(logits: Any) -> np.ndarray:
    r"""Return the logarithm of the largest probability, (N,), at most 0.

    .. math:: \max_j \log \mathrm{softmax}(z)_j = -\log\Big(1 + \sum_{j \ne c} e^{z_j - z_c}\Big)

    It orders images as the probability does, but two very confident images do not tie by rounding to 1.

    Args:
        logits: (N, V).

    >>> np.exp(max_softmax([[0.0, 0.0], [np.log(3), 0.0]]))
    array([0.5 , 0.75])
    """
    z_NV = checked_scores("logits", logits)
    winner_N1 = z_NV.argmax(1)[:, None]
    odds_NV = np.exp(z_NV - np.take_along_axis(z_NV, winner_N1, 1))
    np.put_along_axis(odds_NV, winner_N1, 0.0, axis=1)
    return -np.log1p(odds_NV.sum(1))


def energy(logits: Any) -> np.ndarray:
    r"""Return the log-sum-exp of the logits, (N,): minus the free energy of Liu et al. 2020.

    .. math:: \log \sum_j e^{z_j}

    For a harmonic head it is log sum_j d_j^-n, which is close to -n times the logarithm of the smallest distance.

    Args:
        logits: (N, V).

    >>> np.round(energy([[0.0, 0.0], [5.0, 5.0]]), 6)
    array([0.693147, 5.693147])
    """
    z_NV = checked_scores("logits", logits)
    top_N = z_NV.max(1)
    return top_N + np.log(np.exp(z_NV - top_N[:, None]).sum(1))


def nearest_distance(distances: Any) -> np.ndarray:
    """Return minus the distance to the nearest center, (N,).

    Args:
        distances: distances to every center, (N, V).

    >>> nearest_distance([[1.0, 4.0], [3.0, 2.0]])
    array([-1., -2.])
    """
    return -_checked_distances(distances).min(1)


def distance_ratio(distances: Any) -> np.ndarray:
    r"""Return minus the ratio of the nearest to the second nearest distance, (N,), -1 to 0.

    .. math:: -d_{(1)} / d_{(2)}

    It is -1 if both distances are 0, because two centers in the same place decide nothing.

    Args:
        distances: distances to every center, (N, V).

    >>> distance_ratio([[1.0, 4.0], [3.0, 2.0]])
    array([-0.25      , -0.66666667])
    """
    first_N, second_N = np.partition(_checked_distances(distances), 1, axis=1)[:, :2].T
    return -np.divide(first_N, second_N, out=np.ones(len(first_N)), where=second_N > 0)


LOGIT_SCORES: dict[str, Callable[[Any], np.ndarray]] = {"max_softmax": max_softmax, "energy": energy}
DISTANCE_SCORES: dict[str, Callable[[Any], np.ndarray]] = {
    "nearest_distance": nearest_distance,
    "distance_ratio": distance_ratio,
}


def auroc(inside: Any, outside: Any) -> float:
    r"""Return the area under the ROC curve: how often a known image scores above an unknown one. Ties count one half.

    .. math:: P(s_\text{in} > s_\text{out}) + \tfrac12 P(s_\text{in} = s_\text{out})

    Args:
        inside: scores of known images.
        outside: scores of unknown images.

    >>> auroc([3.0, 2.0], [1.0, 2.0])
    0.875
    """
    return _auroc(*_counts(inside, outside))


def aupr(inside: Any, outside: Any) -> float:
    r"""Return the area under the precision-recall curve (average precision) for finding known images.

    .. math:: \sum_k (R_k - R_{k-1}) P_k

    The sum is over the distinct scores from high to low. R and P are recall and precision of the rule "known if the
    score is at least this". For finding unknown images use ``aupr(-outside, -inside)``.

    Args:
        inside: scores of known images.
        outside: scores of unknown images.

    >>> round(aupr([3.0, 2.0], [1.0, 2.0]), 6)
    0.833333
    """
    return _aupr(*_counts(inside, outside))


def fpr_at_tpr(inside: Any, outside: Any, tpr: float = 0.95) -> float:
    """Return the share of unknown images that are accepted at the threshold that accepts a share of the known ones.

    The threshold is the highest score that accepts at least the share `tpr`. Images with exactly this score are
    accepted too.

    Args:
        inside: scores of known images.
        outside: scores of unknown images.
        tpr: the share of known images to accept, above 0 and at most 1.

    >>> fpr_at_tpr([4.0, 3.0, 2.0, 1.0], [2.5, 0.5], tpr=0.75)
    0.5
    """
    return _fpr(*_counts(inside, outside), _checked_share(tpr))


class Detection(NamedTuple):
    """How well a score separates known from unknown images, with intervals over the images of both sets."""

    auroc: Interval
    aupr_inside: Interval
    """For finding known images."""
    aupr_outside: Interval
    """For finding unknown images."""
    fpr: Interval
    """At the requested share of known images."""


def detection(
    inside: Any, outside: Any, *, tpr: float = 0.95, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> Detection:
    """Return all measures of a score, with bootstrap intervals that resample both sets.

    For several seeds, pass the estimates of all seeds to `bootstrap_interval` instead.

    Args:
        inside: scores of known images.
        outside: scores of unknown images.
        tpr: as for `fpr_at_tpr`.
        draws: number of bootstrap draws.
        level: level of the intervals.
        seed: seed of the draws.

    >>> found = detection(np.arange(20.0), np.arange(-10.0, 10.0))
    >>> print(found.auroc)
    0.875 [0.762, 0.96]
    """
    check_draws(draws, level)
    share = _checked_share(tpr)
    one, two = _checked_set("inside", inside), _checked_set("outside", outside)
    distinct, places = np.unique(np.concatenate([-one, -two]), return_inverse=True)
    size, places_one, places_two = len(distinct), places[: len(one)], places[len(one) :]

    def measures(counts_one: np.ndarray, counts_two: np.ndarray) -> np.ndarray:
        in_K = np.bincount(places_one, weights=counts_one, minlength=size)
        out_K = np.bincount(places_two, weights=counts_two, minlength=size)
        return np.array(
            [_auroc(in_K, out_K), _aupr(in_K, out_K), _aupr(out_K[::-1], in_K[::-1]), _fpr(in_K, out_K, share)]
        )

    estimates = measures(np.ones(len(one)), np.ones(len(two)))
    generators = np.random.default_rng(seed).spawn(2)
    pairs = zip(*(resampled_counts(len(s), draws, g) for s, g in zip((one, two), generators, strict=True)), strict=True)
    drawn = np.stack([measures(*pair) for pair in pairs])
    return Detection(*(percentile_interval(*pair, level) for pair in zip(estimates, drawn.T, strict=True)))


class Abstention(NamedTuple):
    """Accuracy and coverage with abstaining: one entry per threshold, from the strictest to the one without effect."""

    thresholds: np.ndarray
    """(K,), falling. Images with at least this score are answered."""
    coverage: np.ndarray
    """(K,), the share of images that are answered, rising to 1."""
    accuracy: np.ndarray
    """(K,), the share of the answers that are right."""


def abstention_curve(correct: Any, scores: Any) -> Abstention:
    """Return accuracy and coverage when the images with the lowest scores are not answered.

    Images with equal scores are answered together, because no threshold separates them.

    Args:
        correct: whether the classifier is right, (N,), booleans.
        scores: (N,), higher for images to answer first.

    >>> curve = abstention_curve([True, False, True, True], [0.9, 0.1, 0.5, 0.5])
    >>> curve.coverage, curve.accuracy
    (array([0.25, 0.75, 1.  ]), array([1.  , 1.  , 0.75]))
    """
    found = _checked_set("scores", scores)
    right_N = np.asarray(correct)
    if right_N.shape != found.shape or right_N.dtype != np.bool_:
        raise ValueError(
            f"`correct` must be booleans of shape {found.shape} to match `scores`, got {right_N.dtype} of "
            f"{right_N.shape}; pass predicted == labels."
        )
    distinct, places = np.unique(-found, return_inverse=True)
    answered_K = np.cumsum(np.bincount(places))
    right_K = np.cumsum(np.bincount(places, weights=right_N))
    return Abstention(-distinct, answered_K / len(found), right_K / answered_K)


def _counts(inside: Any, outside: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return how many images of each set have each distinct score, from high to low, (K,) each."""
    one, two = _checked_set("inside", inside), _checked_set("outside", outside)
    distinct, places = np.unique(np.concatenate([-one, -two]), return_inverse=True)
    split = np.split(places, [len(one)])
    return tuple(np.bincount(part, minlength=len(distinct)).astype(np.float64) for part in split)  # type: ignore[return-value]


def _auroc(in_K: np.ndarray, out_K: np.ndarray) -> float:
    above_K = np.cumsum(in_K) - in_K / 2
    return float(out_K @ above_K / (in_K.sum() * out_K.sum()))


def _aupr(in_K: np.ndarray, out_K: np.ndarray) -> float:
    hits_K, passed_K = np.cumsum(in_K), np.cumsum(in_K + out_K)
    used = in_K > 0
    return float((in_K[used] * hits_K[used] / passed_K[used]).sum() / in_K.sum())


def _fpr(in_K: np.ndarray, out_K: np.ndarray, tpr: float) -> float:
    threshold = int((np.cumsum(in_K) / in_K.sum() >= tpr).argmax())
    return float(out_K[: threshold + 1].sum() / out_K.sum())


def _checked_share(tpr: float) -> float:
    if not 0 < tpr <= 1:
        raise ValueError(f"`tpr` must be above 0 and at most 1, got {tpr}; 0.95 is usual.")
    return tpr


def _checked_set(name: str, scores: Any) -> np.ndarray:
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 1 or not len(found) or np.isnan(found).any():
        came = "NaN" if np.isnan(found).any() else f"shape {found.shape}"
        raise ValueError(f"`{name}` must hold one number per image, at least one, got {came}; pass scores of images.")
    return found


def _checked_distances(distances: Any) -> np.ndarray:
    found = checked_scores("distances", distances)
    if found.min() < 0:
        raise ValueError(f"`distances` must not be negative, got {found.min()}; pass head.distance(x), not logits.")
    return found
