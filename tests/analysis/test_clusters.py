"""Silhouettes as scikit-learn has them; planted cosets are found, and noise is held against the right chance."""

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from harmax.analysis import best_cosets, coset_partitions, silhouette, symmetric_group

S4 = symmetric_group(4)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def planted(partition: int, width: float = 0.1, features: int = 16) -> np.ndarray:
    """Return points around one random place a coset."""
    labels = coset_partitions(4)[partition].labels
    return noise(24, features, seed=1)[labels] + width * noise(24, features, seed=2)


@pytest.mark.parametrize("features", [1, 2, 16])
def test_silhouette_agrees_with_scikit_learn(features: int) -> None:
    generator = np.random.default_rng(features)
    for classes in (2, 5, 29):
        points = generator.normal(size=(30, features)) + 100
        labels = np.append(np.arange(classes), generator.integers(classes, size=30 - classes))
        assert silhouette(points, labels) == pytest.approx(silhouette_score(points, labels), abs=1e-9)


def test_a_point_alone_in_its_class_counts_zero() -> None:
    points, labels = [[0.0], [1.0], [5.0], [20.0]], [7, 7, 7, -2]
    assert silhouette(points, labels) == pytest.approx(silhouette_score(points, labels))
    assert silhouette([[0.0], [0.0], [5.0]], ["a", "a", "b"]) == pytest.approx(2 / 3)
    assert silhouette(np.ones((4, 2)), [0, 0, 1, 1]) == 0


def test_silhouette_does_not_depend_on_place_scale_or_direction() -> None:
    points, labels = noise(24, 3), np.arange(24) % 4
    turned = 1e-3 * points @ np.linalg.qr(noise(3, 3))[0] + 7
    assert silhouette(turned, labels) == pytest.approx(silhouette(points, labels))


def test_every_planted_partition_is_found() -> None:
    for at, expected in enumerate(coset_partitions(4)):
        found = best_cosets(planted(at), S4, components=None, draws=0)
        assert (found.subgroup, found.side) == (expected.subgroup, expected.side)
        np.testing.assert_array_equal(found.labels, expected.labels)
        assert found.score == pytest.approx(silhouette(planted(at), expected.labels))


def test_cosets_of_the_klein_four_group_stand_out_in_the_plane() -> None:
    labels = next(one.labels for one in coset_partitions(4) if one.subgroup.kind == "Klein four V4")
    corners = np.stack([np.cos(np.arange(6) * np.pi / 3), np.sin(np.arange(6) * np.pi / 3)], 1)
    # Larger than the hexagon in no single direction, so that the plane of two components is the hexagon's.
    points = np.concatenate([corners[labels], 0.1 * noise(24, 14)], 1)
    found = best_cosets(points, S4, draws=199)
    assert found.subgroup.name == "Klein four V4 (normal)"
    assert found.side == "both"
    assert found.p_value == 1 / 200
    assert found.score > 0.8 > found.null[0.99]
    assert best_cosets(points, S4, components=None, draws=0).score < found.score


def test_points_may_come_in_any_order() -> None:
    order = np.random.default_rng(5).permutation(24)
    straight = best_cosets(planted(20), S4, draws=0)
    mixed = best_cosets(planted(20)[order], S4[order], draws=0)
    assert (mixed.subgroup, mixed.side) == (straight.subgroup, straight.side)
    assert mixed.score == pytest.approx(straight.score)
    np.testing.assert_array_equal(mixed.labels, straight.labels[order])


def test_scores_of_all_partitions_agree_with_scikit_learn() -> None:
    points = noise(24, 16)
    found = best_cosets(points, S4, components=None, draws=0)
    expected = [silhouette_score(points, one.labels) for one in coset_partitions(4)]
    np.testing.assert_allclose(found.scores, expected)
    assert found.score == pytest.approx(max(expected))
    assert found.p_value == 1
    assert np.isnan(list(found.null.values())).all()


def test_the_null_is_the_best_score_of_shuffled_points() -> None:
    points = noise(24, 3)
    found = best_cosets(points, S4, components=None, draws=300, seed=1)
    generator = np.random.default_rng(99)
    by_hand = [best_cosets(points[generator.permutation(24)], S4, components=None, draws=0).score for _ in range(300)]
    for level in (0.5, 0.95):
        assert found.null[level] == pytest.approx(np.quantile(by_hand, level), abs=0.03)
    assert found.p_value == pytest.approx((1 + sum(score >= found.score for score in by_hand)) / 301, abs=0.1)


def test_chance_gives_small_p_values_rarely() -> None:
    p_values = np.array([best_cosets(noise(24, 16, seed=seed), S4, draws=99).p_value for seed in range(200)])
    assert 0.3 < np.mean(p_values <= 0.5) < 0.7
    assert np.mean(p_values <= 0.05) < 0.11


def test_the_same_seed_gives_the_same_null() -> None:
    one, same, other = (best_cosets(noise(24, 4), S4, draws=50, seed=seed) for seed in (3, 3, 4))
    assert one.null == same.null
    assert one.null != other.null


def test_points_in_one_place_have_no_cosets() -> None:
    found = best_cosets(np.full((24, 4), 0.1), S4, draws=20)
    assert (found.score, found.p_value) == (0, 1)


def test_other_groups_work_too() -> None:
    s3 = symmetric_group(3)
    found = best_cosets(np.eye(3)[s3[:, 0]] + 0.01 * noise(6, 3), s3, draws=20)
    assert found.subgroup.order == 2
    assert found.side == "left"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: best_cosets(noise(23, 4), S4), "`points` must hold 24 points.*got 23"),
        (lambda: best_cosets(noise(23, 4), S4[1:]), "all 24 permutations, each once, got 23"),
        (lambda: best_cosets(noise(24, 4), S4[[0, *range(23)]]), "got 24 of which 23 are different"),
        (lambda: best_cosets(noise(24, 4), S4 + 1), "count from 0"),
        (lambda: best_cosets(noise(24, 4) * np.nan, S4), "NaN or infinity in 24 of 24 rows"),
        (lambda: best_cosets(noise(24, 4), S4, draws=-1), "`draws` must not be negative"),
        (lambda: best_cosets(noise(2, 4), symmetric_group(2)), "`permutations` must have at least 3.*got 2"),
        (lambda: silhouette(noise(4, 2), [0, 0, 0, 0]), "2 to 3 classes, got 1"),
        (lambda: silhouette(noise(4, 2), [0, 1, 2, 3]), "2 to 3 classes, got 4"),
        (lambda: silhouette(noise(4, 2), [[0, 1, 2, 3]]), r"`labels` must have shape \(4,\)"),
    ],
)
def test_bad_input_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
