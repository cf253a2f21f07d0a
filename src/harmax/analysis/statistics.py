"""Statistics over seeds: intervals, paired comparisons, and comparisons of counts. All tests are exact."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from harmax.analysis.arrays import ranks
from harmax.errors import needs

Values = Sequence[float | None] | np.ndarray


class Interval(NamedTuple):
    """An estimate and its interval."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.3g} [{self.low:.3g}, {self.high:.3g}]"

    def above(self, limit: float) -> bool | None:
        """Return True if the whole interval is above a limit, False if it is below, None if it contains the limit.

        >>> Interval(2.0, 1.0, 3.0).above(0), Interval(2.0, 1.0, 3.0).above(2)
        (True, None)
        """
        return True if self.low > limit else False if self.high < limit else None


def bootstrap_interval(
    values: Values, *, statistic: str = "median", level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval:
    """Return a median or mean over seeds and its percentile bootstrap interval.

    Seeds are drawn with replacement. The interval contains the middle `level` of the draws' statistics, at whole ranks.
    None means infinity, so that a median includes the runs that never reached a goal. One NaN makes all three numbers
    NaN. The middle of minus and plus infinity is 0. A mean needs finite values.

    Args:
        values: one value per seed, at least one.
        statistic: "median" or "mean".
        level: level of the interval, between 0 and 1.
        draws: number of bootstrap draws.
        seed: seed of the draws.

    >>> bootstrap_interval([1.0, 2.0, None])
    Interval(estimate=2.0, low=1.0, high=inf)
    """
    found = _numbers("values", values)
    if statistic not in _AVERAGES:
        raise ValueError(f"`statistic` must be one of {', '.join(_AVERAGES)}, got {statistic!r}; choose one of them.")
    if not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, got {level}; 0.95 is usual.")
    if draws < 1:
        raise ValueError(f"`draws` must be at least 1, got {draws}; 2000 is usual.")
    if np.isnan(found).any():
        return Interval(math.nan, math.nan, math.nan)
    if statistic == "mean" and np.isinf(found).any():
        raise ValueError(
            f"`values` must be finite for a mean, got {int(np.isinf(found).sum())} of {len(found)} at infinity; use "
            "the median, which may include them."
        )
    picked = np.random.default_rng(seed).integers(len(found), size=(draws, len(found)))
    average, tail = _AVERAGES[statistic], (1 - level) / 2
    # Whole ranks, because infinite values cannot be interpolated.
    low, high = np.quantile(average(found[picked]), [tail, 1 - tail], method="nearest")
    return Interval(float(average(found[None])[0]), float(low), float(high))


def mean_interval(values: Values, *, level: float = 0.95) -> Interval:
    """Return the mean over few seeds and Student's interval.

    A bootstrap interval of three or four values cannot exceed their extremes and is far too short: without any effect
    it excludes 0 in a quarter of all cases. Student's interval has the right coverage for normally distributed values.
    For a single value it is infinite.

    Args:
        values: one value per seed, finite.
        level: level of the interval, between 0 and 1.

    >>> print(mean_interval([1.0, 2.0, 3.0]))
    2 [-0.484, 4.48]
    """
    found = _numbers("values", values)
    if not np.isfinite(found).all():
        raise ValueError(f"`values` must be finite, got {found.tolist()}; leave diverged runs out.")
    mean, freedom = float(found.mean()), len(found) - 1
    if not freedom:
        return Interval(mean, -math.inf, math.inf)
    reach = student_quantile((1 + level) / 2, freedom) * float(found.std(ddof=1)) / math.sqrt(len(found))
    return Interval(mean, mean - reach, mean + reach)


def student_quantile(level: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution at `level`, which must be at least 1 / 2.

    >>> round(student_quantile(0.975, 3), 6)
    3.182446
    """
    if not 0.5 <= level < 1:
        raise ValueError(f"`level` must be at least 0.5 and below 1, got {level}; 0.975 is usual.")

    with needs("statistics"):
        from scipy.stats import t

    return float(t.ppf(level, freedom))


class PairedDifference(NamedTuple):
    """The difference between two arms, paired by seed."""

    difference: Interval
    """Median or mean of first - second."""
    greater: int
    """Number of seeds with first > second."""
    less: int
    """Number of seeds with first < second."""
    ties: int
    """Number of seeds with first = second."""
    sign_p: float
    """p-value of the two-sided sign test, which uses only the signs of the differences."""
    rank_p: float
    """p-value of the two-sided Wilcoxon signed-rank test, which uses their signs and ranks."""


def paired_difference(
    first: Values, second: Values, *, statistic: str = "median", level: float = 0.95, draws: int = 2000, seed: int = 0
) -> PairedDifference:
    r"""Compare two arms that ran on the same seeds.

    The interval is `bootstrap_interval` of the differences. Both p-values are exact, without a normal approximation.
    They consider every way to swap the two arms within seeds,

    .. math:: p = P(|\sum_i \pm r_i| \ge |\sum_i \mathrm{sign}(d_i) r_i|),

    with r_i = 1 (sign test), or r_i the rank of |d_i| among the nonzero differences (Wilcoxon). None and infinity mean
    "never". Two of them tie. One of them gives a difference larger than any number.

    Args:
        first: one value per seed.
        second: one value per seed, in the same order.
        statistic: "median" or "mean" of the differences.
        level: level of the interval.
        draws: number of bootstrap draws.
        seed: seed of the bootstrap.

    >>> found = paired_difference([5, 7, 9, 8, None, 6], [4, 4, 4, 4, 4, 4])
    >>> str(found.difference), found.greater, found.sign_p, found.rank_p
    ('3.5 [1.5, inf]', 6, 0.03125, 0.03125)
    """
    one, two = _numbers("first", first), _numbers("second", second)
    if len(one) != len(two):
        raise ValueError(
            f"`first` and `second` must have one value per seed, got {len(one)} and {len(two)} values; "
            "keep the seeds that both have."
        )
    if np.isnan(one).any() or np.isnan(two).any():
        raise ValueError(
            "`first` and `second` must be numbers, got NaN; pass None for a run that never reached the goal."
        )
    same = one == two
    difference = np.where(same, 0.0, one - np.where(same, 0.0, two))
    apart = difference[difference != 0]
    return PairedDifference(
        bootstrap_interval(difference, statistic=statistic, level=level, draws=draws, seed=seed),
        greater=int((apart > 0).sum()),
        less=int((apart < 0).sum()),
        ties=len(difference) - len(apart),
        sign_p=_sign_test(int((apart > 0).sum()), int((apart < 0).sum())),
        rank_p=_swap_test(np.sign(apart), ranks(np.abs(apart))),
    )


def fisher_exact(first: int, first_total: int, second: int, second_total: int) -> float:
    r"""Return the two-sided p-value of Fisher's exact test for the equality of two shares.

    .. math:: p = \sum_{k: w_k \le w_a} w_k / \sum_k w_k, \qquad w_k = \binom{n}{k} \binom{m}{a + b - k}

    Args:
        first: a, the count of the first arm, for example 14.
        first_total: n, the number of runs of the first arm, for example 20.
        second: b, the count of the second arm, for example 9.
        second_total: m, the number of runs of the second arm, for example 20.

    >>> round(fisher_exact(14, 20, 9, 20), 4)
    0.2003
    """
    _check_share("first", first, first_total)
    _check_share("second", second, second_total)
    with needs("statistics"):
        from scipy.stats import fisher_exact as exact

    table = [[first, first_total - first], [second, second_total - second]]
    return float(exact(table).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Return p-values with Holm's correction for the number of tests, in the same order.

    .. math:: \tilde p_{(k)} = \max_{j \le k} \min(1, (m - j + 1) \, p_{(j)})

    Here p_(1), ..., p_(m) are the sorted values. If results below 0.05 are called significant, the probability of any
    false one is at most 0.05. This holds for dependent tests too, and is never weaker than Bonferroni's correction.

    Args:
        p_values: p-values of one family of tests, each from 0 to 1; the list may be empty.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    outside = [p for p in p_values if not 0 <= p <= 1]
    if outside:
        raise ValueError(f"`p_values` must be from 0 to 1, got {outside[0]}; leave out tests without a p-value.")
    found, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        found[index] = largest
    return found


def share_interval(count: int, total: int, *, level: float = 0.95) -> Interval:
    r"""Return the share of successful runs and Wilson's interval.

    .. math:: \frac{1}{1 + z^2 / n} \Big( \hat p + \frac{z^2}{2 n}
        \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4 n^2}} \Big)

    With 20 runs, the coverage of Wilson's interval is close to the level on average, while that of Clopper and Pearson
    is well above. Unlike p +- z s, the interval does not shrink to a point at 0 of n and n of n.

    Args:
        count: number of successful runs.
        total: n, the number of runs.
        level: level of the interval.

    >>> print(share_interval(14, 20))
    0.7 [0.481, 0.855]
    """
    _check_share("count", count, total)
    if not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, got {level}; 0.95 is usual.")
    with needs("statistics"):
        from scipy.stats import binomtest

    low, high = binomtest(count, total).proportion_ci(level, method="wilson")
    # At the ends the formula gives the share itself, but for rounding.
    return Interval(count / total, float(low) if count else 0.0, float(high) if count < total else 1.0)


def _sign_test(greater: int, less: int) -> float:
    with needs("statistics"):
        from scipy.stats import binomtest

    return float(binomtest(greater, greater + less).pvalue) if greater + less else 1.0


def _swap_test(signs: np.ndarray, weights: np.ndarray) -> float:
    """Return P(|sum of +-weights| >= the observed sum) over all signs; weights are multiples of one half.

    Unlike the exact test of scipy it allows ties and infinite differences.
    """
    steps = np.rint(2 * weights).astype(int)
    top = int(steps.sum())
    likely = np.zeros(top + 1)  # probability of each sum of the weights with a positive sign
    likely[0] = 1.0
    for step in steps:
        likely = (likely + np.concatenate([np.zeros(step), likely[: len(likely) - step]])) / 2
    sums = np.abs(2 * np.arange(top + 1) - top)
    observed = abs(int((signs * steps).sum()))
    return min(1.0, float(likely[sums >= observed].sum()))


def _median(rows: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # the middle of minus and plus infinity
        found = np.median(rows, axis=1)
    return np.where(np.isnan(found), 0.0, found)


def _mean(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows.mean(1))


_AVERAGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"median": _median, "mean": _mean}


def _numbers(name: str, values: Values) -> np.ndarray:
    found = np.array([math.inf if value is None else value for value in values], dtype=float)
    if found.ndim != 1 or not len(found):
        raise ValueError(f"`{name}` must hold one number per seed, got shape {found.shape}; pass at least one.")
    return found


def _check_share(name: str, count: int, total: int) -> None:
    if not 0 <= count <= total or total < 1:
        raise ValueError(
            f"`{name}` must be a count from 0 to its total, and the total at least 1, got {count} of {total}; check "
            "the order of the arguments."
        )
