"""Calibration: bins as loops fill them, scores as scikit-learn has them, and a temperature that was planted."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss

from harmax import harmonic_logits
from harmax.analysis import bootstrap_interval
from harmax.analysis.calibration import (
    brier_score,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    reliability_curve,
    summarize_calibration,
)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def calibrated(images: int = 600, classes: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels drawn from their softmax: a classifier that is exactly as sure as it may be."""
    generator = np.random.default_rng(seed)
    z = 2 * generator.normal(size=(images, classes))
    return z, (softmax(z).cumsum(1) > generator.random((images, 1))).argmax(1)


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 100])
def test_bins_of_equal_width_are_those_of_loops_and_of_scikit_learn(bins: int) -> None:
    z, labels = calibrated()
    confidence, right = softmax(z).max(1), z.argmax(1) == labels
    found = reliability_curve(z, labels, bins=bins)
    error = 0.0
    for m in range(bins):
        inside = (confidence > m / bins) & (confidence <= (m + 1) / bins)
        assert found.counts[m] == inside.sum()
        if inside.any():
            assert found.accuracy[m] == pytest.approx(right[inside].mean())
            assert found.confidence[m] == pytest.approx(confidence[inside].mean())
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
        else:
            assert np.isnan(found.accuracy[m])
            assert np.isnan(found.confidence[m])
    assert expected_calibration_error(z, labels, bins=bins) == pytest.approx(error)
    accuracy, mean = calibration_curve(right, confidence, n_bins=bins)
    np.testing.assert_allclose(found.accuracy[found.counts > 0], accuracy)
    np.testing.assert_allclose(found.confidence[found.counts > 0], mean)


def test_a_confidence_on_an_edge_belongs_below_it() -> None:
    assert reliability_curve(np.zeros((3, 4)), [0, 1, 2], bins=4).counts.tolist() == [3, 0, 0, 0]
    sure = reliability_curve([[900.0, 0.0]], [0], bins=4)
    assert sure.counts.tolist() == [0, 0, 0, 1]
    assert sure.confidence[3] == 1


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_bins_of_equal_mass_share_the_images(bins: int) -> None:
    z, labels = calibrated(601)
    found = reliability_curve(z, labels, bins=bins, spacing="mass")
    assert found.counts.sum() == 601
    assert np.ptp(found.counts) <= 1
    assert (np.diff(found.confidence) > 0).all()
    confidence, right = softmax(z).max(1), z.argmax(1) == labels
    parts = np.split(np.argsort(confidence), np.cumsum(found.counts)[:-1])
    error = sum(len(part) / 601 * abs(right[part].mean() - confidence[part].mean()) for part in parts)
    assert expected_calibration_error(z, labels, bins=bins, spacing="mass") == pytest.approx(error)


@pytest.mark.parametrize("spacing", ["width", "mass"])
@pytest.mark.parametrize("bins", [4, None])
def test_the_order_of_images_does_not_matter_even_with_ties(spacing: str, bins: int | None) -> None:
    z, labels = calibrated()
    z = np.round(z)  # many equal confidences
    order = np.random.default_rng(1).permutation(len(z))
    first = reliability_curve(z, labels, bins=bins, spacing=spacing)
    for one, two in zip(first, reliability_curve(z[order], labels[order], bins=bins, spacing=spacing), strict=True):
        np.testing.assert_allclose(one, two)


@pytest.mark.parametrize("spacing", ["width", "mass"])
def test_the_sweep_takes_the_most_bins_whose_accuracy_rises(spacing: str) -> None:
    z, labels = calibrated(2000)
    found = reliability_curve(z, labels, bins=None, spacing=spacing)
    bins = len(found.counts)
    assert 2 <= bins < 100
    for count, rises in ((bins, True), (bins + 1, False)):
        accuracy = reliability_curve(z, labels, bins=count, spacing=spacing).accuracy
        assert bool((np.diff(accuracy[np.isfinite(accuracy)]) >= 0).all()) == rises


def test_the_sweep_ends_where_everything_is_right() -> None:
    z, _ = calibrated(300)
    assert len(reliability_curve(z, z.argmax(1), bins=None, spacing="mass").counts) == 200


