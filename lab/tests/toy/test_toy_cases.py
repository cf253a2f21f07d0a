"""Fig. 1 b, c: the anchors come back, and the verdicts can fail."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.store import CellResult
from harmax_lab.toy import heads, toy_training
from harmax_lab.toy.toy_cases import EXPERIMENT
from harmax_lab.toy.toy_claims import FLOOR
from harmax_lab.toy.toy_training import POINTS, ToyCell, ToySpec, points_of, recorded_steps


def compute(spec: ToySpec, case: int, arm: str) -> CellResult:
    cell = ToyCell(case, arm, spec.seeds[0])
    ((_, result),) = toy_training.run_cells(spec, [cell], lambda fraction, message="": None)
    return replace(result, metrics=toy_training.measure(spec, cell, result))


def test_cross_entropy_is_torchs() -> None:
    logits = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = torch.arange(5)
    torch.testing.assert_close(heads.cross_entropy(logits, target), functional.cross_entropy(logits, target))


def test_cross_entropy_keeps_small_losses() -> None:
    logits = torch.tensor([[30.0, 0.0], [0.0, 30.0]])
    assert heads.cross_entropy(logits, torch.arange(2)).item() == pytest.approx(math.exp(-30), rel=1e-5)


def test_every_arm_starts_from_the_same_weights() -> None:
    spec = ToySpec(steps=1, grid_size=3)
    starts = [compute(spec, 2, arm).curves["weight_norm"][0] for arm in toy_training.ARMS[2]]
    assert len(set(starts)) == 1
    other = compute(replace(spec, seeds=(1,)), 2, "harmonic").curves["weight_norm"][0]
    assert other != starts[0]


def test_a_seed_gives_the_same_numbers_alone_and_stacked() -> None:
    spec = ToySpec(seeds=(0, 1, 2), steps=50, grid_size=3)
    for arm in toy_training.ARMS[2]:
        cells = [ToyCell(2, arm, seed) for seed in spec.seeds]
        stacked = dict(toy_training.run_cells(spec, cells, lambda fraction, message="": None))
        alone = compute(replace(spec, seeds=(1,)), 2, arm)
        np.testing.assert_array_equal(stacked[cells[1]].curves["loss"], alone.curves["loss"])


def test_harmonic_regions_belong_to_the_nearest_weight() -> None:
    result = compute(ToySpec(steps=30, grid_size=20), 2, "harmonic")
    low, high = result.arrays["grid_extent"]
    y, x = np.meshgrid(np.linspace(low, high, 21), np.linspace(low, high, 20), indexing="ij")
    distance = np.linalg.norm(np.stack([x, y], -1)[:, :, None] - result.arrays["weight"], axis=-1)
    nearest = np.sort(distance, -1)
    clear = nearest[..., 1] - nearest[..., 0] > 1e-4
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(result.arrays["grid_class"][clear], distance.argmin(-1)[clear])
    assert (result.arrays["grid_probability"] >= 1 / 5).all()


@pytest.mark.parametrize("case", POINTS)
def test_harmonic_weights_land_on_the_points(case: int) -> None:
    result = compute(ToySpec(steps=1000, grid_size=3), case, "harmonic")
    assert result.metrics["weight_norm"] == pytest.approx(2, abs=1e-5)
    assert result.metrics["weight_distance"] < 1e-5
    assert result.metrics["loss"] < 1e-10
    assert result.metrics["below_0.0001"] < 1000
    assert result.metrics["smallest_loss"] < 1e-10
    np.testing.assert_allclose(result.arrays["weight"], POINTS[case], atol=1e-5)


@pytest.mark.slow
def test_amsgrad_holds_case_2_at_the_bar_for_all_the_steps() -> None:
    result = compute(ToySpec(grid_size=3), 2, "harmonic_amsgrad")
    assert result.metrics["loss"] < 1e-10
    assert result.metrics["weight_distance"] < 1e-5
    assert result.metrics["late_largest_loss"] < 1e-10


@pytest.mark.parametrize(("case", "norm", "loss"), [(1, 6.55, 2.1e-6), (2, 20.5, 0.322)])
def test_cross_entropy_without_a_bias_gives_the_papers_numbers(case: int, norm: float, loss: float) -> None:
    result = compute(ToySpec(grid_size=3), case, "cross_entropy")
    assert result.metrics["weight_norm"] == pytest.approx(norm, abs=0.05)
    assert result.metrics["loss"] == pytest.approx(loss, rel=0.05)
    assert result.metrics["norm_growth"] > result.metrics["norm_growth_before"] > 0.02
    assert result.metrics["red_point_right"] == {1: None, 2: False}[case]


def test_a_bias_separates_case_2() -> None:
    spec = ToySpec(steps=2000, grid_size=3)
    assert compute(spec, 2, "cross_entropy").metrics["accuracy"] == 0.8
    biased = compute(spec, 2, "cross_entropy_bias")
    assert biased.metrics["accuracy"] == 1
    assert biased.metrics["loss"] < FLOOR / 2


def test_waits_count_from_the_last_time_a_level_is_passed() -> None:
    spec, cell = ToySpec(steps=40), ToyCell(1, "harmonic", 0)
    curves = {
        "step": np.array([0, 10, 20, 30, 40]),
        "loss": np.array([1.0, 0.05, 0.5, 0.05, 0.005]),
        "weight_norm": np.array([1.0, 1.0, 1.5, 1.995, 2.0]),
        "weight_distance": np.zeros(5),
    }
    points = points_of(1).numpy()
    found = toy_training.measure(
        spec, cell, CellResult(curves, {"points": points, "weight": points, "bias": np.zeros(2, dtype=np.float32)})
    )
    assert [found[f"below_{level:g}"] for level in toy_training.LEVELS] == [30, 40, None, None]
    assert found["wait"] == pytest.approx(np.log10([30, 40, 40, 40]).mean())  # never: the whole training
    assert found["norm_settled"] == 30
    assert found["late_norm_change"] == pytest.approx(0.25)
    assert (found["norm_growth"], found["norm_growth_before"]) == (0.5, 0.5)


def planted(cell: ToyCell, **changes: Any) -> CellResult:
    """Return a run as the paper describes it, with a little of each seed's own; `changes` replace curves or weights."""
    step, points, pace = np.array(recorded_steps(10_000)), points_of(cell.case).numpy(), 1 + 0.02 * cell.seed
    harmonic, bias = cell.arm.startswith("harmonic"), np.zeros(len(points), dtype=np.float32)
    if harmonic:
        loss, norm, weight = np.exp(-step / (50 * pace)), 2 - np.exp(-step / (100 * pace)), points
    else:
        loss, norm = 1 / (1 + np.square(step / (20 * pace))), np.power(1 + step, 0.3) / pace
        weight = np.float32(5) * points + np.float32(0.5)
    if cell.case == 2 and cell.arm == "cross_entropy":
        loss = loss + FLOOR + 1e-5
    if cell.arm == "cross_entropy_bias" and cell.case == 2:
        bias[toy_training.RED] = 2.5
    found = {"loss": np.maximum(loss, 1e-13), "norm": norm, "weight": weight, "bias": bias} | changes
    distance = np.full(len(step), np.linalg.norm(found["weight"] - points, axis=1).max())
    return CellResult(
        {"step": step, "loss": found["loss"], "weight_norm": found["norm"], "weight_distance": distance},
        {"points": points, "weight": found["weight"], "bias": found["bias"]},
    )


