"""Shapes that are known are found: circles, lattices, family trees, classes; and noise is not taken for one."""

from collections import deque

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import silhouette_score

from harmax.analysis import circle_fit, grouping, lattice_fit, roundness, tree_distances, tree_fit
from harmax.analysis.arrays import rank_correlation, ranks

PRIME = 31
RESIDUES = np.arange(PRIME)
GRID = np.stack(np.divmod(np.arange(25), 5), 1)
# A complete binary tree, five generations.
DEPTH = np.array([int(np.log2(node)) for node in range(1, 32)])
PARENT = np.arange(1, 32) // 2 - 1


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def moved(points: np.ndarray, scale: float = 3.0) -> np.ndarray:
    """Return the points turned into 16 dimensions, scaled and shifted."""
    basis = np.linalg.qr(noise(16, 16, seed=9))[0][: points.shape[1]]
    return scale * points @ basis + noise(16, seed=8)


def wave(frequency: int, radius: float = 1.0) -> np.ndarray:
    angle = 2 * np.pi * frequency * RESIDUES / PRIME
    return radius * np.stack([np.cos(angle), np.sin(angle)], 1)


@pytest.mark.parametrize("components", [2, None])
@pytest.mark.parametrize("frequency", [1, 5, 15])
def test_a_circle_gives_its_frequency_and_radius_back(frequency: int, components: int | None) -> None:
    found = circle_fit(moved(wave(frequency, radius=2.0)), RESIDUES, PRIME, components=components)
    assert found.frequency == frequency
    assert found.radius == pytest.approx(6)
    assert found.residual == pytest.approx(0, abs=1e-12)
    assert found.roundness == pytest.approx(0, abs=1e-7)
    assert found.spectrum.shape == (15,)
    np.testing.assert_allclose(np.delete(found.spectrum, frequency - 1), 0, atol=1e-12)


def test_a_noisy_circle_in_16_dimensions_leaves_the_share_of_its_noise() -> None:
    points = moved(wave(5), scale=1.0) + 0.1 * noise(PRIME, 16)
    space = circle_fit(points, RESIDUES, PRIME, components=None)
    assert (space.frequency, circle_fit(points, RESIDUES, PRIME).frequency) == (5, 5)
    assert space.radius == pytest.approx(1, abs=0.1)
    assert space.residual == pytest.approx(0.16 / 1.16, abs=0.03)
    assert circle_fit(points, RESIDUES, PRIME).residual < 0.05
    assert 0 < space.roundness < 0.2


def test_a_second_circle_outside_the_plane_shows_in_the_whole_space_only() -> None:
    points = moved(np.concatenate([wave(5, 2.0), wave(3)], 1))
    plane, space = (circle_fit(points, RESIDUES, PRIME, components=c) for c in (2, None))
    assert (plane.frequency, space.frequency) == (5, 5)
    assert plane.residual == pytest.approx(0, abs=1e-12)
    assert space.residual == pytest.approx(1 / 5)
    assert space.spectrum[2] == pytest.approx(1 / 5)


def test_noise_is_no_circle() -> None:
    found = circle_fit(noise(PRIME, 16), RESIDUES, PRIME)
    assert found.residual > 0.5
    assert found.roundness > 0.2
    # A round cloud whose residues are shuffled is round, but no function of the residues.
    shuffled = circle_fit(wave(5), np.random.default_rng(1).permutation(PRIME), PRIME)
    assert shuffled.residual > 0.5
    assert shuffled.roundness == pytest.approx(0, abs=1e-7)


def test_an_ellipse_is_explained_but_not_round() -> None:
    found = circle_fit(moved(wave(4) * [3.0, 1.0], scale=1.0), RESIDUES, PRIME)
    assert (found.frequency, found.residual) == (4, pytest.approx(0, abs=1e-12))
    assert found.radius == pytest.approx(np.sqrt((9 + 1) / 2))
    assert found.roundness == pytest.approx(roundness(wave(1) * [3.0, 1.0]))
    assert found.roundness > 0.3


