"""Quadruples: of two pairs each, a null that keeps all words but one, and intervals that cover what they should."""

import numpy as np
import pytest

from harmax.analysis import (
    Quadruples,
    bootstrap_interval,
    compare_losses,
    empirical_cdf,
    interval_over_pairs,
    median_interval,
    null_quadruples,
    parallelogram_loss,
    parallelogram_space,
    sample_quadruples,
    weighted_quantiles,
)
from harmax.analysis.quadruples import KEEP
from planted_words import GAUSSIAN_MEDIAN, PAIRS


def test_quadruples_are_of_two_pairs_and_none_comes_twice() -> None:
    quadruples = sample_quadruples(PAIRS, 3000, seed=3)
    assert quadruples.tokens.shape == (3000, 4)
    np.testing.assert_array_equal(PAIRS[quadruples.pairs].reshape(-1, 4), quadruples.tokens)
    assert (quadruples.pairs[:, 0] != quadruples.pairs[:, 1]).all()
    assert len({frozenset(row) for row in quadruples.pairs.tolist()}) == 3000
    # Every pair takes part about as often as others, and on either side.
    assert 0.45 < (quadruples.pairs[:, 0] < quadruples.pairs[:, 1]).mean() < 0.55
    counts = np.bincount(quadruples.pairs.ravel(), minlength=100)
    assert counts.min() > 30
    assert counts.max() < 90


def test_where_quadruples_are_few_all_are_there() -> None:
    found = sample_quadruples(PAIRS[:5], 10000)
    assert len({frozenset(row) for row in found.pairs.tolist()}) == len(found.tokens) == 10
    # All but a few of many are of no use, and these few are found.
    pairs = np.concatenate([np.stack([np.arange(500)] * 2, 1), [[1000, 1001], [1002, 1003], [1004, 1005]]])
    assert len(sample_quadruples(pairs, 3).tokens) == 3
    with pytest.raises(ValueError, match="`pairs` must form at least one distinct quadruple, got none"):
        sample_quadruples(pairs[:500], 3)


def test_seeds_say_which_quadruples() -> None:
    one, same, other = (sample_quadruples(PAIRS, 100, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.tokens, same.tokens)
    assert (one.tokens != other.tokens).any()
    null, again, third = (null_quadruples(one, PAIRS, seed).tokens for seed in (0, 0, 1))
    np.testing.assert_array_equal(null, again)
    assert (null != third).any()


def test_what_counts_is_what_is_asked_for() -> None:
    pairs = [[0, 1], [2, 3], [1, 4], [5, 5], [6, 6], [7, 3]]
    tokens = {keep: sample_quadruples(pairs, keep=keep).tokens for keep in KEEP}
    assert [len(tokens[keep]) for keep in ("all", "nontrivial", "distinct")] == [15, 14, 4]
    trivial = [row for row in tokens["all"].tolist() if row not in tokens["nontrivial"].tolist()]
    assert [sorted(row) for row in trivial] == [[5, 5, 6, 6]]
    assert all(len(set(row)) == 4 for row in tokens["distinct"].tolist())
    assert [0, 1, 1, 4] in [sorted(row) for row in tokens["nontrivial"].tolist()]  # two steps along a line


@pytest.mark.parametrize("keep", KEEP)
def test_a_null_replaces_the_last_word_by_the_partner_of_a_third(keep: str) -> None:
    pairs = np.stack([np.arange(60), 60 + np.arange(60) % 7], 1)  # seven partners, shared
    quadruples = sample_quadruples(pairs, 500, keep=keep)
    null = null_quadruples(quadruples, pairs, keep=keep)
    np.testing.assert_array_equal(null.tokens[:, :3], quadruples.tokens[:, :3])
    assert (null.tokens[:, 3] != quadruples.tokens[:, 3]).all()
    assert set(null.tokens[:, 3].tolist()) == set(range(60, 67))
    assert KEEP[keep](null.tokens).all()


def test_a_null_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="`pairs` must have a third pair"):
        null_quadruples(sample_quadruples(PAIRS[:2]), PAIRS[:2])
    with pytest.raises(ValueError, match="`pairs` must be the pairs that the quadruples were drawn from"):
        null_quadruples(sample_quadruples(PAIRS), PAIRS[:10])


def test_only_distinct_tokens_can_be_held_against_a_null() -> None:
    # Nothing is learned in a random embedding, yet where pairs end in one token their quadruples seem to close.
    pairs = np.arange(1600).reshape(800, 2)
    pairs[:480, 1] = pairs[:480, 0]
    x = np.random.default_rng(2).normal(size=(1600, 16))
    ratios = {}
    for keep in ("distinct", "nontrivial"):
        quadruples = sample_quadruples(pairs, keep=keep)
        space = parallelogram_space(x, quadruples.tokens)
        null = space.losses(null_quadruples(quadruples, pairs, keep=keep))
        ratios[keep] = compare_losses(space.losses(quadruples), null, quadruples, draws=300).ratio
    assert ratios["distinct"].low < 1 < ratios["distinct"].high
    assert ratios["nontrivial"].high < 1


