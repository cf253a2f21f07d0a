"""The L2 strength on permutations: what differs between the arms, and what the claim makes of planted runs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from harmax_lab.algorithmic.l2_strength import EXPERIMENT, FULL, STRONG, WEAK, StrengthCell, StrengthSpec, cells
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.store import CellResult

SPEC = replace(FULL, seeds=tuple(range(10)))
Accuracy = Callable[[StrengthCell], float]


def planted(spec: StrengthSpec, accuracy: Accuracy) -> dict[StrengthCell, CellResult]:
    found = {}
    for cell in cells(spec):
        last = np.float32([0.1, accuracy(cell) + 0.001 * cell.seed])
        curves = {"train_accuracy": last, "test_accuracy": last / 2}
        found[cell] = CellResult(curves=curves, metrics={"diverged_at": None})
    return found


def verdict(runs: dict[StrengthCell, CellResult], spec: StrengthSpec = SPEC) -> str:
    (one,) = EXPERIMENT.summarize(spec, runs).verdicts
    return one.verdict


@pytest.mark.parametrize(
    ("accuracy", "wanted"),
    [
        (lambda cell: 0.9 if cell.strength == WEAK else 0.6, REPRODUCED),
        (lambda cell: 0.6 if cell.strength == WEAK else 0.9, NOT_REPRODUCED),
        (lambda cell: 0.9 if (cell.strength == WEAK) == (cell.seed % 2 == 0) else 0.6, NOT_DECIDED),
        # One head gains more than the other loses.
        (lambda cell: 0.6 + (0.3 if cell.head == "linear" else -0.1) * (cell.strength == WEAK), REPRODUCED),
    ],
)
def test_the_mean_over_both_heads_decides(accuracy: Accuracy, wanted: str) -> None:
    assert verdict(planted(SPEC, accuracy)) == wanted


def test_a_diverged_run_has_learned_nothing() -> None:
    runs = {
        cell: replace(result, metrics={"diverged_at": 3}) if cell.strength == WEAK else result
        for cell, result in planted(SPEC, lambda cell: 0.9 if cell.strength == WEAK else 0.6).items()
    }
    assert verdict(runs) == NOT_REPRODUCED


def test_short_runs_and_a_missing_strength_decide_nothing() -> None:
    for spec in (replace(SPEC, transformer_epochs=10), replace(SPEC, strengths=(WEAK,)), replace(SPEC, seeds=(0, 1))):
        assert verdict(planted(spec, lambda cell: 0.9 if cell.strength == WEAK else 0.6), spec) == NOT_DECIDED


def test_the_arms_differ_in_the_strength_alone() -> None:
    by_strength = {strength: [cell for cell in cells(SPEC) if cell.strength == strength] for strength in (WEAK, STRONG)}
    weak, strong = ([replace(cell, strength=0.0) for cell in own] for own in by_strength.values())
    assert weak == strong
