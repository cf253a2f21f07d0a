"""Claims about the theorems: each can hold, fail, and stay undecided."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor
from torch.nn.functional import one_hot

from harmax.analysis import parallelogram_loss
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, NOT_RUN, REPRODUCED, Verdict
from harmax_lab.kit.store import CellResult
from harmax_lab.toy.theory import EXPERIMENT, centers, proofs, separable, statements
from harmax_lab.toy.theory.proofs import own_derivative
from harmax_lab.toy.theory.separable import (
    BLOBS,
    CROSS_ENTROPY,
    DIGITS,
    GAUSSIAN,
    HARMONIC,
    TheoryCell,
    TheorySpec,
)

HARMONIC_RUN = {
    "classes": 4,
    "loss": 0.1,
    "test_loss": 0.2,
    "train_error": 0.0,
    "test_error": 0.01,
    "error_gap": 0.01,
    "loss_gap": 0.1,
    "weight_norm": 3.0,
    "early_norm": 3.0,
    "gradient_norm": 1e-14,
    "late": 1e-12,
    "slope": 0.0,
    "margin": 1.0,
    "bound": 0.5,
    "distance_bound": 0.6,
    "far_loss": 1.39,
    "right_states": 20,
    "improved_states": 0,
    "first_fall": -0.2,
    "last_fall": -0.01,
    "probability_change": 1e-15,
    "loss_change": 1e-15,
    "least_loss_change": 0.0,
    "center_distance": 0.05,
    "scaled_distance": 0.05,
    "nearer_members": 0.0,
    "direction": 0.99,
    "member_direction": 0.7,
    "closer_members": 0.0,
    "outside_points": 0.0,
    "change_outside_points": 0.3,
    "outside_means": 0.1,
    "signed": 1e-12,
    "own": 1e-3,
    "negative_mass": 0.01,
    "unsigned_mass": 0.02,
    "outside_hull": 0.0,
    "hull_distance": 0.0,
}
CROSS_ENTROPY_RUN = HARMONIC_RUN | {
    "late": 0.3,
    "slope": 4.0,
    "weight_norm": 15.0,
    "gradient_norm": 1e-4,
    "bound": 0.9,
    "distance_bound": math.inf,
    "far_loss": 1e-30,
    "improved_states": 20,
    "first_fall": 0.9,
    "last_fall": 0.9,
    "loss_change": 5.0,
    "least_loss_change": 0.4,
    "test_error": 0.02,
    "error_gap": 0.02,
    "loss_gap": 0.2,
    "center_distance": 6.0,
    "scaled_distance": 0.4,
    "outside_points": 0.3,
}


def made_up(spec: TheorySpec) -> dict[TheoryCell, CellResult]:
    """Return runs for which every claim holds, with a little of each seed's own."""

    def metrics(cell: TheoryCell) -> dict[str, Any]:
        if cell.data == GAUSSIAN:
            own, root = 1 + 0.001 * cell.seed, math.sqrt(cell.features)
            spreads = {"root": own, "fixed": 4 * own / root, "proportional": own * root / 4}
            return {
                "mean_square": 2 * own,
                "scatter": math.sqrt(2) * own / root,
                **{f"spread_{name}": value for name, value in spreads.items()},
            }
        found = CROSS_ENTROPY_RUN if cell.arm in CROSS_ENTROPY else HARMONIC_RUN
        return found | {"weight_norm": found["weight_norm"] * (1 + 0.001 * cell.seed)}

    return {cell: CellResult(metrics=metrics(cell)) for cell in separable.cells(spec)}


def changed(
    results: dict[TheoryCell, CellResult], change: Callable[[TheoryCell], dict[str, Any]]
) -> dict[TheoryCell, CellResult]:
    return {cell: CellResult(metrics={**result.metrics, **change(cell)}) for cell, result in results.items()}


def verdicts_of(spec: TheorySpec, results: dict[TheoryCell, CellResult]) -> dict[str, str]:
    """Return the verdicts that runs can turn."""
    verdicts = EXPERIMENT.summarize(spec, results).verdicts
    return {verdict.claim: verdict.verdict for verdict in verdicts if verdict.claim not in EXACT}