def test_intervals_over_pairs_cover_the_truth_and_those_over_quadruples_do_not() -> None:
    quadruples = sample_quadruples(np.arange(80).reshape(40, 2), 780)
    covered = {"pairs": 0, "quadruples": 0}
    for seed in range(60):
        points = np.random.default_rng(seed).normal(size=(80, 2))[quadruples.tokens]
        losses = parallelogram_loss(*points.transpose(1, 0, 2), np.sqrt(2))
        for kind, interval in {
            "pairs": median_interval(losses, quadruples, draws=200),
            "quadruples": bootstrap_interval(losses, draws=200),
        }.items():
            covered[kind] += interval.low <= GAUSSIAN_MEDIAN <= interval.high
    assert covered["pairs"] >= 53
    assert covered["quadruples"] <= 40


def test_any_statistic_has_an_interval_over_pairs() -> None:
    quadruples = sample_quadruples(PAIRS, 600)
    losses = np.random.default_rng(0).exponential(size=600)
    found = interval_over_pairs(lambda weights: weighted_quantiles(weights, losses, 0.5), quadruples, draws=200)
    plain = median_interval(losses, quadruples, draws=200)
    np.testing.assert_allclose(found, plain, rtol=0.02)  # that one takes the mean of the two middle losses
    share = interval_over_pairs(lambda weights: weights @ (losses < 0.1) / weights.sum(1), quadruples, draws=200)
    assert share.estimate == (losses < 0.1).mean()
    assert share.low < share.estimate < share.high


def test_weighted_quantiles_are_those_of_repeated_values() -> None:
    generator = np.random.default_rng(0)
    values, weights = generator.normal(size=30), generator.integers(0, 4, size=(5, 30))
    for level in (0.05, 0.5, 0.99):
        found = weighted_quantiles(weights, values, level)
        for one, counts in zip(found, weights, strict=True):
            assert one == np.quantile(np.repeat(values, counts), level, method="inverted_cdf")


def test_quadruples_that_share_nothing_are_a_bootstrap_like_any() -> None:
    losses = np.random.default_rng(0).exponential(size=2000)
    tokens = np.arange(8000).reshape(2000, 4)
    alone = Quadruples(tokens, np.arange(4000).reshape(2000, 2))
    found, plain = median_interval(losses, alone), bootstrap_interval(losses)
    assert found.estimate == plain.estimate == np.median(losses)
    # A quadruple counts as the product of two counts: of variance 3, not 1.
    assert (found.high - found.low) / (plain.high - plain.low) == pytest.approx(np.sqrt(3), rel=0.25)


def test_a_comparison_is_of_the_same_rows() -> None:
    quadruples = sample_quadruples(PAIRS, 400)
    one = np.random.default_rng(0).exponential(size=400)
    two = one + 0.01  # smaller on every row, though the clouds of values overlap almost wholly
    found = compare_losses(one, two, quadruples, draws=200)
    assert found.share == (1, 1, 1)
    assert found.difference.estimate == pytest.approx(-0.01)
    assert found.difference.high < 0
    assert found.first.estimate == np.median(one)
    assert found.first.high > found.second.low
    backwards = compare_losses(two, one, quadruples, draws=200)
    assert backwards.share == (0, 0, 0)
    assert compare_losses(one, one, quadruples, draws=20).share == (0.5, 0.5, 0.5)
    zeros = compare_losses(one, np.zeros(400), quadruples, draws=20)
    assert zeros.ratio == (np.inf, np.inf, np.inf)


def test_the_share_of_values_up_to_a_threshold() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    thresholds = np.linspace(-3, 3, 13)
    np.testing.assert_allclose(empirical_cdf(values, thresholds), [(values <= one).mean() for one in thresholds])
    assert empirical_cdf([0.0, np.inf], 1e9) == 0.5


def test_bad_input_is_refused() -> None:
    quadruples = sample_quadruples(PAIRS, 10)
    for call, message in (
        (lambda: sample_quadruples(PAIRS[:1]), r"`pairs` must have shape \(pairs, 2\).*got \(1, 2\)"),
        (lambda: sample_quadruples([["a", "b"]] * 3), "must be tokens, got <U1; encode"),
        (lambda: sample_quadruples(PAIRS, 0), "`count` must be at least 1"),
        (lambda: sample_quadruples(PAIRS, keep="distinkt"), "did you mean 'distinct'"),
        (lambda: median_interval([1.0], quadruples), "must be 10 finite numbers.*got 1"),
        (lambda: median_interval(np.full(10, np.nan), quadruples), "got 10 NaN"),
        (lambda: median_interval(np.ones(10), quadruples, draws=0), "`draws` must be at least 1"),
        (lambda: empirical_cdf([], 1.0), "`values` must have .*at least one number, got"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