def verdicts_of(spec: ToySpec, results: dict[ToyCell, CellResult]) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def runs(spec: ToySpec, change: Callable[[ToyCell], dict[str, Any]] = lambda cell: {}) -> dict[ToyCell, CellResult]:
    return {cell: planted(cell, **change(cell)) for cell in toy_training.cells(spec)}


FULL = replace(EXPERIMENT.profiles["full"], seeds=tuple(range(10)))
STEP = np.array(recorded_steps(10_000))
SPIKE = np.where(STEP == 10_000, 1e-5, 1e-13)
# What is changed, for which cases and head, and the claims that then do not hold.
BREAKS: dict[str, tuple[tuple[int, ...], str, dict[str, Any], set[str]]] = {
    "cross-entropy falls faster": (
        (1,),
        "cross_entropy",
        {"loss": np.exp(-STEP / 5)},
        {"loss_falls_faster", "loss_and_norm_converge_faster"},
    ),
    "cross-entropy's norm settles": (
        (1,),
        "cross_entropy",
        {"norm": np.minimum(1 + STEP / 10, 3.0)},
        {"loss_and_norm_converge_faster", "norms_of_case_1"},
    ),
    "cross-entropy's norm slows down": ((2,), "cross_entropy", {"norm": 3 - 50 / (50 + STEP)}, {"norms_of_case_2"}),
    "the harmonic norm drifts in case 1": (
        (1,),
        "harmonic",
        {"norm": 2 + STEP / 1e5},
        {"norms_of_case_1"},
    ),
    "the harmonic norm drifts in case 2": ((2,), "harmonic", {"norm": 2 + STEP / 1e5}, {"norms_of_case_2"}),
    "cross-entropy goes below its floor": ((2,), "cross_entropy", {"loss": 0.2 + 0 * STEP}, {"high_loss_plateau"}),
    "cross-entropy's loss still falls": (
        (2,),
        "cross_entropy",
        {"loss": FLOOR + 100 / (1 + STEP)},
        {"high_loss_plateau"},
    ),
    "the harmonic loss stops early": (
        (2,),
        "harmonic",
        {"loss": np.maximum(np.exp(-STEP / 50), 2.5e-6)},
        {"reaches_machine_precision", "precise_at_last_step"},
    ),
    "harmonic weights miss the points": (
        (1, 2),
        "harmonic",
        {"weight": None},
        {"weights_are_the_points", "precise_at_last_step", "red_point_is_classified"},
    ),
    "a bias does not help": ((2,), "cross_entropy_bias", {"bias": np.zeros(5, dtype=np.float32)}, {"bias_separates"}),
    "a spike at the last step": ((2,), "harmonic", {"loss": SPIKE}, {"precise_at_last_step"}),
    "a spike of AMSGrad": ((2,), "harmonic_amsgrad", {"loss": SPIKE}, {"spikes_are_adams"}),
}