EXACT = {"derivative_of_own_class", "formula_of_centers", "parallelogram_loss_has_no_scale"}
QUICK = replace(EXPERIMENT.profiles["quick"], seeds=tuple(range(6)))  # the fewest for the interval of a median
NEVER_RUN = {
    "compression_is_interpretable",
    "parallelograms_help",
    "valuable_tool",
    "test_error_below_bound",
    "combinations_make_it_interpretable",
    "intrinsic_dimension",
    "softmax_is_to_blame",
}


def every_run(arm: str, *data: str) -> Callable[[TheoryCell], bool]:
    return lambda cell: cell.arm == arm and cell.data in (data or (BLOBS, DIGITS))


def one_run(arm: str) -> Callable[[TheoryCell], bool]:
    return lambda cell: cell.arm == arm and (cell.data, cell.seed, cell.samples) == (BLOBS, 2, 16)


def one_setting(arm: str, data: str = BLOBS, samples: int = 16) -> Callable[[TheoryCell], bool]:
    return lambda cell: (cell.arm, cell.data, cell.samples) == (arm, data, samples)


def gaussian(name: str, power: float) -> tuple[Callable[[TheoryCell], bool], Callable[[TheoryCell], dict[str, float]]]:
    return (lambda cell: cell.data == GAUSSIAN), (lambda cell: {name: (1 + 0.001 * cell.seed) * cell.features**power})


def to(**metrics: float) -> Callable[[TheoryCell], dict[str, float]]:
    return lambda cell: metrics


# Which runs are changed, to what, and the claim that then does not hold.
BREAKS: list[tuple[str, Callable[[TheoryCell], bool], Callable[[TheoryCell], dict[str, Any]]]] = [
    ("scale_invariant", one_run("harmonic_2"), to(loss_change=1e-3)),
    ("scale_invariant", one_run("harmonic"), to(probability_change=1e-3)),
    ("scale_invariant", one_run("cross_entropy"), to(least_loss_change=1e-9)),
    ("cross_entropy_has_no_minimum", one_run("cross_entropy"), to(late=1e-3)),
    ("cross_entropy_has_no_minimum", one_run("cross_entropy"), to(gradient_norm=0.0)),
    ("cross_entropy_has_no_minimum", one_run("cross_entropy"), to(far_loss=0.1)),
    ("larger_weights_lower_cross_entropy", one_run("cross_entropy"), to(improved_states=19)),
    ("harmonic_minimum_is_finite", one_run("harmonic"), to(late=1e-3)),
    ("harmonic_minimum_is_finite", one_run("harmonic"), to(gradient_norm=1e-3)),
    ("harmonic_minimum_is_finite", one_run("harmonic_2"), to(loss=1.4)),
    ("larger_weights_do_not_lower_harmonic_loss", one_run("harmonic"), to(improved_states=1)),
    ("norm_is_much_smaller", every_run("harmonic"), to(weight_norm=8.0)),
    ("tighter_bound", one_setting("harmonic", DIGITS, 50), to(bound=1.0)),
    ("bound_orders_gaps", every_run("harmonic"), to(error_gap=0.03)),
    ("weights_are_class_centers", one_setting("harmonic_2"), to(nearer_members=0.2)),
    ("convex_combination", one_setting("harmonic", DIGITS, 50), to(hull_distance=0.3)),
    ("cross_entropy_is_no_combination", every_run("cross_entropy", DIGITS), to(change_outside_points=1e-15)),
    ("signed_stationarity", one_run("harmonic_2"), to(signed=1e-3)),
    ("squared_distances_concentrate", *gaussian("scatter", -0.25)),
    ("squared_distances_concentrate", *gaussian("mean_square", 0.5)),
    ("root_exponent_keeps_spread", *gaussian("spread_root", 0.25)),
    ("root_exponent_keeps_spread", *gaussian("spread_fixed", 0.0)),
    ("root_exponent_keeps_spread", *gaussian("spread_proportional", 0.0)),
    ("other_classes_are_negligible", lambda cell: cell.arm in HARMONIC, to(negative_mass=0.4)),
    ("cross_entropy_points_to_class_averages", every_run("cross_entropy"), to(closer_members=0.6)),
]


