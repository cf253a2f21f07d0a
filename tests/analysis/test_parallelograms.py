"""Parallelograms: zero where they are planted, chance where nothing is, the same however the points are moved."""

# V tokens, D features, P pairs

import numpy as np
import pytest
from sklearn.decomposition import PCA as Reference

from harmax.analysis import (
    PAPER_SETTING,
    SETTINGS,
    ParallelogramSetting,
    compare_losses,
    median_interval,
    null_quadruples,
    parallelogram_loss,
    parallelogram_space,
    pca,
    ranked_quadruples,
    sample_quadruples,
)
from planted_words import GAUSSIAN_MEDIAN, PAIRS


def cloud(tokens: int = 400, features: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(tokens, features))


def lattice(noise: float = 0.0, seed: int = 0) -> np.ndarray:
    """Return points whose pairs all differ by one and the same step."""
    x, generator = cloud(seed=seed), np.random.default_rng(seed + 1)
    x[PAIRS[:, 1]] = x[PAIRS[:, 0]] + 3 * generator.normal(size=x.shape[1])
    return x + noise * generator.normal(size=x.shape)


def rotation(features: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(5).normal(size=(features, features)))[0]


def test_the_loss_is_the_gap_by_the_scale() -> None:
    a, b, c, d = np.random.default_rng(0).normal(size=(4, 7, 3))
    expected = np.sqrt(((a - b - c + d) ** 2).sum(1)) / 2.5
    np.testing.assert_allclose(parallelogram_loss(a, b, c, d, 2.5), expected)
    np.testing.assert_allclose(parallelogram_loss(a, b, c, d, 2.5, squared=True), expected**2)
    np.testing.assert_allclose(parallelogram_loss(a, b, c, d, np.full(7, 2.5)), expected)
    # a : b = c : d says the same as c : d = a : b, b : a = d : c and a : c = b : d.
    for order in ((c, d, a, b), (b, a, d, c), (a, c, b, d)):
        np.testing.assert_allclose(parallelogram_loss(*order, 2.5), expected)


def test_the_settings_are_the_authors_and_the_papers_is_the_first() -> None:
    assert len(set(SETTINGS)) == 32
    assert SETTINGS[0] == PAPER_SETTING == ParallelogramSetting("vocabulary", "vocabulary", 2)
    assert {setting.components for setting in SETTINGS} == {2, 5, 10, 100}
    assert str(PAPER_SETTING) == "2 components of the vocabulary, scale of the vocabulary"


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_setting_agrees_with_its_definition_by_scikit_learn(setting: ParallelogramSetting) -> None:
    x = cloud(features=12) * np.linspace(3, 0.5, 12) + 7
    quadruples = sample_quadruples(PAIRS, 50)
    words = x[quadruples.tokens.ravel()]
    components = min(setting.components, 12)
    axes = Reference(components, svd_solver="full").fit(x if setting.fit == "vocabulary" else words)
    corners = axes.transform(words).reshape(-1, 4, components)
    if "quadruple" in setting.scale:
        # Of the coordinates; the ones beyond the 12th are zeros here and count.
        origin = corners.mean(1, keepdims=True) if setting.scale == "centered_quadruple" else 0
        scale = np.sqrt(np.square(corners - origin).sum((1, 2)) / (4 * setting.components))
    else:
        points = axes.transform(x if setting.scale == "vocabulary" else words)
        scale = np.sqrt(np.square(points).sum(1).mean())
    gap = np.linalg.norm(corners[:, 0] - corners[:, 1] - corners[:, 2] + corners[:, 3], axis=1)
    space = parallelogram_space(x, quadruples.tokens)
    np.testing.assert_allclose(space.losses(quadruples, setting), gap / scale)
    np.testing.assert_allclose(space.losses(quadruples, setting, squared=True), np.square(gap / scale))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_planted_parallelograms_close_and_their_null_does_not(setting: ParallelogramSetting) -> None:
    x = lattice()
    quadruples = sample_quadruples(PAIRS, 1000)
    null = null_quadruples(quadruples, PAIRS)
    space = parallelogram_space(x, quadruples.tokens)
    assert space.losses(quadruples, setting).max() < 1e-9
    assert np.median(space.losses(null, setting)) > 0.3


def test_the_null_of_a_planted_lattice_is_the_distance_of_two_words() -> None:
    # a - b - c + d' = c' - c, of twice the spread of the words, over the spread of all points.
    x = lattice()
    quadruples = sample_quadruples(PAIRS)
    everything = ParallelogramSetting(components=16)
    space = parallelogram_space(x, quadruples.tokens)
    null = space.losses(null_quadruples(quadruples, PAIRS), everything, squared=True)
    words = x[PAIRS[:, 0]]
    expected = 2 * words.var(0).sum() / np.square(x - x.mean(0)).sum(1).mean()
    assert null.mean() == pytest.approx(expected, rel=0.05)