def test_every_claim_can_hold() -> None:
    assert set(verdicts_of(FULL, runs(FULL)).values()) == {REPRODUCED}


@pytest.mark.parametrize("name", BREAKS)
def test_planted_runs_break_their_claims_alone(name: str) -> None:
    cases, arm, change, broken = BREAKS[name]

    def changed(cell: ToyCell) -> dict[str, Any]:
        if cell.case not in cases or cell.arm != arm:
            return {}
        return {"weight": points_of(cell.case).numpy()[::-1].copy()} if change == {"weight": None} else change

    verdicts = verdicts_of(FULL, runs(FULL, changed))
    assert {claim for claim, verdict in verdicts.items() if verdict == NOT_REPRODUCED} == broken


def test_every_claim_can_be_broken() -> None:
    assert set().union(*(broken for *_, broken in BREAKS.values())) == {claim.id for claim in EXPERIMENT.claims}


def test_weights_that_are_the_points_up_to_a_factor_are_not_less_interpretable() -> None:
    """Where cross-entropy's weights are the points times a factor, the comparison does not count them as farther."""

    def changed(cell: ToyCell) -> dict[str, Any]:
        return {"weight": 4 * points_of(cell.case).numpy()} if cell.arm == "cross_entropy" else {}

    assert verdicts_of(FULL, runs(FULL, changed))["weights_are_the_points"] != REPRODUCED


def test_one_bad_seed_of_many_does_not_break_a_claim_about_almost_all_runs() -> None:
    slow = {"loss": np.maximum(np.exp(-STEP / 50), 2.5e-6)}

    def changed(count: int) -> Callable[[ToyCell], dict[str, Any]]:
        return lambda cell: slow if (cell.case, cell.arm) == (2, "harmonic") and cell.seed < count else {}

    assert verdicts_of(FULL, runs(FULL, changed(1)))["reaches_machine_precision"] == REPRODUCED
    assert verdicts_of(FULL, runs(FULL, changed(2)))["reaches_machine_precision"] == NOT_REPRODUCED


def test_seeds_that_disagree_decide_nothing() -> None:
    def changed(cell: ToyCell) -> dict[str, Any]:
        fast = cell.case == 1 and cell.arm == "cross_entropy" and cell.seed % 2
        return {"loss": np.exp(-STEP / 25)} if fast else {}

    verdicts = verdicts_of(FULL, runs(FULL, changed))
    assert verdicts["loss_falls_faster"] == verdicts["loss_and_norm_converge_faster"] == NOT_DECIDED


def test_few_seeds_short_runs_and_missing_cells_decide_nothing() -> None:
    for spec in (replace(FULL, seeds=(0, 1)), replace(FULL, steps=5000)):
        assert set(verdicts_of(spec, runs(spec)).values()) == {NOT_DECIDED}
    three = replace(FULL, seeds=(0, 1, 2))
    shares = {claim for claim, verdict in verdicts_of(three, runs(three)).items() if verdict == NOT_DECIDED}
    assert shares == {"reaches_machine_precision", "red_point_is_classified"}
    results = runs(FULL)
    del results[ToyCell(2, "cross_entropy_bias", 0)]
    verdicts = verdicts_of(FULL, results)
    assert [name for name, verdict in verdicts.items() if verdict == NOT_DECIDED] == ["bias_separates"]