def test_every_claim_can_hold() -> None:
    verdicts = verdicts_of(QUICK, made_up(QUICK))
    assert {claim for claim, verdict in verdicts.items() if verdict == NOT_RUN} == NEVER_RUN
    assert {verdict for claim, verdict in verdicts.items() if claim not in NEVER_RUN} == {REPRODUCED}


@pytest.mark.parametrize(("claim", "concerns", "change"), BREAKS)
def test_planted_runs_break_their_claim_alone(
    claim: str, concerns: Callable[[TheoryCell], bool], change: Callable[[TheoryCell], dict[str, Any]]
) -> None:
    results = changed(made_up(QUICK), lambda cell: change(cell) if concerns(cell) else {})
    verdicts = verdicts_of(QUICK, results)
    assert [name for name, verdict in verdicts.items() if verdict == NOT_REPRODUCED] == [claim]


def test_every_claim_can_be_broken() -> None:
    broken = {claim for claim, *_ in BREAKS} | {"bound_says_something"}
    assert broken == {claim.id for claim in EXPERIMENT.claims} - NEVER_RUN - EXACT


def without_runs(claim: str) -> Verdict:
    verdicts = EXPERIMENT.summarize(QUICK, {}).verdicts
    return next(verdict for verdict in verdicts if verdict.claim == claim)


def test_the_example_of_the_proof_is_at_rest_and_away_from_its_start() -> None:
    points, target, weight = proofs.example()
    moving = weight.clone().requires_grad_()
    proofs.loss_of(points, target, moving).backward()
    assert moving.grad is not None
    assert moving.grad.norm() < 1e-7
    assert (centers.class_means(points, target) - weight).norm(dim=1).max() > 0.05