def test_the_error_is_the_gap_that_was_planted() -> None:
    z, labels = calibrated(40000)
    assert expected_calibration_error(z, labels) < 0.01
    # Sure to 90 % and right half of the time.
    sure = np.log([[0.9, 0.1]] * 1000)
    for spacing in ("width", "mass"):
        for bins in (1, 15, None):
            found = expected_calibration_error(sure, np.arange(1000) % 2, bins=bins, spacing=spacing)
            assert found == pytest.approx(0.4)
    assert expected_calibration_error(3 * z, labels) > 0.1


def test_fewer_bins_open_fewer_gaps_by_chance() -> None:
    errors = {
        bins: [expected_calibration_error(*calibrated(300, seed=s), bins=bins) for s in range(20)] for bins in (100, 15)
    }
    errors[0] = [expected_calibration_error(*calibrated(300, seed=s), bins=None, spacing="mass") for s in range(20)]
    assert np.mean(errors[100]) > np.mean(errors[15]) > np.mean(errors[0]) > 0


def test_likelihood_and_brier_score_are_those_of_scikit_learn_and_of_loops() -> None:
    z, labels = calibrated()
    p = softmax(z)
    assert negative_log_likelihood(z, labels) == pytest.approx(log_loss(labels, p))
    misses = [sum((p[i, j] - (j == labels[i])) ** 2 for j in range(5)) for i in range(len(p))]
    assert brier_score(z, labels) == pytest.approx(np.mean(misses))
    assert brier_score([[800.0, -800.0]], [1]) == pytest.approx(2)
    assert negative_log_likelihood([[800.0, -800.0]], [1]) == pytest.approx(1600)


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_a_common_shift_of_an_images_logits_changes_nothing(shift: float) -> None:
    z, labels = calibrated()
    moved = z + shift * np.arange(len(z))[:, None] / len(z)
    for measure in (expected_calibration_error, negative_log_likelihood, brier_score, fit_temperature):
        assert measure(moved, labels) == pytest.approx(measure(z, labels), rel=1e-9)


@pytest.mark.parametrize("planted", [0.1, 1.0, 3.0, 40.0])
def test_a_planted_temperature_is_found(planted: float) -> None:
    z, labels = calibrated(20000)
    found = fit_temperature(planted * z, labels)
    assert found == pytest.approx(planted, rel=0.03)
    # The best to rounding, as a search that knows no derivative confirms.
    reference = minimize_scalar(
        lambda log_t: negative_log_likelihood(planted * z / np.exp(log_t), labels),
        bracket=(np.log(planted) - 0.1, np.log(planted) + 0.1),
    )
    assert np.log(found) == pytest.approx(reference.x, abs=1e-6)
    assert negative_log_likelihood(planted * z / found, labels) <= reference.fun + 1e-12


def test_a_temperature_calibrates_and_changes_no_decision() -> None:
    z, labels = calibrated(20000)
    sure = 3 * z
    cooled = sure / fit_temperature(sure[:10000], labels[:10000])
    assert expected_calibration_error(cooled[10000:], labels[10000:]) < 0.02
    assert expected_calibration_error(sure[10000:], labels[10000:]) > 0.1
    assert (cooled.argmax(1) == sure.argmax(1)).all()


def test_a_temperature_has_limits() -> None:
    z, _ = calibrated()
    assert fit_temperature(z, z.argmax(1)) == 0.01
    assert fit_temperature(z, z.argmin(1)) == 100
    assert fit_temperature(z, z.argmax(1), limits=(0.5, 2.0)) == 0.5
    assert fit_temperature(np.zeros((4, 3)), [0, 1, 2, 0]) == 100


def test_for_a_harmonic_head_a_temperature_divides_the_exponent() -> None:
    labels = np.arange(60) % 6
    w = torch.eye(6).double()
    x = w[labels] + 0.6 * torch.randn(60, 6, generator=torch.Generator().manual_seed(0)).double()
    z = harmonic_logits(x, w, exponent=12.0).numpy()
    found = fit_temperature(z, labels)
    assert 0.01 < found < 100
    again = harmonic_logits(x, w, exponent=12.0 / found).numpy()
    assert negative_log_likelihood(again, labels) == pytest.approx(negative_log_likelihood(z / found, labels))
    assert fit_temperature(again, labels) == pytest.approx(1)


