"""Whether the confidence of a classifier matches its accuracy: calibration error, likelihood, Brier score, temperature.

All functions take logits: numbers whose softmax gives the probabilities. Log-probabilities are logits too. The
confidence of an image is its largest probability.
"""

# N images, V classes, M bins

from typing import Any, NamedTuple

import numpy as np

from harmax.analysis.arrays import checked_labels
from harmax.analysis.resampling import check_draws, percentile_interval, resampled_counts
from harmax.analysis.statistics import Interval

SPACINGS = ("width", "mass")
MOST_SWEPT = 200  # bins; the sweep would not end if all right answers had a higher confidence than all wrong ones
TOLERANCE, MOST_STEPS = 1e-12, 200  # for the search for a temperature


class Reliability(NamedTuple):
    """Confidence and accuracy of a classifier, per bin of confidence."""

    edges: np.ndarray
    """(M + 1,), from 0 to 1. A bin holds confidences above its lower edge and up to its upper edge."""
    counts: np.ndarray
    """(M,), the number of images."""
    confidence: np.ndarray
    """(M,), their mean confidence; NaN for an empty bin."""
    accuracy: np.ndarray
    """(M,), their accuracy; NaN for an empty bin."""


def reliability_curve(logits: Any, labels: Any, *, bins: int | None = 15, spacing: str = "width") -> Reliability:
    """Divide images into bins by their confidence, and return confidence and accuracy per bin.

    Args:
        logits: (N, V).
        labels: the true classes, (N,).
        bins: M. None means the largest number, up to 200, for which accuracy never falls from one bin to the next
            (Roelofs et al. 2022, "Mitigating bias in calibration error estimation").
        spacing: "width" has the edges 0, 1/M, 2/M, ... "mass" has equally many images per bin. Images of equal
            confidence are in the same bin, so that the order of the images does not matter.

    >>> curve = reliability_curve(np.log([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]]), [0, 1, 1], bins=2)
    >>> curve.counts, np.round(curve.confidence, 6), curve.accuracy
    (array([0, 3]), array([nan, 0.8]), array([       nan, 0.66666667]))
    """
    z_NV, labels_N = _checked(logits, labels)
    confidence_N, right_N = _confidence(z_NV, labels_N)
    return _sorted_into(confidence_N, right_N, _edges(confidence_N, right_N, bins, spacing))


def expected_calibration_error(logits: Any, labels: Any, *, bins: int | None = 15, spacing: str = "width") -> float:
    r"""Return the mean gap between confidence and accuracy, 0 to 1.

    .. math:: \mathrm{ECE} = \sum_m \frac{N_m}{N} | \mathrm{accuracy}_m - \mathrm{confidence}_m |

    With few images it is above 0 even for a perfectly calibrated classifier, because of chance. The effect is smaller
    with fewer bins or with None.

    Args:
        logits: (N, V).
        labels: (N,).
        bins: as for `reliability_curve`.
        spacing: as for `reliability_curve`.

    >>> round(expected_calibration_error(np.log([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]]), [0, 1, 1], bins=10), 6)
    0.4
    """
    curve = reliability_curve(logits, labels, bins=bins, spacing=spacing)
    used = curve.counts > 0
    gaps = np.abs(curve.accuracy[used] - curve.confidence[used])
    return float(gaps @ curve.counts[used] / curve.counts.sum())


def negative_log_likelihood(logits: Any, labels: Any) -> float:
    r"""Return the mean of -log p of the true class, in nats.

    Args:
        logits: (N, V).
        labels: (N,).

    >>> round(negative_log_likelihood([[0.0, 0.0], [0.0, 0.0]], [0, 1]), 6)
    0.693147
    """
    return float(_surprise(*_checked(logits, labels)).mean())


def brier_score(logits: Any, labels: Any) -> float:
    r"""Return Brier's score, the mean squared distance between the probabilities and the truth, 0 to 2.

    .. math:: \frac{1}{N} \sum_i \sum_j (p_{ij} - [j = y_i])^2

    Args:
        logits: (N, V).
        labels: (N,).

    >>> round(brier_score([[0.0, 0.0]], [0]), 6)
    0.5
    """
    return float(_squared_misses(*_checked(logits, labels)).mean())


class Calibration(NamedTuple):
    """Measures of one classifier on one set of images, with intervals over the images."""

    accuracy: Interval
    nll: Interval
    brier: Interval
    ece: Interval


