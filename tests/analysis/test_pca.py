"""Principal components: as scikit-learn has them, the same every time, and sane where there is nothing to find."""

import numpy as np
import pytest
from sklearn.decomposition import PCA as Reference

from harmax.analysis import explained_variance, participation_ratio, pca, project


def cloud(points: int = 31, features: int = 16, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(points, features)) * np.linspace(3, 0.1, features) + 5


def rotation(features: int, seed: int = 1) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(features, features)))[0]


@pytest.mark.parametrize(("points", "features"), [(31, 16), (5, 16), (40, 2), (7, 1), (2, 3)])
def test_agrees_with_scikit_learn(points: int, features: int) -> None:
    x = cloud(points, features)
    found, reference = pca(x), Reference(svd_solver="full").fit(x)
    np.testing.assert_allclose(found.mean, reference.mean_)
    np.testing.assert_allclose(found.variances, reference.explained_variance_, atol=1e-12)
    np.testing.assert_allclose(found.ratio, reference.explained_variance_ratio_, atol=1e-12)
    rank = min(points - 1, features)
    overlap = np.abs((found.components * reference.components_).sum(1))[:rank]
    np.testing.assert_allclose(overlap, 1)
    for count in (1, 2, 3):
        expected = reference.explained_variance_ratio_[:count].sum()
        assert explained_variance(x, count) == pytest.approx(expected)
    sides = np.sign((found.components * reference.components_).sum(1))[:2]
    expected_plane = reference.transform(x)[:, :2] * sides
    np.testing.assert_allclose(project(x)[:, : expected_plane.shape[1]], expected_plane, atol=1e-12)


def test_components_are_orthonormal_sorted_and_do_not_flip() -> None:
    x = cloud()
    found = pca(x)
    np.testing.assert_allclose(found.components @ found.components.T, np.eye(16), atol=1e-12)
    assert (np.diff(found.variances) <= 0).all()
    largest = np.take_along_axis(found.components, np.abs(found.components).argmax(1)[:, None], 1)
    assert (largest > 0).all()
    # The same cloud in another order, and mirrored at its mean, has the same axes.
    for other in (x[::-1], 2 * x.mean(0) - x):
        np.testing.assert_allclose(pca(other).components[:5], found.components[:5], atol=1e-9)


@pytest.mark.parametrize("scale", [1e-150, 1e-9, 1.0, 1e9, 1e150])
def test_shares_do_not_depend_on_place_scale_or_direction(scale: float) -> None:
    x = cloud()
    moved = scale * (x @ rotation(16) + 2)
    np.testing.assert_allclose(explained_variance(moved), explained_variance(x), rtol=1e-9)
    np.testing.assert_allclose(participation_ratio(moved), participation_ratio(x), rtol=1e-9)


def test_a_plane_in_space_is_explained_by_two_components_alone() -> None:
    x = cloud()[:, :2] @ rotation(16)[:2]
    assert explained_variance(x, 1) < 0.9
    assert explained_variance(x, 2) == pytest.approx(1, abs=1e-12)
    assert 1 < participation_ratio(x) <= 2


def test_shares_stay_within_bounds_and_beyond_the_rank() -> None:
    x = cloud()
    shares = [explained_variance(x, count) for count in range(1, 40)]
    assert all(0 < share <= 1 for share in shares)
    assert shares == sorted(shares)
    assert shares[15:] == [1.0] * len(shares[15:])


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8])
def test_constant_points_leave_nothing_out_and_use_no_direction(value: float) -> None:
    x = np.full((31, 3), value)
    assert explained_variance(x) == 1
    assert participation_ratio(x) == 0
    assert not pca(x).ratio.any()
    assert not project(x).any()


def test_participation_counts_equal_directions() -> None:
    for count in (1, 3, 7):
        x = np.concatenate([np.eye(count), -np.eye(count)])
        assert participation_ratio(x) == pytest.approx(count)


def test_a_plane_has_two_coordinates_even_of_points_on_a_line() -> None:
    plane = project([[1.0], [2.0], [6.0]])
    np.testing.assert_allclose(plane, [[-2, 0], [-1, 0], [3, 0]])
    assert not np.signbit(plane[:, 1]).any()


def test_points_are_seen_along_axes_found_on_others() -> None:
    early, late = cloud(seed=1), cloud(seed=2)
    axes = pca(late)
    np.testing.assert_allclose(project(early, 3, fitted=axes), (early - late.mean(0)) @ axes.components[:3].T)
    np.testing.assert_allclose(project(late, 2, fitted=axes), project(late, 2), atol=1e-12)
    with pytest.raises(ValueError, match="16 features"):
        project(early[:, :4], fitted=axes)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([1.0, 2.0], r"shape \(points, features\), got \(2,\)"),
        (np.zeros((2, 3, 4)), r"got \(2, 3, 4\)"),
        (np.zeros((3, 0)), r"got \(3, 0\)"),
        (np.zeros((0, 3)), "at least 2 points, got 0"),
        ([[1.0, 2.0]], "at least 2 points, got 1"),
        ([[1.0, np.nan], [0.0, 1.0], [np.inf, 0.0]], "NaN or infinity in 2 of 3 rows"),
    ],
)
def test_bad_points_are_refused(points: object, message: str) -> None:
    for measure in (pca, explained_variance, participation_ratio, project):
        with pytest.raises(ValueError, match=message):
            measure(points)


@pytest.mark.parametrize("components", [0, -1, 1.5])
def test_a_number_of_components_starts_at_one(components: int) -> None:
    with pytest.raises(ValueError, match="`components` must be"):
        explained_variance(cloud(), components)
