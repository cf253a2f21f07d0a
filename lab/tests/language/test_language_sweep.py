"""The sweep on a small GPT: its runs, what it makes of them, and what it draws."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from harmax.figures import house_style
from harmax_lab.experiments import run
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.engine import Event
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.store import CellResult, Run
from harmax_lab.language.language_sweep import ARMS, CLAIMS, EXPERIMENT, SweepCell, SweepSpec, cells
from harmax_lab.language.pretraining import pretrain_spec

SMOKE, FULL = EXPERIMENT.profiles["smoke"], EXPERIMENT.profiles["full"]
LONG = replace(FULL, steps=1200)  # in which centers can grow to the length of the features
LOSSES = {
    "standard": 4.54,
    "harmonic_28": 4.55,
    "harmonic_56": 4.60,
    "harmonic_768": 4.46,
    "harmonic_1536": 4.54,
    "harmonic_learnable": 4.45,
    "scaled_2": 4.48,
    "gaussian_2": 4.49,
}
# A change of one arm's losses that breaks a claim, and what else it breaks.
BREAKS = {
    "paper_exponent": ("harmonic_28", 0.8, set()),
    "authors_exponent": ("standard", -0.2, {"paper_exponent", "scale_explains"}),
    "scale_explains": ("harmonic_768", -0.3, {"learned_exponent"}),
    "shape_helps": ("gaussian_2", -0.1, set()),
    "learned_exponent": ("harmonic_learnable", 0.3, set()),
}


def with_profile(spec: SweepSpec) -> Experiment[SweepSpec, SweepCell]:
    return replace(EXPERIMENT, profiles={**EXPERIMENT.profiles, "smoke": spec})


def planted(spec: SweepSpec, change: Callable[[SweepCell], float] = lambda cell: 0.0) -> dict[SweepCell, CellResult]:
    """Results with their lowest losses at the middle learning rate, and seeds a hundredth apart in all arms alike."""
    results = {}
    for cell in cells(spec):
        loss = LOSSES[cell.arm] + 0.3 * abs(spec.lrs.index(cell.lr) - 1) + 0.01 * cell.seed + change(cell)
        step = np.arange(10, 301, 10)
        curve = (loss + 6 * np.exp(-step / 40)).astype(np.float32)
        curves = {"step": step, "loss": curve, "val_step": step[4::5], "val_loss": curve[4::5]}
        metrics = {
            "val_loss": loss,
            "train_loss": loss - 0.02,
            "exponent": 700.0,
            "cost": {"tokens_per_s": 2e6},
            "diverged_at": None,
        }
        results[cell] = CellResult(curves, {}, metrics)
    return results


def verdicts(spec: SweepSpec, results: dict[SweepCell, CellResult]) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def numbers(found: Run) -> dict[str, object]:
    return {
        name: (
            {key: curve.tolist() for key, curve in result.curves.items()},
            {key: value for key, value in result.metrics.items() if key != "cost"},
        )
        for name, result in found.results.items()
    }


def test_the_first_seed_meets_every_learning_rate_and_the_others_one() -> None:
    listed = cells(FULL)
    assert {(cell.arm, cell.lr) for cell in listed if cell.seed == 0} == {(a, lr) for a in ARMS for lr in FULL.lrs}
    others = [cell for cell in listed if cell.seed > 0]
    assert {cell.lr for cell in others} == {FULL.repeated_lr}
    assert {cell.arm for cell in others} == set(FULL.repeated_arms)
    assert {cell.seed for cell in others} == {1, 2}
    # Cells of one arm follow one another: its compiled graphs are found again.
    order = [cell.arm for cell in listed]
    assert sum(one != other for one, other in pairwise(order)) == len(ARMS) - 1


def test_arms_differ_in_their_head_alone() -> None:
    specs = [pretrain_spec(FULL, arm.changes, lr=3e-3, seed=0, data=Path("tokens")) for arm in ARMS.values()]
    own = {"head", "exponent", "learn_exponent", "logit_scale"}
    shared = [{name: value for name, value in spec.identity.items() if name not in own} for spec in specs]
    assert all(one == shared[0] for one in shared)
    assert len({str(spec.identity) for spec in specs}) == len(ARMS)
    assert specs[0].min_lr == pytest.approx(3e-4)
    assert specs[0].sequences * specs[0].context * specs[0].steps == 19_660_800


@pytest.mark.slow
def test_every_arm_learns(tmp_path: Path) -> None:
    spec = replace(SMOKE, arms=tuple(ARMS), lrs=(1e-2,), repeated_lr=1e-2, steps=12, evaluate_every=12)
    found = run(with_profile(spec), smoke=True, folder=tmp_path, device="cpu")
    assert not found.failed
    for cell, result in EXPERIMENT.by_cell(spec, found.results).items():
        curves, metrics = result.curves, result.metrics
        assert curves["step"].tolist() == list(range(1, 13))
        assert curves["loss"][-1] < curves["loss"][0] - 0.05, cell
        assert metrics["val_loss"] == pytest.approx(float(curves["val_loss"][-1]), rel=1e-6)
        assert metrics["gap"] == pytest.approx(metrics["val_loss"] - metrics["train_loss"], abs=1e-5)
        assert metrics["tokens"] == 12 * 8 * 16
        assert metrics["cost"]["tokens_per_s"] > 0
    exponents = {cell.arm: r.metrics["exponent"] for cell, r in EXPERIMENT.by_cell(spec, found.results).items()}
    assert exponents["harmonic_56"] == 56.0
    assert exponents["scaled_2"] is None
    assert 0 < abs(exponents["harmonic_learnable"] - 768) < 200


@pytest.mark.slow
def test_a_run_that_is_stopped_midway_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    whole = run(EXPERIMENT, smoke=True, folder=tmp_path / "whole", device="cpu")
    assert not whole.failed

    def stop(event: Event) -> None:
        if "step 5 of" in event.message:
            raise RuntimeError("the machine is wanted elsewhere")

    stopped = run(EXPERIMENT, smoke=True, folder=tmp_path / "stopped", device="cpu", progress=stop)
    assert len(stopped.failed) == len(cells(SMOKE))
    heard: list[str] = []
    resumed = run(
        EXPERIMENT, smoke=True, folder=tmp_path / "stopped", device="cpu", progress=lambda e: heard.append(e.message)
    )
    # From the checkpoint of step 4, not from the start.
    assert not any("step 4 of" in message for message in heard)
    assert sum("step 5 of" in message for message in heard) == len(cells(SMOKE))
    assert numbers(resumed) == numbers(whole)
    assert not (resumed.folder / "partial").exists()


def test_a_run_that_diverges_is_a_result(tmp_path: Path) -> None:
    spec = replace(SMOKE, arms=("standard",), lrs=(3e-3, 1e30))
    found = run(with_profile(spec), smoke=True, folder=tmp_path, device="cpu")
    assert not found.failed
    results = EXPERIMENT.by_cell(spec, found.results)
    lost = results[SweepCell("standard", 1e30, 0)].metrics
    assert lost["val_loss"] == math.inf
    assert 1 < lost["diverged_at"] <= 6
    assert results[SweepCell("standard", 3e-3, 0)].metrics["diverged_at"] is None
    (row,) = EXPERIMENT.summarize(spec, results).tables[0].rows
    assert row["best lr"] == 3e-3
    with house_style():
        assert EXPERIMENT.draw(spec, results)


def test_every_claim_can_hold() -> None:
    assert verdicts(LONG, planted(LONG)) == {claim.id: REPRODUCED for claim in CLAIMS}


@pytest.mark.parametrize("claim", BREAKS)
def test_other_losses_break_a_claim(claim: str) -> None:
    arm, change, others = BREAKS[claim]
    found = verdicts(LONG, planted(LONG, lambda cell: change * (cell.arm == arm)))
    assert found[claim] == NOT_REPRODUCED
    assert {name for name, verdict in found.items() if verdict != REPRODUCED} == {claim} | others


def test_only_the_papers_exponent_is_the_papers_claim() -> None:
    assert [claim.id for claim in CLAIMS if not claim.control] == ["paper_exponent"]


@pytest.mark.parametrize("change", [0.0, 0.8])
def test_centers_that_cannot_catch_up_decide_nothing_about_the_papers_exponent(change: float) -> None:
    results = planted(FULL, lambda cell: change * (cell.arm == "harmonic_28"))
    found = next(one for one in EXPERIMENT.summarize(FULL, results).verdicts if one.claim == "paper_exponent")
    assert found.verdict == NOT_DECIDED
    assert found.sentence.startswith("In 300 steps at 0.001 the centers cannot catch up. So far: harmonic, exponent 28")


@pytest.mark.parametrize("end", [0, -1])
@pytest.mark.parametrize("arm", ["harmonic_28", "harmonic_768"])
def test_a_best_learning_rate_at_an_end_of_the_grid_decides_nothing(arm: str, end: int) -> None:
    results = planted(LONG, lambda cell: -3.0 * (cell.arm == arm and cell.lr == LONG.lrs[end]))
    undecided = [one for one in EXPERIMENT.summarize(LONG, results).verdicts if one.verdict == NOT_DECIDED]
    assert {one.claim for one in undecided} == {
        "harmonic_28": {"paper_exponent"},
        "harmonic_768": {"authors_exponent", "scale_explains", "shape_helps", "learned_exponent"},
    }[arm]
    rate = f"{ARMS[arm].label}, learning rate {LONG.lrs[end]:g}"
    assert all(one.sentence.startswith("Better settings may lie beyond") and rate in one.sentence for one in undecided)


def test_seeds_that_disagree_decide_nothing() -> None:
    results = planted(FULL, lambda cell: 0.2 * cell.seed * (cell.arm == "harmonic_768"))
    found = verdicts(FULL, results)
    assert found["authors_exponent"] == found["scale_explains"] == found["shape_helps"] == NOT_DECIDED


def test_best_learning_rates_that_disagree_decide_nothing() -> None:
    results = planted(FULL, lambda cell: -0.5 * (cell.arm == "standard" and cell.lr == FULL.lrs[2]))
    assert verdicts(FULL, results)["authors_exponent"] == NOT_DECIDED


def test_a_diverged_seed_counts_as_guessing() -> None:
    results = planted(LONG)
    cell = SweepCell("harmonic_28", LONG.repeated_lr, 1)
    results[cell] = replace(results[cell], metrics={**results[cell].metrics, "val_loss": math.inf, "diverged_at": 40})
    assert verdicts(LONG, results)["paper_exponent"] == NOT_DECIDED
    with house_style():
        assert EXPERIMENT.draw(LONG, results)


def test_short_runs_and_single_seeds_decide_nothing() -> None:
    for spec in (replace(FULL, seeds=(0,)), replace(FULL, steps=20), replace(FULL, embedded=True)):
        assert set(verdicts(spec, planted(spec)).values()) == {NOT_DECIDED}


def test_a_missing_cell_leaves_its_claims_open() -> None:
    results = planted(LONG)
    del results[SweepCell("scaled_2", LONG.repeated_lr, 2)]
    found = verdicts(LONG, results)
    assert {name for name, verdict in found.items() if verdict == NOT_DECIDED} == {"scale_explains", "shape_helps"}


def test_an_arm_that_is_left_out_leaves_its_claims_open() -> None:
    spec = replace(LONG, arms=("standard", "harmonic_768"))
    found = verdicts(spec, planted(spec))
    assert {name for name, verdict in found.items() if verdict != NOT_DECIDED} == {"authors_exponent"}


def test_figures_show_every_arm() -> None:
    with house_style():
        drawn = EXPERIMENT.draw(FULL, planted(FULL))
    assert set(drawn) == {"sweep_lr", "sweep_curves"}
    for picture in drawn.values():
        panels = picture.figure.axes
        assert "small GPT" in picture.figure.get_suptitle()
        assert [axes.get_title(loc="left") for axes in panels] == ["The scale of the logits", "The exponent"]
        legends = [axes.get_legend() for axes in panels]
        shown = {text.get_text() for legend in legends if legend is not None for text in legend.get_texts()}
        assert len(shown) == len(ARMS)
    rates = [label.get_text() for label in drawn["sweep_lr"].figure.axes[0].get_xticklabels()]
    assert rates == [f"{rate:g}" for rate in FULL.lrs]


def test_the_repeated_learning_rate_must_be_one_of_the_swept() -> None:
    with pytest.raises(ValueError, match=r"`repeated_lr` must be one of `lrs`.* got 0\.5"):
        SweepSpec(repeated_lr=0.5)