def test_some_residues_in_any_order_do_as_well() -> None:
    some = np.random.default_rng(3).permutation(PRIME)[:12]
    found = circle_fit(moved(wave(7))[some], some, PRIME, components=None)
    assert (found.frequency, found.radius) == (7, pytest.approx(3))
    assert found.residual == pytest.approx(0, abs=1e-12)


def test_points_that_are_all_the_same_are_no_circle_and_no_lattice() -> None:
    found = circle_fit(np.full((PRIME, 4), 0.1), RESIDUES, PRIME)
    assert (found.radius, found.residual, found.roundness) == (0, 1, np.inf)
    grid = lattice_fit(np.full((25, 4), 0.1), GRID)
    assert grid.residual == 1
    assert np.isnan([grid.angle, grid.length_ratio]).all()


@pytest.mark.parametrize("components", [2, None])
def test_an_affine_lattice_gives_its_axes_back(components: int | None) -> None:
    axes = np.array([[2.0, 0.0], [0.5, np.sqrt(0.75)]])
    found = lattice_fit(moved(GRID @ axes), GRID, components=components)
    assert found.residual == pytest.approx(0, abs=1e-12)
    assert found.angle == pytest.approx(60)
    assert found.length_ratio == pytest.approx(0.5)
    np.testing.assert_allclose(np.linalg.norm(found.axes, axis=1), [6, 3])


def test_a_bent_lattice_leaves_the_share_of_its_bend() -> None:
    flat = GRID - GRID.mean(0)
    bend = np.square(flat[:, :1]) - np.square(flat[:, :1]).mean()
    points = moved(np.concatenate([flat, 0.5 * bend], 1))
    share = np.square(0.5 * bend).sum() / (np.square(0.5 * bend).sum() + np.square(flat).sum())
    assert lattice_fit(points, GRID, components=None).residual == pytest.approx(share)
    assert lattice_fit(points, GRID).residual == pytest.approx(0, abs=1e-12)
    assert lattice_fit(noise(25, 16), GRID, components=None).residual > 0.7


def test_a_lattice_folded_along_one_axis_has_no_angle() -> None:
    found = lattice_fit(moved(GRID[:, :1].astype(float)), GRID)
    assert found.residual == pytest.approx(0, abs=1e-12)
    assert found.length_ratio == pytest.approx(0, abs=1e-9)
    assert np.isnan(found.angle)


def walked(parent: np.ndarray) -> np.ndarray:
    """Return the steps between nodes by walking the tree."""
    beside: dict[int, set[int]] = {node: set() for node in range(len(parent))}
    for node, above in enumerate(parent):
        if above >= 0:
            beside[node].add(above)
            beside[above].add(node)
    steps = np.full((len(parent),) * 2, np.inf)
    for start in beside:
        steps[start, start], queue = 0, deque([start])
        while queue:
            node = queue.popleft()
            for other in beside[node]:
                if np.isinf(steps[start, other]):
                    steps[start, other] = steps[start, node] + 1
                    queue.append(other)
    return steps


def test_tree_distances_agree_with_a_walk() -> None:
    np.testing.assert_array_equal(tree_distances(DEPTH, PARENT), walked(PARENT))
    # Without a root there are two trees, and the order of the nodes is free.
    order = np.random.default_rng(0).permutation(np.arange(1, 31))
    place = {node: at for at, node in enumerate(order)}
    parent = np.array([place.get(PARENT[node], -1) for node in order])
    steps = tree_distances(DEPTH[order], parent)
    np.testing.assert_array_equal(steps, walked(parent))
    assert np.isinf(steps).any()


def family(spread: float = 0.4) -> np.ndarray:
    """Return a tree drawn as one does: one row per generation, children below their parents."""
    across = np.zeros(31)
    for node in range(1, 31):
        side = 1 if node % 2 else -1
        across[node] = across[PARENT[node]] + side * spread ** DEPTH[node]
    return np.stack([across, 2.0 * DEPTH], 1)


