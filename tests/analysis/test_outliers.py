"""Known against unknown images: scikit-learn's areas, ties included, and scores that mean what they say."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from harmax import harmonic_logits, squared_distance
from harmax.analysis import outliers
from harmax.analysis.outliers import (
    DISTANCE_SCORES,
    LOGIT_SCORES,
    abstention_curve,
    aupr,
    auroc,
    detection,
    distance_ratio,
    energy,
    fpr_at_tpr,
    max_softmax,
    nearest_distance,
)


def two_sets(seed: int, steps: float | None) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    inside, outside = generator.normal(0.8, 1, 137), generator.normal(0, 1.3, 61)
    return (inside, outside) if steps is None else (np.round(inside * steps), np.round(outside * steps))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("steps", [None, 3.0, 0.7], ids=["distinct", "some ties", "mostly ties"])
def test_the_measures_are_scikit_learns(seed: int, steps: float | None) -> None:
    inside, outside = two_sets(seed, steps)
    truth = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    scores = np.concatenate([inside, outside])
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(truth, scores), rel=1e-12)
    assert aupr(inside, outside) == pytest.approx(average_precision_score(truth, scores), rel=1e-12)
    assert aupr(-outside, -inside) == pytest.approx(average_precision_score(1 - truth, -scores), rel=1e-12)
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    for share in (0.5, 0.95, 1.0):
        assert fpr_at_tpr(inside, outside, share) == pytest.approx(false[true >= share].min())


def test_the_area_counts_pairs() -> None:
    inside, outside = two_sets(3, 2.0)
    pairs = np.mean([(a > b) + 0.5 * (a == b) for a in inside for b in outside])
    assert auroc(inside, outside) == pytest.approx(pairs)
    assert auroc(inside, outside) + auroc(outside, inside) == pytest.approx(1)


def test_the_ends_of_the_scale() -> None:
    low, high = np.arange(10.0), np.arange(20.0, 30)
    assert (auroc(high, low), aupr(high, low), fpr_at_tpr(high, low)) == (1, 1, 0)
    assert (auroc(low, high), fpr_at_tpr(low, high)) == (0, 1)
    same = np.ones(40)
    assert (auroc(same, same[:10]), aupr(same, same[:10]), fpr_at_tpr(same, same[:10])) == (0.5, 0.8, 1)
    # 19 of 20 are 0.95, not one ulp less.
    assert fpr_at_tpr(np.arange(20.0), np.array([0.5, 1.5])) == 0.5


def test_only_the_order_of_scores_matters() -> None:
    inside, outside = two_sets(4, None)
    for measure in (auroc, aupr, fpr_at_tpr):
        assert measure(np.exp(inside), np.exp(outside)) == measure(inside, outside)


def test_intervals_cover_the_estimate_and_narrow_with_images() -> None:
    generator = np.random.default_rng(0)
    inside, outside = generator.normal(1, 1, 1600), generator.normal(0, 1, 900)
    many, few = detection(inside, outside, draws=300), detection(inside[:40], outside[:40], draws=300)
    assert many.auroc.estimate == auroc(inside, outside)
    assert many.aupr_inside.estimate == pytest.approx(aupr(inside, outside))
    assert many.aupr_outside.estimate == pytest.approx(aupr(-outside, -inside))
    assert many.fpr.estimate == fpr_at_tpr(inside, outside)
    for one, two in zip(many, few, strict=True):
        assert one.low < one.estimate < one.high
        assert one.high - one.low < 0.6 * (two.high - two.low)
    assert many.auroc.low < 0.7602 < many.auroc.high  # P(N(1, 2) > 0)
    assert detection(inside, outside, draws=300) == many
    assert detection(inside, outside, draws=300, seed=1) != many
    assert detection(inside, outside, draws=2, tpr=0.5).fpr.estimate == fpr_at_tpr(inside, outside, 0.5)


def test_the_interval_is_that_of_drawing_images_one_by_one() -> None:
    inside, outside = two_sets(5, 2.0)
    generator = np.random.default_rng(7)
    areas = [auroc(generator.choice(inside, len(inside)), generator.choice(outside, len(outside))) for _ in range(2000)]
    found = detection(inside, outside, draws=2000).auroc
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(areas, [0.025, 0.975])), abs=0.01)


@pytest.fixture
def far_and_near() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Centers, points next to them, and points far from all."""
    generator = torch.Generator().manual_seed(0)
    centers = 5 * torch.eye(4, 6).double()
    near = centers.repeat(20, 1) + 0.3 * torch.randn(80, 6, generator=generator).double()
    far = 5 * torch.randn(80, 6, generator=generator).double()
    return centers, near, far