def test_gaussian_points_have_the_loss_of_chance_and_a_null_like_it() -> None:
    x = cloud(6000, 8)
    pairs = np.arange(6000).reshape(3000, 2)
    quadruples = sample_quadruples(pairs)
    space = parallelogram_space(x, quadruples.tokens)
    found, null = space.losses(quadruples), space.losses(null_quadruples(quadruples, pairs))
    for losses in (found, null):
        interval = median_interval(losses, quadruples, draws=200)
        assert interval.low < GAUSSIAN_MEDIAN < interval.high
        assert interval.high - interval.low < 0.2
        assert np.square(losses).mean() == pytest.approx(4, rel=0.05)
    many = ParallelogramSetting(components=8)
    assert space.losses(quadruples, many, squared=True).mean() == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("setting", SETTINGS[::3], ids=str)
def test_losses_stay_when_points_are_moved_turned_and_scaled(setting: ParallelogramSetting) -> None:
    x = lattice(noise=0.5)
    quadruples = sample_quadruples(PAIRS, 200)
    found = parallelogram_space(x, quadruples.tokens).losses(quadruples, setting)
    moved = 40 * x @ rotation(16) + 11
    np.testing.assert_allclose(
        parallelogram_space(moved, quadruples.tokens).losses(quadruples, setting), found, rtol=1e-7
    )


def test_single_precision_and_components_found_before_change_nothing() -> None:
    x = lattice(noise=0.5).astype(np.float32)
    quadruples = sample_quadruples(PAIRS, 200)
    space = parallelogram_space(x, quadruples.tokens)
    again = parallelogram_space(x.astype(np.float64), quadruples.tokens, fitted=pca(x))
    for setting in SETTINGS:
        np.testing.assert_array_equal(space.losses(quadruples, setting), again.losses(quadruples, setting))


def test_a_noisier_lattice_loses() -> None:
    quadruples = sample_quadruples(PAIRS, 2000)
    losses = [
        parallelogram_space(x, quadruples.tokens).losses(quadruples) for x in (lattice(0.1), lattice(1.0), cloud())
    ]
    compared = compare_losses(losses[0], losses[1], quadruples, draws=200)
    assert compared.difference.high < 0
    assert compared.ratio.high < 0.5
    assert compared.share.low > 0.75
    assert compare_losses(losses[1], losses[2], quadruples, draws=200).ratio.high < 1


def test_one_point_four_times_closes_and_a_collapsed_embedding_is_refused() -> None:
    x = cloud()
    x[[0, 1, 2, 3]] = x[0]
    quadruples = sample_quadruples(PAIRS[:2])
    space = parallelogram_space(x, np.arange(400))
    assert space.losses(quadruples, ParallelogramSetting("centered_quadruple")).tolist() == [0.0]
    collapsed = parallelogram_space(np.ones((400, 4)), quadruples.tokens)
    with pytest.raises(ValueError, match=r"`scale` must be positive and finite, got 0.0"):
        collapsed.losses(quadruples)


def test_ranked_quadruples_are_the_best_the_median_and_the_worst() -> None:
    x = lattice(noise=0.5)
    quadruples = sample_quadruples(PAIRS, 501)
    space = parallelogram_space(x, quadruples.tokens)
    ordered = np.sort(space.losses(quadruples))
    best, usual, worst = (ranked_quadruples(space, quadruples, count=3, quantile=level) for level in (0.0, 0.5, 1.0))
    np.testing.assert_array_equal(best.losses, ordered[:3])
    np.testing.assert_array_equal(usual.losses, ordered[249:252])
    np.testing.assert_array_equal(worst.losses, ordered[-3:])
    np.testing.assert_array_equal(best.tokens, quadruples.tokens[best.rows])
    # What is drawn is what was measured.
    a, b, c, d = best.plane.transpose(1, 0, 2)
    scale = np.sqrt(np.square(space.coordinates(np.arange(400))).sum(1).mean())
    np.testing.assert_allclose(parallelogram_loss(a, b, c, d, scale), best.losses)
    assert len(ranked_quadruples(space, sample_quadruples(PAIRS[:3]), count=10, quantile=0.5).rows) == 3


def test_bad_input_is_refused() -> None:
    quadruples = sample_quadruples(PAIRS, 10)
    x = cloud()
    space = parallelogram_space(x, quadruples.tokens)
    point = [[0.0, 1.0]]
    for call, message in (
        (lambda: ParallelogramSetting(scale="tasks"), "did you mean 'task'"),
        (lambda: ParallelogramSetting(fit="quadruple"), "`fit` must be one of vocabulary, task"),
        (lambda: ParallelogramSetting(components=0), "`components` must be at least 1"),
        (lambda: parallelogram_space(x[:100], quadruples.tokens), "tokens must be .*0 to 99, got"),
        (lambda: parallelogram_space(x, []), "tokens must be one or more whole numbers"),
        (lambda: parallelogram_space(x, quadruples.tokens, fitted=pca(x[:, :3])), r"got \(3,\); pass pca"),
        (lambda: parallelogram_space(np.full((400, 2), np.nan), quadruples.tokens), "NaN or infinity in 400"),
        (lambda: parallelogram_loss(point, point, point, [[1.0]], 1), "must have one shape"),
        (lambda: parallelogram_loss(point, point, point, point, 0.0), "must be positive and finite, got 0.0"),
        (lambda: parallelogram_loss(point, point, point, point, [1.0, 2.0]), r"`scale` must .*shape \(1,\).*got"),
        (lambda: parallelogram_loss(point, point, point, point, np.nan), "must be positive and finite, got nan"),
        (lambda: ranked_quadruples(space, quadruples, quantile=2), "got 5 and 2"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
