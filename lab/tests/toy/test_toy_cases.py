"""Fig. 1 b, c: the anchors come back, and the verdicts can fail."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.store import CellResult
from harmax_lab.toy import heads, toy_cases
from harmax_lab.toy.toy_cases import EXPERIMENT, FLOOR, POINTS, ToyCell, ToySpec


def compute(spec: ToySpec, case: int, arm: str) -> CellResult:
    cell = ToyCell(case, arm, spec.seeds[0])
    ((_, result),) = toy_cases.run_cells(spec, [cell], lambda fraction, message="": None)
    return result


def test_cross_entropy_is_torchs() -> None:
    logits = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = torch.arange(5)
    torch.testing.assert_close(heads.cross_entropy(logits, target), functional.cross_entropy(logits, target))


def test_cross_entropy_keeps_small_losses() -> None:
    logits = torch.tensor([[30.0, 0.0], [0.0, 30.0]])
    assert heads.cross_entropy(logits, torch.arange(2)).item() == pytest.approx(math.exp(-30), rel=1e-5)


def test_every_arm_starts_from_the_same_weights() -> None:
    spec = ToySpec(steps=1, grid_size=3)
    starts = [compute(spec, 2, arm).curves["weight_norm"][0] for arm in toy_cases.ARMS[2]]
    assert len(set(starts)) == 1
    other = compute(replace(spec, seeds=(1,)), 2, "harmonic").curves["weight_norm"][0]
    assert other != starts[0]


def test_a_seed_gives_the_same_numbers_alone_and_stacked() -> None:
    spec = ToySpec(seeds=(0, 1, 2), steps=50, grid_size=3)
    for arm in toy_cases.ARMS[2]:
        cells = [ToyCell(2, arm, seed) for seed in spec.seeds]
        stacked = dict(toy_cases.run_cells(spec, cells, lambda fraction, message="": None))
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
    assert result.metrics["first_precise_step"] < 1000
    np.testing.assert_allclose(result.arrays["weight"], POINTS[case], atol=1e-5)


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
    assert result.metrics["late_norm_growth"] > 1.02


def test_a_bias_separates_case_2() -> None:
    spec = ToySpec(steps=2000, grid_size=3)
    assert compute(spec, 2, "cross_entropy").metrics["accuracy"] == 0.8
    biased = compute(spec, 2, "cross_entropy_bias")
    assert biased.metrics["accuracy"] == 1
    assert biased.metrics["loss"] < FLOOR / 2


GOOD = {
    "loss": 1e-14,
    "weight_norm": 2.0,
    "weight_distance": 1e-7,
    "accuracy": 1.0,
    "first_precise_step": 500,
    "late_norm_growth": 1.3,
    "late_largest_loss": 1e-13,
}
BREAKS = {
    "centres_on_points": ("harmonic", {"weight_norm": 2.001}),
    "loss_to_zero": ("harmonic", {"first_precise_step": None}),
    "norm_grows": ("cross_entropy", {"late_norm_growth": 1.0}),
    "floor_without_bias": ("cross_entropy", {"loss": 0.2}),
    "bias_separates": ("cross_entropy_bias", {"accuracy": 0.8}),
    "precise_at_last_step": ("harmonic", {"loss": 1e-7}),
    "spikes_are_adams": ("harmonic_amsgrad", {"late_largest_loss": 1e-7}),
}


def made_up(spec: ToySpec) -> dict[ToyCell, CellResult]:
    def metrics(cell: ToyCell) -> dict[str, float | int]:
        return {**GOOD, "loss": FLOOR + 1e-5} if cell.arm == "cross_entropy" else dict(GOOD)

    return {cell: CellResult(metrics=metrics(cell)) for cell in toy_cases.cells(spec)}


def test_every_claim_can_hold() -> None:
    spec = EXPERIMENT.profiles["quick"]
    verdicts = EXPERIMENT.summarize(spec, made_up(spec)).verdicts
    assert {verdict.verdict for verdict in verdicts} == {REPRODUCED}


@pytest.mark.parametrize("claim", [claim.id for claim in EXPERIMENT.claims])
def test_one_bad_seed_breaks_its_claim_alone(claim: str) -> None:
    spec = EXPERIMENT.profiles["quick"]
    results = made_up(spec)
    arm, change = BREAKS[claim]
    cell = ToyCell(2, arm, 2)
    results[cell] = CellResult(metrics={**results[cell].metrics, **change})
    verdicts = {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}
    assert [name for name, verdict in verdicts.items() if verdict == NOT_REPRODUCED] == [claim]


def test_too_few_steps_or_missing_cells_decide_nothing() -> None:
    short = EXPERIMENT.profiles["smoke"]
    assert {v.verdict for v in EXPERIMENT.summarize(short, made_up(short)).verdicts} == {NOT_DECIDED}
    spec = EXPERIMENT.profiles["quick"]
    results = made_up(spec)
    del results[ToyCell(2, "cross_entropy_bias", 0)]
    verdicts = {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}
    assert [name for name, verdict in verdicts.items() if verdict == NOT_DECIDED] == ["bias_separates"]