def test_every_score_is_higher_for_known_images(far_and_near: tuple[torch.Tensor, ...]) -> None:
    centers, near, far = far_and_near
    logits = [harmonic_logits(x, centers, exponent=4).numpy() for x in (near, far)]
    distances = [squared_distance(x, centers).sqrt().numpy() for x in (near, far)]
    for name, score in LOGIT_SCORES.items():
        assert auroc(*map(score, logits)) > 0.9, name
    for name, score in DISTANCE_SCORES.items():
        assert auroc(*map(score, distances)) > 0.9, name
    assert all(getattr(outliers, name) is score for name, score in (LOGIT_SCORES | DISTANCE_SCORES).items())


def test_scores_are_their_formulas(far_and_near: tuple[torch.Tensor, ...]) -> None:
    centers, near, _ = far_and_near
    z = harmonic_logits(near, centers, exponent=4)
    d = squared_distance(near, centers).sqrt()
    np.testing.assert_allclose(np.exp(max_softmax(z.numpy())), z.softmax(1).amax(1).numpy())
    np.testing.assert_allclose(energy(z.numpy()), z.logsumexp(1).numpy())
    np.testing.assert_allclose(energy(z.numpy()), d.pow(-4).sum(1).log().numpy())
    first, second = d.sort(1).values[:, :2].T
    np.testing.assert_allclose(nearest_distance(d.numpy()), -first)
    np.testing.assert_allclose(distance_ratio(d.numpy()), -first / second)


def test_two_sure_images_do_not_tie() -> None:
    first, second = max_softmax([[50.0, 0.0], [60.0, 0.0]])
    assert first < second < 0
    assert np.isfinite(energy([[1e4, -1e4]])).all()


def test_a_ratio_of_nothing_to_nothing_decides_nothing() -> None:
    assert distance_ratio([[0.0, 0.0, 3.0], [0.0, 2.0, 3.0]]).tolist() == [-1, 0]


@pytest.mark.parametrize("steps", [None, 2.0])
def test_abstaining_answers_the_highest_scores_first(steps: float | None) -> None:
    scores, _ = two_sets(6, steps)
    correct = np.random.default_rng(0).random(len(scores)) < 0.7
    found = abstention_curve(correct, scores)
    assert found.thresholds.tolist() == sorted(set(scores), reverse=True)
    for threshold, coverage, accuracy in zip(*found, strict=True):
        answered = scores >= threshold
        assert coverage == pytest.approx(answered.mean())
        assert accuracy == pytest.approx(correct[answered].mean())
    assert found.coverage[-1] == 1


def test_a_score_that_knows_its_errors_leaves_them_out() -> None:
    correct = np.arange(10) < 7
    found = abstention_curve(correct, correct.astype(float))
    assert found.accuracy.tolist() == [1, 0.7]
    assert found.coverage.tolist() == [0.7, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auroc([], [1.0]), r"`inside` must hold one number per image.*got shape \(0,\)"),
        (lambda: auroc([1.0], [[1.0]]), r"`outside` must hold .* got shape \(1, 1\)"),
        (lambda: detection([1.0, np.nan], [1.0]), "got NaN"),
        (lambda: fpr_at_tpr([1.0], [0.0], 95), "`tpr` must be above 0 and at most 1, got 95"),
        (lambda: detection([1.0], [0.0], draws=0), "`draws` must be at least 1"),
        (lambda: nearest_distance([[-1.0, 2.0]]), "`distances` must not be negative, got -1.0"),
        (lambda: distance_ratio([[1.0]]), r"`distances` must have shape \(images, 2 classes or more\)"),
        (lambda: max_softmax([[np.nan, 1.0]]), "`logits` must be finite"),
        (lambda: abstention_curve([1, 0], [0.5, 0.6]), r"`correct` must be booleans of shape \(2,\)"),
        (lambda: abstention_curve([True], [0.5, 0.6]), r"got bool of \(1,\)"),
    ],
)
def test_bad_input_is_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
