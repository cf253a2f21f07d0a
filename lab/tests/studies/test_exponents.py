"""The exponents: planted scores give planted verdicts, and a stack of exponents is what each is alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harmax.figures import house_style
from harmax_lab.algorithmic.training import train
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.compare_arms import PAPERS_TASKS
from harmax_lab.studies.exponents import (
    EXPERIMENT,
    EXPONENTS,
    FULL,
    START,
    ExponentCell,
    ExponentSpec,
    cells,
    settings_of,
)
from harmax_lab.studies.tables_and_figures import WITHOUT
from planted_studies import planted

SPEC = ExponentSpec(seeds=tuple(range(12)))
NAMES = ("two_structure", "root_accuracy", "learned_accuracy", "learned_structure", "trend")


def results(score: Callable[[str], float], spec: ExponentSpec = SPEC) -> dict[ExponentCell, CellResult]:
    return planted(cells(spec), lambda cell: score(spec.key(cell)[3]), exponent=2.5)


def verdicts(score: Callable[[str], float], spec: ExponentSpec = SPEC) -> tuple[str, ...]:
    """Return the verdicts on MLPs under the matched protocol."""
    found = {one.claim: one.verdict for one in EXPERIMENT.summarize(spec, results(score, spec)).verdicts}
    assert list(found) == [claim.id for claim in EXPERIMENT.claims]
    return tuple(found[f"{name}_mlp_matched"] for name in NAMES)


def falling(arm: str) -> float:
    return 0.9 if arm == "learned" else 0.9 - 0.03 * float(arm)


def test_where_small_exponents_are_better_two_is_unbeaten_and_the_root_is_not() -> None:
    assert verdicts(falling) == (REPRODUCED, NOT_REPRODUCED, REPRODUCED, REPRODUCED, REPRODUCED)


def test_where_large_exponents_are_better_the_rest_is_broken() -> None:
    broken = (NOT_REPRODUCED,) * 5
    assert verdicts(lambda arm: 0.2 if arm == "learned" else 0.2 + 0.03 * float(arm)) == broken


def test_differences_about_the_margin_decide_nothing() -> None:
    found = planted(cells(SPEC), lambda cell: 0.55 if cell.exponent == 8 else 0.5, spread=0.1, exponent=2.5)
    by_claim = {one.claim: one.verdict for one in EXPERIMENT.summarize(SPEC, found).verdicts}
    assert by_claim["two_structure_mlp_matched"] == NOT_DECIDED


def test_means_over_tasks_are_shown_without_each_task() -> None:
    found = planted(
        cells(SPEC), lambda cell: 0.9 if cell.exponent == 8 and cell.task == "lattice" else 0.4, exponent=2.5
    )
    (table,) = (one for one in EXPERIMENT.summarize(SPEC, found).tables if one.title == WITHOUT)
    rows = {(row["protocol"], row["models"], row["of"]): row for row in table.rows}
    assert {protocol for protocol, _, _ in rows} == {"matched"}  # the authors' two tasks make no mean to take apart
    shown = rows["matched", "MLPs", "exponent 8 minus 2"]
    assert shown["all tasks"].startswith("+0.1")
    assert shown["without Lattice"].startswith(("+0.0", "-0.0"))
    assert len(rows) == 2 * len(EXPONENTS)


def test_too_few_seeds_epochs_tasks_or_exponents_decide_nothing() -> None:
    for change in ({"seeds": (0, 1)}, {"mlp_epochs": 10}, {"tasks": PAPERS_TASKS}, {"exponents": (2.0, 4.0, 8.0)}):
        assert set(verdicts(falling, replace(SPEC, **change))) == {NOT_DECIDED}


def test_the_sweep_has_the_root_of_the_width_the_width_and_the_learnable_one() -> None:
    assert {4.0, 16.0} < set(EXPONENTS)
    assert (min(EXPONENTS), max(EXPONENTS), START) == (1, 20, 4)
    full = cells(FULL)
    assert len(full) == (5 + 2) * 2 * (len(EXPONENTS) + 1) * 20
    assert {cell.exponent for cell in full if cell.head == "learnable"} == {START}


def test_exponents_trained_together_are_each_what_they_are_alone(tmp_path: Path) -> None:
    spec = ExponentSpec(mlp_epochs=3)
    own = [ExponentCell("matched", "modular_addition", "mlp", "harmonic", 0.8, 0, exponent) for exponent in (1.0, 6.0)]

    def go(some: list[ExponentCell], *, stacked: bool) -> dict[ExponentCell, CellResult]:
        how = lambda cell: replace(settings_of(spec, cell), stack_exponents=stacked)  # noqa: E731
        return dict(train(some, how, Context(tmp_path), snapshots=2))

    together = go(own, stacked=True)
    for cell in own:
        alone = go([cell], stacked=False)[cell]
        assert together[cell].metrics["exponent"] == cell.exponent
        for name in ("train_loss", "test_loss"):
            np.testing.assert_allclose(together[cell].curves[name], alone.curves[name], rtol=1e-4)
    one, other = (together[cell].curves["train_loss"] for cell in own)
    assert not np.allclose(one, other, rtol=1e-2)


def test_the_learned_exponent_is_stored(tmp_path: Path) -> None:
    cell = ExponentCell("matched", "modular_addition", "mlp", "learnable", 0.8, 0, START)
    ((_, found),) = EXPERIMENT.work.run_cells(ExponentSpec(mlp_epochs=3), [cell], Context(tmp_path))
    assert 0 < abs(found.metrics["exponent"] - START) < 1


def test_figures_leave_out_epochs_that_never_come() -> None:
    with house_style():
        pictures = EXPERIMENT.draw(SPEC, results(lambda arm: 0.3))
        (axes,) = (axes for axes in pictures["exponents_matched"].figure.axes if axes.get_ylabel() == "epoch")
        heights = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
        assert all(np.isnan(height).all() for height in heights if len(height) > 2)
        assert any(len(height) == len(EXPONENTS) for height in heights)


@pytest.mark.parametrize("profile", ["smoke", "quick"])
def test_short_profiles_are_small(profile: str) -> None:
    assert len(EXPERIMENT.work.cells(EXPERIMENT.profiles[profile])) <= 24
