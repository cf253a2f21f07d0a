"""Intervals and tests over seeds: scipy's where scipy has them, and honest about runs that never got there."""

import math

import numpy as np
import pytest
from scipy import stats

from harmax.analysis import (
    Interval,
    bootstrap_interval,
    fisher_exact,
    holm,
    mean_interval,
    paired_difference,
    share_interval,
)
from harmax.analysis.statistics import student_quantile


def test_an_interval_covers_its_median_and_narrows_with_seeds() -> None:
    values = np.random.default_rng(0).normal(3, 1, 400)
    few, many = bootstrap_interval(values[:10]), bootstrap_interval(values)
    assert few.low < few.estimate < few.high
    assert many.high - many.low < 0.5 * (few.high - few.low)
    assert many.low < 3 < many.high


@pytest.mark.parametrize("level", [0.5, 0.9, 0.975, 0.9999])
@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 40])
def test_students_quantiles_are_scipys(level: float, freedom: int) -> None:
    assert student_quantile(level, freedom) == pytest.approx(stats.t.ppf(level, freedom), rel=1e-9, abs=1e-12)


def test_an_interval_of_few_values_is_wrong_as_rarely_as_it_says() -> None:
    draws = np.random.default_rng(0).normal(size=(2000, 3))
    missed = sum(mean_interval(row).above(0) is not None for row in draws)
    assert 60 < missed < 140  # 5 % of them, 100
    bootstrapped = sum(bootstrap_interval(row, statistic="mean", draws=200).above(0) is not None for row in draws)
    assert bootstrapped > 400  # which is why


def test_one_value_says_nothing_about_its_mean_and_infinity_has_none() -> None:
    assert mean_interval([3.0]) == Interval(3.0, -math.inf, math.inf)
    with pytest.raises(ValueError, match="`values` must be finite"):
        mean_interval([1.0, None])


@pytest.mark.parametrize("statistic", ["median", "mean"])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_bootstrap_agrees_with_scipy(statistic: str, level: float) -> None:
    values = np.random.default_rng(1).exponential(size=25)
    found = bootstrap_interval(values, statistic=statistic, level=level, draws=20000)
    average = np.median if statistic == "median" else np.mean
    reference = stats.bootstrap(
        (values,), average, n_resamples=20000, confidence_level=level, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert found.estimate == pytest.approx(average(values))
    # Medians come in steps as wide as the gaps between values.
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=0.05)


def test_stored_results_keep_their_intervals() -> None:
    values = np.random.default_rng(0).normal(size=20)
    draws = np.random.default_rng(0).integers(20, size=(2000, 20))
    low, high = np.quantile(np.median(values[draws], axis=1), [0.025, 0.975], method="nearest")
    assert bootstrap_interval(values) == Interval(float(np.median(values)), float(low), float(high))
    assert bootstrap_interval(values, statistic="mean", seed=1) != bootstrap_interval(values, statistic="mean")


def test_runs_that_never_got_there_count_as_infinity() -> None:
    some = bootstrap_interval([10, 20, 30, None, None])
    assert some == bootstrap_interval([10, 20, 30, math.inf, math.inf])
    assert (some.estimate, some.high) == (30, math.inf)
    assert bootstrap_interval([10, None, None]).estimate == math.inf
    assert bootstrap_interval([None]) == (math.inf, math.inf, math.inf)
    assert bootstrap_interval([-math.inf, math.inf]).estimate == 0


def test_one_value_is_its_own_interval_and_nan_spreads() -> None:
    assert bootstrap_interval([4.0]) == (4, 4, 4)
    assert all(map(math.isnan, bootstrap_interval([1.0, math.nan, 2.0])))
    assert str(Interval(0.123456, 0.1, math.inf)) == "0.123 [0.1, inf]"


def test_paired_seeds_are_compared_one_by_one() -> None:
    base = np.random.default_rng(0).normal(0, 10, 20)
    better = base + np.random.default_rng(1).normal(1, 0.3, 20)
    found = paired_difference(better, base)
    # Unpaired, the two overlap almost entirely.
    assert bootstrap_interval(better).low < bootstrap_interval(base).high
    assert 0.5 < found.difference.low < 1 < found.difference.high < 1.5
    assert (found.greater, found.less, found.ties) == (20, 0, 0)
    assert found.sign_p == pytest.approx(2**-19)
    assert found.rank_p == pytest.approx(2**-19)


