"""The three theorems: the data are what they say, the measures agree with known answers, the verdicts can fail."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from harmax.functional import harmonic_loss
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.store import CellResult
from harmax_lab.toy import theory
from harmax_lab.toy.theory import EXPERIMENT, measures, separable
from harmax_lab.toy.theory.separable import ARMS, CROSS_ENTROPY, HARMONIC, TheoryCell, TheorySpec

SMALL = TheorySpec(seeds=(0, 1), samples=(24,), features=6, steps=500, test_samples=300)


def silent(fraction: float, message: str = "", /) -> None:
    pass


def compute(spec: TheorySpec, arm: str, seeds: tuple[int, ...] = (0,)) -> list[CellResult]:
    group = [TheoryCell(arm, spec.features, spec.samples[0], seed) for seed in seeds]
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
    linear = separable.margins(separable.scores_of("cross_entropy", points, weight, bias), target)
    assert linear.tolist() == [3.0, 8.0, 0.0]
    # The harmonic score is W x - |w|^2 / 2, with |w|^2 / 2 = 0.5 and 2.
    harmonic = separable.margins(separable.scores_of("harmonic", points, weight, bias), target)
    assert harmonic.tolist() == [4.5, 6.5, 1.5]
    assert theory.bound(4.0, math.sqrt(5), 1.5, 4) == pytest.approx(4 * math.sqrt(5) / 3)
    assert theory.bound(4.0, math.sqrt(5), 0.0, 4) == math.inf


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


GOOD = {
    "loss": 0.1,
    "test_loss": 0.2,
    "train_error": 0.0,
    "test_error": 0.01,
    "weight_norm": 3.0,
    "gradient_norm": 1e-14,
    "late": 1e-12,
    "slope": 0.0,
    "straightness": 0.999,
    "margin": 1.0,
    "bound": 0.5,
    "signed": 1e-12,
    "own": 1e-3,
    "mean": 0.1,
    "negative_mass": 0.0,
    "outside_hull": 0.0,
    "hull_distance": 0.0,
}
WORSE = {"late": 0.3, "slope": 4.0, "gradient_norm": 1e-4, "bound": 0.9, "test_error": 0.02}
# What one head's every run must show to break a claim that rests on an interval, or one run where it rests on all.
BREAKS: dict[str, tuple[str, dict[str, float], Callable[[int], bool]]] = {
    "harmonic_norm_finite": ("harmonic", {"late": 1e-3}, lambda seed: seed == 2),
    "cross_entropy_norm_grows": ("cross_entropy_bias", {"late": 1e-3}, lambda seed: seed == 2),
    "harmonic_has_smaller_bound": ("cross_entropy", {"bound": 0.4, "test_error": 0.001}, lambda seed: True),
    "bound_orders_gaps": ("harmonic", {"test_error": 0.03}, lambda seed: True),
    "convex_combination": ("harmonic_2", {"own": 0.3}, lambda seed: seed == 2),
    "signed_stationarity": ("harmonic_2", {"signed": 1e-3}, lambda seed: seed == 2),
}


def made_up(spec: TheorySpec) -> dict[TheoryCell, CellResult]:
    return {
        cell: CellResult(metrics={**GOOD, **WORSE} if cell.arm in CROSS_ENTROPY else dict(GOOD))
        for cell in separable.cells(spec)
    }


def verdicts_of(spec: TheorySpec, results: dict[TheoryCell, CellResult]) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def test_every_claim_can_hold() -> None:
    spec = EXPERIMENT.profiles["quick"]
    assert set(verdicts_of(spec, made_up(spec)).values()) == {REPRODUCED}


@pytest.mark.parametrize("claim", BREAKS)
def test_a_bad_run_breaks_its_claim_alone(claim: str) -> None:
    spec = EXPERIMENT.profiles["quick"]
    results = made_up(spec)
    arm, change, concerns = BREAKS[claim]
    for cell in results:
        if cell.arm == arm and concerns(cell.seed):
            results[cell] = CellResult(metrics={**results[cell].metrics, **change})
    verdicts = verdicts_of(spec, results)
    assert [name for name, verdict in verdicts.items() if verdict == NOT_REPRODUCED] == [claim]


def test_a_vacuous_bound_is_called_so() -> None:
    spec = EXPERIMENT.profiles["quick"]
    results = {
        cell: CellResult(metrics={**result.metrics, "bound": 4 * result.metrics["bound"]})
        for cell, result in made_up(spec).items()
    }
    verdicts = verdicts_of(spec, results)
    assert [name for name, verdict in verdicts.items() if verdict == NOT_REPRODUCED] == ["bound_says_something"]


def test_seeds_that_disagree_decide_nothing() -> None:
    spec = EXPERIMENT.profiles["full"]
    results = made_up(spec)
    for cell, result in results.items():
        if cell.arm == "harmonic" and cell.seed % 2:
            results[cell] = CellResult(metrics={**result.metrics, "bound": math.inf})
    assert verdicts_of(spec, results)["harmonic_has_smaller_bound"] == NOT_DECIDED


def test_too_few_steps_or_missing_cells_decide_nothing() -> None:
    short = EXPERIMENT.profiles["smoke"]
    assert set(verdicts_of(short, made_up(short)).values()) == {NOT_DECIDED}
    spec = EXPERIMENT.profiles["quick"]
    results = made_up(spec)
    del results[TheoryCell("harmonic_2", spec.features, spec.samples[0], 0)]
    undecided = [claim for claim, verdict in verdicts_of(spec, results).items() if verdict == NOT_DECIDED]
    assert set(undecided) == {claim.id for claim in EXPERIMENT.claims} - {"cross_entropy_norm_grows"}
