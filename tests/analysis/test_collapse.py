"""Neural collapse: nothing left at a planted simplex, the formulas as loops write them anywhere else."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from harmax.analysis import collapse as module
from harmax.analysis.collapse import class_means, nearest_mean, neural_collapse


def simplex(classes: int, features: int, seed: int = 0) -> np.ndarray:
    """Corners of a regular simplex around 0, turned at random."""
    corners = np.eye(classes) - 1 / classes
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(features, features)))[0]
    return np.pad(corners, ((0, 0), (0, features - classes))) @ turn


def cloud(images: int = 240, classes: int = 4, features: int = 7, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    means = 3 * generator.normal(size=(classes, features)) + 1
    return means[labels] + generator.normal(size=(images, features)) * np.linspace(0.3, 1.5, features), labels


@pytest.mark.parametrize(("classes", "features"), [(2, 2), (4, 4), (10, 64)])
@pytest.mark.parametrize("kind", ["linear", "centers"])
def test_nothing_is_left_at_collapse(classes: int, features: int, kind: str) -> None:
    corners, labels = simplex(classes, features), np.arange(6 * classes) % classes
    where = 5 + 2 * corners
    weights = where if kind == "centers" else 0.3 * corners
    found = neural_collapse(where[labels], labels, weights=weights, kind=kind, predicted=labels)
    assert np.isnan(found.center_distance) == (kind == "linear")
    np.testing.assert_allclose([number for number in found if not np.isnan(number)], 0, atol=1e-7)


@pytest.mark.parametrize("block", [4096, 7])
def test_the_measures_are_their_formulas(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    x, labels = cloud()
    weights = np.random.default_rng(1).normal(size=(4, 7))
    predicted = (x @ weights.T).argmax(1)
    found = neural_collapse(x, labels, weights=weights, predicted=predicted)

    means = np.stack([x[labels == c].mean(0) for c in range(4)])
    middle = x.mean(0)
    within, between = np.zeros((7, 7)), np.zeros((7, 7))
    for row, label in zip(x, labels, strict=True):
        within += np.outer(row - means[label], row - means[label]) / len(x)
    for mean in means:
        between += np.outer(mean - middle, mean - middle) / 4
    assert found.within_between == pytest.approx(np.trace(within @ np.linalg.pinv(between, rcond=1e-10)) / 4)
    for rows, equinorm, equiangular, wide in (
        (means - middle, found.equinorm_means, found.equiangular_means, found.simplex_means),
        (weights, found.equinorm_weights, found.equiangular_weights, found.simplex_weights),
    ):
        lengths = [np.sqrt(row @ row) for row in rows]
        cosines = [rows[i] @ rows[j] / lengths[i] / lengths[j] for i in range(4) for j in range(4) if i != j]
        assert equinorm == pytest.approx(np.std(lengths) / np.mean(lengths))
        assert equiangular == pytest.approx(np.std(cosines))
        assert wide == pytest.approx(np.mean([abs(cosine + 1 / 3) for cosine in cosines]))
    one, two = weights / np.sqrt((weights**2).sum()), (means - middle) / np.sqrt(((means - middle) ** 2).sum())
    assert found.self_duality == pytest.approx(((one - two) ** 2).sum())
    nearest = cdist(x, means).argmin(1)
    assert found.disagreement == pytest.approx((nearest != predicted).mean())
    assert 0.1 < found.disagreement < 0.9


def test_spread_within_classes_is_measured_against_the_simplex() -> None:
    # Noise of variance v along each of R = C - 1 directions, corners at variance 1/C each: v R C / C.
    classes, features, deviation = 5, 5, 0.1
    labels = np.arange(50000) % classes
    noise = deviation * np.random.default_rng(0).normal(size=(len(labels), features))
    found = neural_collapse(simplex(classes, features)[labels] + noise, labels)
    assert found.within_between == pytest.approx(deviation**2 * (classes - 1), rel=0.03)
    twice = neural_collapse(simplex(classes, features)[labels] + 2 * noise, labels)
    assert twice.within_between == pytest.approx(4 * found.within_between, rel=0.01)


def test_every_class_counts_alike_whatever_its_size() -> None:
    x, labels = cloud()
    more = np.concatenate([np.arange(len(x)), np.repeat(np.flatnonzero(labels == 2), 5)])
    one, two = neural_collapse(x, labels), neural_collapse(x[more], labels[more])
    np.testing.assert_allclose(one, two)


@pytest.mark.parametrize("kind", ["linear", "centers"])
def test_turning_and_scaling_everything_changes_nothing(kind: str) -> None:
    x, labels = cloud()
    weights = class_means(x, labels) + np.random.default_rng(1).normal(size=(4, 7))
    predicted = labels[::-1].copy()
    turn = 1e-3 * np.linalg.qr(np.random.default_rng(2).normal(size=(7, 7)))[0]
    one = neural_collapse(x, labels, weights=weights, kind=kind, predicted=predicted)
    two = neural_collapse(x @ turn, labels, weights=weights @ turn, kind=kind, predicted=predicted)
    np.testing.assert_allclose(one, two, rtol=1e-8)


def test_centers_are_points_and_may_lie_anywhere() -> None:
    x, labels = cloud()
    means = class_means(x, labels)
    on = neural_collapse(x, labels, weights=means, kind="centers")
    assert on.self_duality == pytest.approx(0, abs=1e-12)
    assert on.center_distance == pytest.approx(0, abs=1e-12)
    spread = np.sqrt(np.square(means - means.mean(0)).sum(1).mean())
    aside = neural_collapse(x, labels, weights=means + spread * np.eye(7)[0], kind="centers")
    assert aside.self_duality == pytest.approx(0, abs=1e-12)  # the same shape
    assert aside.center_distance == pytest.approx(1)  # elsewhere
    moved = neural_collapse(x + 100, labels, weights=means + 100, kind="centers")
    np.testing.assert_allclose(moved, on, atol=1e-9)
    # Read as directions, points that lie far from 0 are all alike.
    assert neural_collapse(x + 100, labels, weights=means + 100).self_duality > 1
    assert neural_collapse(x, labels, weights=-(means - means.mean(0))).self_duality == pytest.approx(4)


def test_what_was_not_asked_for_is_nan() -> None:
    found = neural_collapse(*cloud())
    asked = {"within_between", "equinorm_means", "equiangular_means", "simplex_means"}
    assert {name for name, number in found._asdict().items() if not np.isnan(number)} == asked


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_of_other_precision(dtype: type) -> None:
    x, labels = cloud()
    x = x.astype(dtype)
    np.testing.assert_allclose(neural_collapse(x, labels), neural_collapse(x.astype(np.float64), labels))


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_nearest_mean_is_that_of_brute_force(monkeypatch: pytest.MonkeyPatch, offset: float) -> None:
    monkeypatch.setattr(module, "BLOCK", 50)
    x, labels = cloud()
    means = class_means(x, labels)
    np.testing.assert_array_equal(nearest_mean(x + offset, means + offset), cdist(x, means).argmin(1))
    assert nearest_mean([[0.0]], [[1.0], [-1.0]]).tolist() == [0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "center"}, "`kind` must be one of linear, centers, got 'center'"),
        ({"features": np.ones(4)}, r"`features` must have shape \(images, features\), got \(4,\)"),
        ({"features": np.ones((240, 3))}, "`features` must have class means that differ"),
        ({"features": np.full((240, 3), np.nan)}, "must be finite"),
        ({"labels": np.zeros(240, dtype=int)}, "`labels` must have 2 or more classes.*got 1 of 1"),
        ({"labels": 2 * (np.arange(240) % 2)}, "`labels` must have .*without gaps, got 2 of 3"),
        ({"labels": np.arange(240) % 3 - 1}, "`labels` must not be negative, got -1"),
        ({"labels": [0, 1]}, r"shape \(240,\)"),
        ({"weights": np.ones((3, 7))}, r"`weights` must have shape \(4, 7\).* got \(3, 7\)"),
        ({"weights": np.ones((4, 7)), "kind": "centers"}, "`weights` must not be all equal"),
        ({"predicted": [0]}, r"`predicted` must have shape \(240,\)"),
    ],
)
def test_bad_input_is_refused(changed: dict, message: str) -> None:
    x, labels = cloud()
    arguments = {"features": x, "labels": labels} | changed
    with pytest.raises(ValueError, match=message):
        neural_collapse(arguments.pop("features"), arguments.pop("labels"), **arguments)


def test_means_of_another_layer_are_refused() -> None:
    with pytest.raises(ValueError, match="the 7 features of `features`, got 3"):
        nearest_mean(cloud()[0], np.eye(3))