@pytest.mark.parametrize("count", [3, 10, 25])
def test_paired_tests_agree_with_scipy(count: int) -> None:
    generator = np.random.default_rng(count)
    one, two = generator.normal(0.4, 1, count), generator.normal(0, 1, count)
    found = paired_difference(one, two)
    assert found.sign_p == pytest.approx(stats.binomtest(found.greater, count).pvalue)
    assert found.rank_p == pytest.approx(stats.wilcoxon(one, two, method="exact").pvalue)
    other_way = paired_difference(two, one)
    assert (other_way.greater, other_way.less) == (found.less, found.greater)
    assert other_way.rank_p == pytest.approx(found.rank_p)
    assert paired_difference(one, two, statistic="mean").difference.estimate == pytest.approx((one - two).mean())


def test_tied_sizes_share_their_ranks() -> None:
    difference = np.array([1, 1, 1, -1, 2, 2, 3, -3, 5, 0, 0])
    found = paired_difference(difference, np.zeros(11))
    assert (found.greater, found.less, found.ties) == (7, 2, 2)
    kept = difference[difference != 0]
    signs = 1 - 2 * ((np.arange(2**9)[:, None] >> np.arange(9)) & 1)
    sizes = stats.rankdata(np.abs(kept))
    sums = np.abs(signs @ sizes)
    assert found.rank_p == pytest.approx(np.mean(sums >= abs(np.sign(kept) @ sizes)))


def test_never_against_never_is_a_tie() -> None:
    found = paired_difference([None, None, 30, 20], [None, 50, None, 10])
    assert (found.greater, found.less, found.ties) == (2, 1, 1)
    assert found.difference.estimate == 5
    assert paired_difference([None, 10], [20, None]).difference.estimate == 0


def test_no_difference_is_no_evidence() -> None:
    found = paired_difference([1, 2, 3], [1, 2, 3])
    assert found == ((0, 0, 0), 0, 0, 3, 1, 1)


@pytest.mark.parametrize("counts", [(14, 20, 9, 20), (20, 20, 0, 20), (0, 5, 0, 7), (3, 3, 9, 20), (18, 20, 14, 20)])
def test_fisher_agrees_with_scipy(counts: tuple[int, int, int, int]) -> None:
    a, n, b, m = counts
    expected = stats.fisher_exact([[a, n - a], [b, m - b]]).pvalue
    assert fisher_exact(a, n, b, m) == pytest.approx(expected)
    assert fisher_exact(b, m, a, n) == pytest.approx(expected)


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize(("count", "total"), [(14, 20), (0, 20), (20, 20), (1, 1), (7, 400)])
def test_shares_agree_with_scipy(count: int, total: int, level: float) -> None:
    reference = stats.binomtest(count, total).proportion_ci(level, method="wilson")
    found = share_interval(count, total, level=level)
    assert found == pytest.approx((count / total, reference.low, reference.high), abs=1e-12)
    assert 0 <= found.low <= found.estimate <= found.high <= 1
    assert found.low < found.high


def test_holm_corrects_the_smallest_most_and_keeps_places_and_order() -> None:
    # By hand: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 0.04, which may not fall below the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([0.7, 0.7]) == [1.0, 1.0]


def test_holm_lies_between_no_correction_and_bonferronis_and_keeps_equals_equal() -> None:
    values = np.random.default_rng(0).beta(0.5, 2, 40).tolist()
    values += values[:5]
    found = holm(values)
    assert all(p <= corrected <= min(1.0, len(values) * p) + 1e-15 for p, corrected in zip(values, found, strict=True))
    assert found[:5] == found[40:]
    assert np.argmin(found) == np.argmin(values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_interval([]), "`values` must hold one number per seed"),
        (lambda: bootstrap_interval(np.zeros((2, 3))), r"got shape \(2, 3\)"),
        (lambda: bootstrap_interval([1.0], statistic="mode"), "`statistic` must be one of median, mean, got 'mode'"),
        (lambda: bootstrap_interval([1.0, None], statistic="mean"), "finite for a mean, got 1 of 2"),
        (lambda: bootstrap_interval([1.0], level=95), "`level` must be between 0 and 1, got 95"),
        (lambda: bootstrap_interval([1.0], draws=0), "`draws` must be at least 1"),
        (lambda: paired_difference([1, 2], [1]), "`first` and `second` must .*got 2 and 1"),
        (lambda: paired_difference([], []), "`first` must hold one number per seed"),
        (lambda: paired_difference([1, math.nan], [1, 2]), "must be numbers, got NaN"),
        (lambda: fisher_exact(21, 20, 9, 20), "`first` must be a count.*got 21 of 20"),
        (lambda: fisher_exact(1, 20, -1, 20), "`second` must be a count"),
        (lambda: holm([0.1, 1.2]), "`p_values` must be from 0 to 1, got 1.2"),
        (lambda: share_interval(0, 0), "got 0 of 0"),
        (lambda: share_interval(1, 2, level=1), "`level` must be between 0 and 1"),
    ],
)
def test_bad_input_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