def test_the_formula_of_the_derivative_is_exact_and_needs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = without_runs("derivative_of_own_class")
    assert found.verdict == NOT_REPRODUCED
    assert found.numbers["apart"] > 1

    def by_hand(points: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        written = own_derivative(points, target, weight)
        for k in range(len(weight)):
            away = weight[k] - points[target == k]
            written[k] += (2 * away / away.square().sum(1, keepdim=True)).sum(0)  # 1 - p in the place of -p
        return written

    monkeypatch.setattr(proofs, "own_derivative", by_hand)
    assert without_runs("derivative_of_own_class").verdict == REPRODUCED


def test_the_formula_of_the_centers_is_exact_and_needs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = without_runs("formula_of_centers")
    assert found.verdict == NOT_REPRODUCED
    assert found.numbers["apart"] > 0.1 > 1e-6 > found.numbers["apart_signed"]

    def signed(points: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        distance = (points[:, None] - weight).norm(dim=2)
        p = distance**-2 / (distance**-2).sum(1, keepdim=True)
        share = (one_hot(target) - p) / distance**2
        return share.T @ points / share.sum(0)[:, None]

    monkeypatch.setattr(proofs, "averages", signed)
    assert without_runs("formula_of_centers").verdict == REPRODUCED


def test_the_scale_of_parallelograms_is_exact_and_needs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert without_runs("parallelogram_loss_has_no_scale").verdict == REPRODUCED
    monkeypatch.setattr(statements, "parallelogram_loss", lambda a, b, c, d, scale: parallelogram_loss(a, b, c, d, 1))
    assert without_runs("parallelogram_loss_has_no_scale").verdict == NOT_REPRODUCED


def test_a_vacuous_bound_is_called_so() -> None:
    results = made_up(QUICK)
    large = changed(results, lambda cell: {"bound": 4 * results[cell].metrics.get("bound", 0.0)})
    verdicts = verdicts_of(QUICK, large)
    assert [name for name, verdict in verdicts.items() if verdict == NOT_REPRODUCED] == ["bound_says_something"]


@pytest.mark.parametrize(
    ("claim", "arms", "change"),
    [
        ("other_classes_are_negligible", HARMONIC, {"negative_mass": 0.4}),
        ("cross_entropy_points_to_class_averages", CROSS_ENTROPY, {"closer_members": 1.0}),
    ],
)
def test_what_is_usual_is_not_decided_by_one_data_set(
    claim: str, arms: tuple[str, ...], change: dict[str, Any]
) -> None:
    results = changed(made_up(QUICK), lambda cell: change if cell.data == DIGITS and cell.arm in arms else {})
    assert verdicts_of(QUICK, results)[claim] == NOT_DECIDED


@pytest.mark.parametrize(
    ("claim", "arm", "name", "values"),
    [
        ("tighter_bound", "harmonic", "bound", (0.5, math.inf)),
        ("norm_is_much_smaller", "harmonic", "weight_norm", (3.0, 11.0)),
        ("weights_are_class_centers", "harmonic", "nearer_members", (0.0, 0.1)),
        ("convex_combination", "harmonic", "hull_distance", (0.0, 0.02)),
        ("cross_entropy_is_no_combination", "cross_entropy", "change_outside_points", (0.0, 0.1)),
    ],
)
def test_seeds_that_disagree_decide_nothing(claim: str, arm: str, name: str, values: tuple[float, float]) -> None:
    spec = replace(EXPERIMENT.profiles["full"], samples=(16,))
    results = changed(made_up(spec), lambda cell: {name: values[cell.seed % 2]} if cell.arm == arm else {})
    assert verdicts_of(spec, results)[claim] == NOT_DECIDED


@pytest.mark.parametrize("arm", ["harmonic", "cross_entropy"])
def test_a_run_that_never_has_all_points_right_says_nothing_about_larger_weights(arm: str) -> None:
    empty = {"right_states": 0, "improved_states": 0, "first_fall": None, "last_fall": None}
    results = changed(made_up(QUICK), lambda cell: empty if one_run(arm)(cell) else {})
    verdicts = verdicts_of(QUICK, results)
    claims = {
        "harmonic": "larger_weights_do_not_lower_harmonic_loss",
        "cross_entropy": "larger_weights_lower_cross_entropy",
    }
    assert [name for name, verdict in verdicts.items() if verdict == NOT_DECIDED] == [claims[arm]]


def test_draws_that_disagree_decide_nothing() -> None:
    def change(cell: TheoryCell) -> dict[str, float]:
        tilt = cell.features ** (0.2 * (cell.seed - 2))
        names = ("scatter", "spread_root") if cell.data == GAUSSIAN else ()
        return {name: results[cell].metrics[name] * tilt for name in names}

    results = made_up(QUICK)
    verdicts = verdicts_of(QUICK, changed(results, change))
    found = {name for name, verdict in verdicts.items() if verdict == NOT_DECIDED}
    assert found == {"squared_distances_concentrate", "root_exponent_keeps_spread"}


def test_evidence_stands_beside_what_cannot_be_run() -> None:
    (found,) = (
        one for one in EXPERIMENT.summarize(QUICK, made_up(QUICK)).verdicts if one.claim == "test_error_below_bound"
    )
    assert found.verdict == NOT_RUN
    assert "below the right side in 18 of 18 runs" in found.sentence
    above = changed(
        made_up(QUICK), lambda cell: {"test_error": 0.9, "distance_bound": 0.01} if cell.samples == 50 else {}
    )
    (found,) = (one for one in EXPERIMENT.summarize(QUICK, above).verdicts if one.claim == "test_error_below_bound")
    assert "below the right side in 12 of 18 runs" in found.sentence


def test_few_seeds_short_runs_and_missing_cells_decide_nothing() -> None:
    short = EXPERIMENT.profiles["smoke"]
    verdicts = verdicts_of(short, made_up(short))
    assert {verdict for claim, verdict in verdicts.items() if claim not in NEVER_RUN} == {NOT_DECIDED}
    two = replace(QUICK, seeds=(0, 1))
    decided = {claim for claim, verdict in verdicts_of(two, made_up(two)).items() if verdict == REPRODUCED}
    facts = {"scale_invariant", "larger_weights_lower_cross_entropy", "larger_weights_do_not_lower_harmonic_loss"}
    assert decided == facts  # mathematical facts need one seed
    results = made_up(QUICK)
    del results[TheoryCell(BLOBS, "harmonic_2", QUICK.features, 16, 0)]
    kept = {claim for claim, verdict in verdicts_of(QUICK, results).items() if verdict == REPRODUCED}
    plain = {"norm_is_much_smaller", "tighter_bound", "cross_entropy_is_no_combination"}
    linear = {claim for claim in verdicts if claim.startswith("cross_entropy")} | {"larger_weights_lower_cross_entropy"}
    assert kept == plain | linear | {"squared_distances_concentrate", "root_exponent_keeps_spread"}