def test_a_drawn_family_tree_is_recognized() -> None:
    found = tree_fit(moved(family()), DEPTH, PARENT)
    assert found.generations > 0.7
    assert found.along_axis == pytest.approx(1)
    assert found.siblings == 1
    assert found.siblings_by_chance == pytest.approx((2 * 1 + 4 / 3 + 8 / 7 + 16 / 15) / 30)
    assert found.line == pytest.approx(1)
    # In rows of their own, generations hide how far apart cousins are.
    assert found.distance_correlation < 0.3


def test_steps_at_right_angles_keep_the_distances_of_the_tree() -> None:
    points = np.zeros((31, 31))
    for node in range(1, 31):
        points[node] = points[PARENT[node]] + np.eye(31)[node]
    found = tree_fit(points, DEPTH, PARENT, components=None)
    assert found.distance_correlation == pytest.approx(1)
    assert found.siblings == 1
    assert tree_fit(points, DEPTH, PARENT).distance_correlation < 0.9


def test_rings_around_the_root_are_recognized() -> None:
    order = np.concatenate([np.arange(2**d) for d in range(5)])
    angle = 2 * np.pi * (order + 0.5) / 2.0**DEPTH
    rings = DEPTH[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    found = tree_fit(moved(rings), DEPTH, PARENT)
    assert found.outward == pytest.approx(1)
    assert found.along_axis < 0.3
    assert found.generations == pytest.approx(0, abs=1e-9)
    assert found.line == pytest.approx(0.5)
    assert found.distance_correlation > 0.6


def test_random_places_show_no_tree() -> None:
    found = [tree_fit(noise(31, 16, seed=seed), DEPTH, PARENT, components=None) for seed in range(20)]
    assert np.mean([one.generations for one in found]) == pytest.approx(4 / 30, abs=0.03)
    assert np.mean([one.siblings for one in found]) == pytest.approx(found[0].siblings_by_chance, abs=0.05)
    assert np.mean([one.outward for one in found]) == pytest.approx(0, abs=0.15)
    assert np.mean([one.distance_correlation for one in found]) == pytest.approx(0, abs=0.1)
    assert np.mean([one.line for one in found]) < 0.9


def test_nodes_in_one_place_give_chance() -> None:
    found = tree_fit(np.full((31, 4), 0.1), DEPTH, PARENT)
    assert found.siblings == found.siblings_by_chance
    assert (found.generations, found.along_axis, found.outward, found.distance_correlation) == (0, 0, 0, 0)


def test_a_small_tree_has_no_generation_to_lie_on_a_line() -> None:
    assert np.isnan(tree_fit(family()[:7], DEPTH[:7], PARENT[:7]).line)


def clusters(width: float) -> tuple[np.ndarray, np.ndarray]:
    classes = np.arange(40) % 5
    return moved(4 * wave(1)[classes * 6] + width * noise(40, 2)), classes


def test_tight_classes_are_told_from_loose_ones() -> None:
    tight, loose = (grouping(*clusters(width)) for width in (0.05, 5.0))
    assert tight.between > 0.99
    assert tight.silhouette > 0.9
    assert tight.distance_ratio < 0.05
    assert tight.purity == 1
    assert loose.between < 0.6
    assert loose.distance_ratio > 0.5
    assert loose.purity < 0.7
    assert tight.purity_by_chance == pytest.approx(7 / 39)


def test_random_points_group_by_chance() -> None:
    found = [grouping(noise(40, 16, seed=seed), np.arange(40) % 5, components=None) for seed in range(20)]
    assert np.mean([one.between for one in found]) == pytest.approx(4 / 39, abs=0.01)
    assert np.mean([one.purity for one in found]) == pytest.approx(7 / 39, abs=0.05)
    assert np.mean([one.distance_ratio for one in found]) == pytest.approx(1, abs=0.02)


def test_grouping_takes_the_silhouette_of_scikit_learn_in_plane_and_space() -> None:
    points, classes = noise(40, 16), np.array(list("abcde") * 8)
    expected = silhouette_score(points, classes)
    assert grouping(points, classes, components=None).silhouette == pytest.approx(expected)
    assert grouping(points, classes).silhouette != pytest.approx(expected)


def test_classes_that_fall_into_one_point_each() -> None:
    classes = np.arange(40) % 5
    found = grouping(moved(wave(1)[classes * 6]), classes)
    assert (found.between, found.distance_ratio) == (pytest.approx(1), pytest.approx(0, abs=1e-12))
    assert found.silhouette == pytest.approx(1)
    constant = grouping(np.ones((40, 3)), classes)
    assert (constant.between, constant.silhouette, constant.distance_ratio) == (0, 0, 1)
    assert constant.purity == constant.purity_by_chance


def test_measures_do_not_depend_on_place_scale_or_direction() -> None:
    flat = noise(31, 3) * [3, 2, 1]
    for measure in (
        lambda x: np.array(circle_fit(x, RESIDUES, PRIME)[2:4]),
        lambda x: np.array(circle_fit(x, RESIDUES, PRIME, components=None)[2:4]),
        lambda x: np.array(lattice_fit(x[:25], GRID)[:3]),
        lambda x: np.array(tree_fit(x, DEPTH, PARENT)),
        lambda x: np.array(tree_fit(x, DEPTH, PARENT, components=None)),
        lambda x: np.array(grouping(x, RESIDUES % 4)),
    ):
        np.testing.assert_allclose(measure(moved(flat, scale=1e-3)), measure(flat), rtol=1e-6)


def test_ranks_and_their_correlation_agree_with_scipy() -> None:
    first, second = np.random.default_rng(0).integers(6, size=(2, 50))
    assert rank_correlation(first, second) == pytest.approx(spearmanr(first, second).statistic)
    assert rank_correlation(first, first) == pytest.approx(1)
    assert rank_correlation(first, np.ones(50)) == 0
    np.testing.assert_array_equal(ranks([3.0, 1.0, 3.0, -np.inf]), [3.5, 2, 3.5, 1])


def broken(points: np.ndarray) -> np.ndarray:
    points = points.copy()
    points[3, 1] = np.nan
    return points


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: circle_fit(broken(wave(1)), RESIDUES, PRIME), "`points` must be finite.* 1 of 31 rows"),
        (lambda: circle_fit(wave(1)[:3], RESIDUES[:3], PRIME), "at least 4 points, got 3"),
        (lambda: circle_fit(wave(1), RESIDUES[:-1], PRIME), r"`residues` must have shape \(31,\)"),
        (lambda: circle_fit(wave(1), RESIDUES / 2, PRIME), "`residues` must be whole numbers"),
        (lambda: circle_fit(wave(1), RESIDUES + 1, PRIME), "`residues` must be 0 to 30, got 1 to 31"),
        (lambda: circle_fit(wave(1), RESIDUES % 2, 2), "`modulus` must be at least 3"),
        (lambda: lattice_fit(noise(25, 3), GRID[:, :1]), r"`coordinates` must .*shape \(25, 2\), got \(25, 1\)"),
        (lambda: lattice_fit(noise(25, 3), GRID * [1, 0]), "must span a plane"),
        (lambda: lattice_fit(broken(noise(25, 3)), GRID), "NaN or infinity"),
        (lambda: tree_fit(family(), DEPTH + 1, PARENT[::-1]), "`depth` must grow by 1 from parent to child"),
        (lambda: tree_fit(family(), DEPTH, PARENT + 20), "`parent` must be -1 to 30"),
        (lambda: tree_fit(family(), DEPTH[:4], PARENT), r"`depth` must have shape \(31,\)"),
        (lambda: grouping(noise(4, 2), [0, 0, 0, 0]), "into 2 to 3 classes, got 1"),
        (lambda: grouping(noise(4, 2), [0, 1, 2, 3]), "into 2 to 3 classes, got 4"),
        (lambda: grouping(noise(4, 2), [0, 1]), r"`classes` must have shape \(4,\)"),
        (lambda: grouping(noise(1, 2), [0]), "at least 2 points"),
    ],
)
def test_bad_input_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
