"""The theorems: the data are what they say, and the measures agree with known answers."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from harmax.functional import harmonic_loss
from harmax_lab.kit.store import CellResult
from harmax_lab.toy import theory
from harmax_lab.toy.heads import initial_weight, margins
from harmax_lab.toy.theory import bounds, centers, distances, measures, scaling, separable
from harmax_lab.toy.theory.separable import (
    ARMS,
    BLOBS,
    DIGITS,
    GAUSSIAN,
    HARMONIC,
    TheoryCell,
    TheorySpec,
)

SMALL = TheorySpec(seeds=(0, 1), samples=(24,), features=6, steps=500, test_samples=300)


def silent(fraction: float, message: str = "", /) -> None:
    pass


def compute(spec: TheorySpec, arm: str, seeds: tuple[int, ...] = (0,), data: str = BLOBS) -> list[CellResult]:
    features, samples = (spec.features, spec.samples[0]) if data == BLOBS else (separable.PIXELS, spec.digits)
    group = [TheoryCell(data, arm, features, samples, seed) for seed in seeds]
    return [result for _, result in theory.run_cells(spec, group, silent)]


@cache
def converged(exponent: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return three overlapping blobs in the plane and centers at which autograd's gradient is zero."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(30) % 3
    means = 2 * separable.simplex(3, 2, generator)
    points = means[target] + torch.randn(30, 2, dtype=torch.float64, generator=generator)
    centers = means.clone().requires_grad_()
    for _ in range(1000):
        (gradient,) = torch.autograd.grad(harmonic_loss(points, centers, target, exponent=exponent), centers)
        with torch.no_grad():
            centers -= 2 * gradient
    assert gradient.norm() < 1e-12
    return points, target, centers.detach()


@pytest.mark.parametrize(("classes", "features"), [(2, 1), (3, 2), (4, 16)])
def test_means_are_unit_vectors_at_equal_distances(classes: int, features: int) -> None:
    means = separable.simplex(classes, features, torch.Generator().manual_seed(3))
    expected = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(means @ means.T, expected)


def test_too_many_classes_for_the_space_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        separable.simplex(4, 2, torch.Generator())


def test_blobs_are_separable_through_the_origin_however_large_the_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    means = separable.simplex(4, 16, generator)
    points, target = separable.draw_blobs(means, 2000, 1.0, 0.3, generator)
    scores = points @ means.T
    own = scores[torch.arange(2000), target]
    others = scores.scatter(1, target[:, None], -math.inf).amax(1)
    assert 0.3 <= (own - others).min() < 0.31
    assert torch.bincount(target).tolist() == [500] * 4
    # Without the rejection this noise would leave many points on the wrong side, so it is no empty promise.
    loose, target = separable.draw_blobs(means, 2000, 1.0, -math.inf, generator)
    assert ((loose @ means.T).argmax(1) != target).float().mean() > 0.2


def test_training_and_test_points_differ_and_every_head_sees_the_same() -> None:
    one, same = (separable.blobs_of(SMALL, 6, 24, 0) for _ in range(2))
    assert torch.equal(one.points, same.points)
    assert not torch.isin(one.points, one.test_points).any()
    assert not torch.equal(one.points, separable.blobs_of(SMALL, 6, 24, 1).points)


def test_margin_radius_and_bound_of_a_set_made_by_hand() -> None:
    points, target = torch.tensor([[3.0, 0.0], [0.0, 4.0], [2.0, 1.0]]), torch.tensor([0, 1, 0])
    weight, bias = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2)
    linear = margins(separable.scores_of("cross_entropy", points, weight, bias), target)
    assert linear.tolist() == [3.0, 8.0, 0.0]
    # The harmonic score is W x - |w|^2 / 2, with |w|^2 / 2 = 0.5 and 2.
    harmonic = margins(separable.scores_of("harmonic", points, weight, bias), target)
    assert harmonic.tolist() == [4.5, 6.5, 1.5]
    assert bounds.bound(4.0, math.sqrt(5), 1.5, 4) == pytest.approx(4 * math.sqrt(5) / 3)
    assert bounds.bound(4.0, math.sqrt(5), 0.0, 4) == math.inf


def test_a_cell_reports_the_bound_of_its_own_training_set() -> None:
    (result,) = compute(replace(SMALL, steps=100), "cross_entropy")
    points = separable.blobs_of(SMALL, 6, 24, 0).points
    metrics = result.metrics
    assert metrics["radius"] == pytest.approx(max(points.norm(dim=1).tolist()))
    expected = metrics["radius"] * metrics["weight_norm"] / (metrics["margin"] * math.sqrt(24))
    assert metrics["bound"] == pytest.approx(expected)


def test_harmonic_scores_choose_the_nearest_center() -> None:
    generator = torch.Generator().manual_seed(0)
    points, centers = (torch.randn(size, 5, generator=generator) for size in (200, 7))
    scores = separable.scores_of("harmonic", points, centers, torch.zeros(7))
    assert torch.equal(scores.argmax(1), torch.cdist(points, centers).argmin(1))


@pytest.mark.parametrize("exponent", [1.5, 2.0, 4.0])
def test_pull_gives_autograds_gradient_anywhere(exponent: float) -> None:
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(40, 5, dtype=torch.float64, generator=generator)
    centers = torch.randn(3, 5, dtype=torch.float64, generator=generator).requires_grad_()
    target = torch.arange(40) % 3
    (expected,) = torch.autograd.grad(harmonic_loss(points, centers, target, exponent=exponent), centers)
    centers = centers.detach()
    a = measures.pull(points, target, centers, exponent)
    torch.testing.assert_close(exponent / 40 * (a.sum(0)[:, None] * centers - a.T @ points), expected)
    assert expected.norm() > 0.01


def test_pull_survives_points_on_centers() -> None:
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    # The first center lies on its own point, the second on another class's.
    a = measures.pull(points, torch.tensor([0, 1, 1]), points[[0, 0]], 2.0)
    assert torch.isfinite(a).all()
    a = measures.pull(points, torch.tensor([0, 1, 2]), points, 2.0)
    assert torch.equal(a.diagonal(), torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("exponent", [2.0, 4.0])
def test_the_signed_equation_holds_where_the_gradient_is_zero_and_nowhere_near(exponent: float) -> None:
    points, target, centers = converged(exponent)
    there = measures.stationarity(points, target, centers, exponent)
    assert there.signed < 1e-10
    assert there.own > 0.05
    assert there.negative_mass > 0.05
    aside = measures.stationarity(points, target, centers + 0.1, exponent)
    assert aside.signed > 1e-2


def test_stationarity_does_not_change_with_units_or_origin() -> None:
    points, target, centers = converged(2.0)
    one = measures.stationarity(points, target, centers + 0.1, 2.0)
    other = measures.stationarity(1e3 * points + 7, target, 1e3 * (centers + 0.1) + 7, 2.0)
    np.testing.assert_allclose(one, other, rtol=1e-9)


def test_hull_distance_is_never_more_than_to_a_combination_of_members() -> None:
    generator = torch.Generator().manual_seed(0)
    members = torch.randn(32, 16, dtype=torch.float64, generator=generator)
    shares = torch.rand(32, dtype=torch.float64, generator=generator)
    inside = shares / shares.sum() @ members
    assert measures.hull_distance(members, inside) < 1e-9
    beyond = 3 * members[0]
    found = measures.hull_distance(members, beyond)
    assert 0.5 * (beyond - members[0]).norm() < found <= (beyond - members).norm(dim=1).min() + 1e-12


def test_growth_tells_a_logarithm_from_a_plateau() -> None:
    step = np.array(separable.recorded_steps(10_000)[1:])
    assert step[-1] == 10_000
    rising = measures.growth(step, 3 + 5 * np.log10(step))
    assert rising.slope == pytest.approx(5)
    assert rising.straightness == pytest.approx(1)
    assert rising.late == pytest.approx(5 / 18)
    assert abs(measures.growth(step, 4 - 3.0 / step**2).late) < 1e-5


def test_harmonic_stops_and_cross_entropy_goes_on() -> None:
    for arm in ARMS:
        (result,) = compute(SMALL, arm)
        assert result.metrics["train_error"] == 0
        if arm in HARMONIC:
            assert result.metrics["late"] < 0.02
            assert result.metrics["gradient_norm"] < 1e-6
            assert result.metrics["signed"] < 1e-5
            assert result.metrics["negative_mass"] > 0.05
        else:
            assert result.metrics["late"] > 0.2
            assert result.metrics["slope"] > 1
            assert result.metrics["gradient_norm"] > 1e-4


def test_a_seed_gives_the_same_numbers_alone_and_stacked() -> None:
    spec = replace(SMALL, steps=30)
    for arm in ARMS:
        stacked, (alone,) = compute(spec, arm, (0, 1, 2)), compute(spec, arm, (1,))
        np.testing.assert_array_equal(stacked[1].curves["weight_norm"], alone.curves["weight_norm"])
        assert stacked[1].metrics == alone.metrics


@pytest.mark.parametrize("arm", ["harmonic", "cross_entropy"])
def test_scaling_everything_leaves_harmonic_probabilities_alone(arm: str) -> None:
    data = separable.blobs_of(SMALL, 6, 24, 0)
    head = scaling.Head(arm, 2.5, data.points, data.target)
    weight, bias = initial_weight(4, 6, 0, torch.float64), torch.zeros(4, dtype=torch.float64)
    found = scaling.unit_change(head, weight, bias)
    if arm == "harmonic":
        assert found.loss_change < 1e-13
        assert found.probability_change < 1e-13
    else:
        assert found.least_loss_change > 0.005


def test_weights_are_scaled_up_only_where_all_points_are_right() -> None:
    points, target = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64), torch.arange(2)
    weights = torch.stack([0.1 * points, points, -points])
    biases, margin = torch.zeros(3, 2, dtype=torch.float64), torch.tensor([0.1, 1.0, -1.0])
    linear = scaling.growing(scaling.Head("cross_entropy", 2.0, points, target), weights, biases, margin)
    assert linear[:2] == (2, 2)
    # At a tenth of the points all points are right, and larger weights come closer to them: the sentence is false
    # there. On the points the loss is 0, and they only move away.
    nearly = torch.stack([0.1 * points, 0.999 * points])
    harmonic = scaling.growing(scaling.Head("harmonic", 2.0, points, target), nearly, biases[:2], margin[:2])
    assert harmonic[:2] == (2, 1)
    assert harmonic.first_fall is not None
    assert harmonic.first_fall > 0.5
    assert harmonic.last_fall is not None
    assert harmonic.last_fall < 0
    assert scaling.growing(scaling.Head("harmonic", 2.0, points, target), nearly, biases[:2], -margin[:2]) == (
        0,
        0,
        None,
        None,
    )


def test_infinite_weights_have_a_harmonic_loss_of_ln_K() -> None:
    data = separable.blobs_of(SMALL, 6, 24, 0)
    head = scaling.Head("harmonic", 2.5, data.points, data.target)
    weight = initial_weight(4, 6, 0, torch.float64)
    weight = weight / weight.norm(dim=1, keepdim=True)
    assert head.loss(weight, torch.zeros(4), 1e6) == pytest.approx(math.log(4), abs=1e-4)
    uneven = weight * torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    assert head.loss(uneven, torch.zeros(4), 1e6) > math.log(4) + 0.1


def test_centers_of_weights_with_known_places() -> None:
    points = torch.tensor([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]], dtype=torch.float64)
    target, means = torch.tensor([0, 0, 1, 1]), torch.tensor([[2.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
    on = centers.centers(points, target, means)
    assert on[:4] == (0.0, 0.0, 0.0, 1.0)
    assert on.closer_members == 0
    far = centers.centers(points, target, 3 * means)
    assert far.center_distance == pytest.approx(4)  # the spread of a class is 1
    assert far.scaled_distance == pytest.approx(0)
    assert far.nearer_members == 1
    turned = centers.centers(points, target, torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64))
    assert turned.direction == pytest.approx(0)
    assert turned.closer_members == 1


def test_descent_adds_only_combinations_of_the_data_to_cross_entropys_weights() -> None:
    (result,) = compute(replace(SMALL, steps=300, digits=30), "cross_entropy", data=DIGITS)
    assert result.metrics["change_outside_points"] < 1e-12
    assert 0.01 < result.metrics["outside_points"] < 0.5  # of the random start, some of which is still there
    assert result.metrics["outside_means"] > 0.05
    generator = torch.Generator().manual_seed(0)
    assert centers.outside(torch.randn(5, 64, generator=generator), torch.randn(20, 64, generator=generator)) > 0.5


def test_digits_are_balanced_and_the_test_has_other_images() -> None:
    data = separable.digits_of(50, 0)
    assert data.points.shape == (50, 64)
    assert torch.bincount(data.target).tolist() == [5] * 10
    assert len(data.test_points) == 1437 - 50
    assert torch.cdist(data.points, data.test_points).min() > 0
    assert not torch.equal(data.points, separable.digits_of(50, 1).points)


def test_distances_of_gaussian_points_scatter_as_theory_says() -> None:
    found = [distances.measure_pairs(TheoryCell(GAUSSIAN, "none", size, 4000, 0)).metrics for size in (16, 1024)]
    for size, metrics in zip((16, 1024), found, strict=True):
        assert metrics["mean_square"] == pytest.approx(2, rel=0.02)
        assert metrics["scatter"] == pytest.approx(math.sqrt(2 / size), rel=0.05)
    few, many = found
    assert few["spread_root"] == few["spread_fixed"] == few["spread_proportional"]
    assert many["spread_root"] == pytest.approx(few["spread_root"], rel=0.15)
    assert many["spread_fixed"] < 0.3 * few["spread_fixed"]
    assert many["spread_proportional"] > 3 * few["spread_proportional"]


def test_the_distance_margin_is_the_theorems() -> None:
    points, centers_KD = torch.tensor([[0.0, 0.0], [4.0, 0.0]]), torch.tensor([[1.0, 0.0], [4.0, 3.0]])
    assert bounds.distance_margin(points, torch.arange(2), centers_KD) == 0.0  # 5 - 1 and 3 - 3
    assert bounds.right_side(0.25, 100) == pytest.approx(0.25 + math.sqrt(math.log(20)) / 10)