def test_a_summary_holds_the_measures_with_intervals_that_narrow() -> None:
    z, labels = calibrated(2000)
    z = 2 * z
    found, few = summarize_calibration(z, labels, draws=400), summarize_calibration(z[:100], labels[:100], draws=400)
    assert found.accuracy.estimate == pytest.approx((z.argmax(1) == labels).mean())
    assert found.nll.estimate == pytest.approx(negative_log_likelihood(z, labels))
    assert found.brier.estimate == pytest.approx(brier_score(z, labels))
    assert found.ece.estimate == pytest.approx(expected_calibration_error(z, labels))
    for one, two in zip(found, few, strict=True):
        assert one.low <= one.estimate <= one.high
        assert one.high - one.low < 0.6 * (two.high - two.low)
    right = (z.argmax(1) == labels).astype(float)
    reference = bootstrap_interval(right, statistic="mean", draws=400)
    assert (found.accuracy.low, found.accuracy.high) == pytest.approx((reference.low, reference.high), abs=0.006)
    assert summarize_calibration(z, labels, draws=400) == found
    assert summarize_calibration(z, labels, draws=400, seed=1) != found
    mass = summarize_calibration(z, labels, bins=9, spacing="mass", draws=2).ece.estimate
    assert mass == pytest.approx(expected_calibration_error(z, labels, bins=9, spacing="mass"))


def test_the_interval_of_a_calibration_error_covers_the_truth() -> None:
    z, labels = calibrated(200000, seed=99)
    truth = expected_calibration_error(1.5 * z, labels)
    covered = 0
    for seed in range(40):
        z, labels = calibrated(800, seed=seed)
        ece = summarize_calibration(1.5 * z, labels, draws=200, seed=seed).ece
        covered += ece.low <= truth <= ece.high
    assert covered >= 34  # of 40 at a level of 0.95


def test_the_interval_of_a_calibration_error_leaves_room_below_for_what_chance_added() -> None:
    for seed in range(10):
        ece = summarize_calibration(*calibrated(300, seed=seed), draws=200).ece
        assert 0 <= ece.low < 0.8 * ece.estimate
        assert ece.estimate - ece.low > ece.high - ece.estimate


@pytest.mark.parametrize(
    ("logits", "labels", "options", "message"),
    [
        (np.ones(3), [0], {}, r"shape \(images, 2 classes or more\), got \(3,\)"),
        (np.ones((0, 3)), [], {}, "2 classes or more"),
        (np.ones((2, 1)), [0, 0], {}, "2 classes or more"),
        (np.array([[0.0, -np.inf], [0.5, 0.5]]), [0, 1], {}, "NaN or infinity in 1 of 2 rows"),
        (np.ones((2, 2)), [0, 2], {}, "`labels` must be .*0 to 1, got 0 to 2"),
        (np.ones((2, 2)), [-1, 0], {}, "`labels` must be .*0 to 1, got -1 to 0"),
        (np.ones((2, 2)), [0, 1, 1], {}, r"shape \(2,\)"),
        (np.ones((2, 2)), [0.0, 1.0], {}, "whole numbers"),
        (np.ones((2, 2)), [0, 1], {"bins": 0}, "`bins` must be at least 1"),
        (np.ones((2, 2)), [0, 1], {"spacing": "equal"}, "one of width, mass, got 'equal'"),
        (np.ones((2, 2)), [0, 1], {"draws": 0}, "`draws` must be at least 1"),
        (np.ones((2, 2)), [0, 1], {"level": 95}, "`level` must be between 0 and 1"),
    ],
)
def test_bad_input_is_refused(logits: np.ndarray, labels: list[int], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        summarize_calibration(logits, labels, **options)


def test_limits_of_a_temperature_are_checked() -> None:
    with pytest.raises(ValueError, match="`limits` must be"):
        fit_temperature(*calibrated(), limits=(0.0, 1.0))


def test_a_weight_of_an_image_means_copies_of_it() -> None:
    generator = np.random.default_rng(0)
    z, labels, weights = generator.normal(size=(60, 3)), generator.integers(3, size=60), generator.integers(4, size=60)
    copied = fit_temperature(z.repeat(weights, axis=0) + 0.5, labels.repeat(weights))
    assert fit_temperature(z + 0.5, labels, weights=weights) == pytest.approx(copied, rel=1e-9)
    for wrong in (weights[:-1], -weights, 0 * weights):
        with pytest.raises(ValueError, match="`weights` must be 60 finite numbers"):
            fit_temperature(z, labels, weights=wrong)