def summarize_calibration(
    logits: Any,
    labels: Any,
    *,
    bins: int | None = 15,
    spacing: str = "width",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Calibration:
    """Return accuracy, likelihood, Brier score and calibration error, each with a bootstrap interval over images.

    For several seeds, pass the estimates of all seeds to `bootstrap_interval` instead. All draws use the bins of the
    whole set. The calibration error of a draw is biased upward, in the same way as that of the whole set. Its interval
    is therefore reflected at the estimate, which removes the bias. For a perfectly calibrated classifier the interval
    is still too high.

    Args:
        logits: (N, V).
        labels: (N,).
        bins: as for `reliability_curve`.
        spacing: as for `reliability_curve`.
        draws: number of bootstrap draws.
        level: level of the intervals.
        seed: seed of the draws.

    >>> found = summarize_calibration(np.log([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]), [0, 0, 1, 1], bins=2)
    >>> print(found.accuracy, "and", found.nll)
    0.75 [0.25, 1] and 0.4 [0.164, 0.743]
    """
    check_draws(draws, level)
    z_NV, labels_N = _checked(logits, labels)
    confidence_N, right_N = _confidence(z_NV, labels_N)
    edges = _edges(confidence_N, right_N, bins, spacing)
    gap_NM = np.zeros((len(z_NV), len(edges) - 1))
    gap_NM[np.arange(len(z_NV)), _places(confidence_N, edges)] = right_N - confidence_N
    columns = np.column_stack([right_N, _surprise(z_NV, labels_N), _squared_misses(z_NV, labels_N), gap_NM])

    def measures(counts_N: np.ndarray) -> np.ndarray:
        means = counts_N @ columns / len(columns)
        return np.append(means[:3], np.abs(means[3:]).sum())

    estimates = measures(np.ones(len(columns)))
    generator = np.random.default_rng(seed)
    drawn = np.stack([measures(counts_N) for counts_N in resampled_counts(len(columns), draws, generator)])
    accuracy, nll, brier, gap = (percentile_interval(*pair, level) for pair in zip(estimates, drawn.T, strict=True))
    ece = gap.estimate
    reflected = Interval(ece, max(0.0, min(ece, 2 * ece - gap.high)), max(ece, 2 * ece - gap.low))
    return Calibration(accuracy, nll, brier, reflected)


def fit_temperature(
    logits: Any, labels: Any, *, weights: Any = None, limits: tuple[float, float] = (0.01, 100.0)
) -> float:
    r"""Return the temperature T: logits divided by T have the best likelihood on these images.

    .. math:: \min_T \; -\frac{1}{N} \sum_i \log \mathrm{softmax}(z_i / T)_{y_i}

    The loss is convex in 1 / T, so the root of its derivative is exact up to rounding. Use images that were not in the
    training set. Dividing by T changes no decision. For a harmonic head without softening it divides the exponent by T.

    Args:
        logits: (N, V).
        labels: (N,).
        weights: how much each image counts, (N,), not below 0; None means equally.
        limits: the smallest and largest T. If the best T is outside, the nearer limit is returned. This happens if
            every answer is right, or if the logits contain no information.

    >>> z = np.log([[0.8, 0.2]] * 4)
    >>> T = fit_temperature(z, [0, 0, 0, 1])  # three of four are right, so the best confidence is 0.75
    >>> np.round(np.exp(z[0] / T) / np.exp(z[0] / T).sum(), 6)
    array([0.75, 0.25])
    """
    z_NV, labels_N = _checked(logits, labels)
    if not 0 < limits[0] < limits[1] < np.inf:
        raise ValueError(f"`limits` must be two rising, positive numbers, got {limits}; try (0.01, 100).")
    share_N = _checked_weights(weights, len(z_NV))
    above_NV = z_NV - np.take_along_axis(z_NV, labels_N[:, None], 1)
    low, high = 1 / limits[1], 1 / limits[0]
    if _slope(above_NV, share_N, low)[0] >= 0:
        return float(limits[1])
    if _slope(above_NV, share_N, high)[0] <= 0:
        return float(limits[0])
    inverse = min(max(1.0, low), high)
    for _ in range(MOST_STEPS):
        slope, curvature = _slope(above_NV, share_N, inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        # Newton's step if it stays inside the bracket, else the middle of the bracket.
        step = inverse - slope / curvature if curvature > 0 else low
        following = step if low < step < high else (low + high) / 2
        if abs(following - inverse) <= TOLERANCE * inverse:
            break
        inverse = following
    return float(1 / following)


def _checked_weights(weights: Any, count: int) -> np.ndarray:
    """Return each image's share of the total weight, (N,)."""
    found = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
    if found.shape != (count,) or not np.isfinite(found).all() or found.min() < 0 or not found.sum():
        raise ValueError(
            f"`weights` must be {count} finite numbers of at least 0, not all 0, got shape {found.shape}; pass one per "
            "image."
        )
    return found / found.sum()


def _slope(above_NV: np.ndarray, share_N: np.ndarray, inverse: float) -> tuple[float, float]:
    """Return the first and second derivative of the loss in 1 / T, from logits relative to the true class."""
    p_NV = np.exp(_log_softmax(inverse * above_NV))
    mean_N = (p_NV * above_NV).sum(1)
    return float(share_N @ mean_N), float(share_N @ (p_NV * np.square(above_NV - mean_N[:, None])).sum(1))


def _log_softmax(z_NV: np.ndarray) -> np.ndarray:
    shifted_NV = z_NV - z_NV.max(1, keepdims=True)
    return shifted_NV - np.log(np.exp(shifted_NV).sum(1, keepdims=True))


def _surprise(z_NV: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
    return -np.take_along_axis(_log_softmax(z_NV), labels_N[:, None], 1)[:, 0]


def _squared_misses(z_NV: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
    p_NV = np.exp(_log_softmax(z_NV))
    p_NV[np.arange(len(p_NV)), labels_N] -= 1
    return np.square(p_NV).sum(1)


def _confidence(z_NV: np.ndarray, labels_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest probability of each image, and 1.0 for a right answer or 0.0 for a wrong one."""
    confidence_N = 1 / np.exp(z_NV - z_NV.max(1, keepdims=True)).sum(1)  # no logarithm: 1/2 and 1/4 must be exact edges
    return confidence_N, (z_NV.argmax(1) == labels_N).astype(np.float64)


def _edges(confidence_N: np.ndarray, right_N: np.ndarray, bins: int | None, spacing: str) -> np.ndarray:
    if spacing not in SPACINGS:
        raise ValueError(f"`spacing` must be one of {', '.join(SPACINGS)}, got {spacing!r}; choose one of them.")
    if bins is not None:
        if bins < 1:
            raise ValueError(f"`bins` must be at least 1, got {bins}; use 15, or None to find a number.")
        return _spaced(confidence_N, bins, spacing)
    edges = _spaced(confidence_N, 1, spacing)
    for more in range(2, min(len(confidence_N), MOST_SWEPT) + 1):
        tried = _spaced(confidence_N, more, spacing)
        accuracy_M = _sorted_into(confidence_N, right_N, tried).accuracy
        if (np.diff(accuracy_M[np.isfinite(accuracy_M)]) < 0).any():
            break
        edges = tried
    return edges


def _spaced(confidence_N: np.ndarray, bins: int, spacing: str) -> np.ndarray:
    if spacing == "width":
        return np.linspace(0, 1, bins + 1)
    last = -(-len(confidence_N) * np.arange(1, bins) // bins) - 1  # last place of each bin but the last, when sorted
    return np.concatenate([[0.0], np.sort(confidence_N)[last], [1.0]])


def _places(confidence_N: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.searchsorted(edges[1:-1], confidence_N, side="left")


def _sorted_into(confidence_N: np.ndarray, right_N: np.ndarray, edges: np.ndarray) -> Reliability:
    places_N, bins = _places(confidence_N, edges), len(edges) - 1
    counts_M = np.bincount(places_N, minlength=bins)
    sums = (np.bincount(places_N, weights=values, minlength=bins) for values in (confidence_N, right_N))
    means = (np.divide(s, counts_M, out=np.full(bins, np.nan), where=counts_M > 0) for s in sums)
    return Reliability(edges, counts_M, *means)


def _checked(logits: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    z_NV = checked_scores("logits", logits)
    labels_N = checked_labels("labels", labels, len(z_NV))
    if labels_N.min() < 0 or labels_N.max() >= z_NV.shape[1]:
        raise ValueError(
            f"`labels` must be classes from 0 to {z_NV.shape[1] - 1}, got {labels_N.min()} to {labels_N.max()}; "
            "leave other images out."
        )
    return z_NV, labels_N


def checked_scores(name: str, scores: Any) -> np.ndarray:
    """Return one number per image and class, (N, V), as float64; refuse other shapes, NaN and infinity."""
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 2 or not len(found) or found.shape[1] < 2:
        raise ValueError(
            f"`{name}` must have shape (images, 2 classes or more), got {found.shape}; pass one row per image."
        )
    broken = int((~np.isfinite(found)).any(1).sum())
    if broken:
        raise ValueError(
            f"`{name}` must be finite, got NaN or infinity in {broken} of {len(found)} rows; pass the head's own "
            "output, not the logarithm of rounded probabilities."
        )
    return found
