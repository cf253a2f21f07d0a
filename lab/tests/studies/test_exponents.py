"""The exponents: planted scores give planted verdicts, and a stack of exponents is what each is alone."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harmax.figures import house_style
from harmax_lab.algorithmic.training import train
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED, Verdict
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
    by_n,
    cells,
    settings_of,
)
from harmax_lab.studies.tables_and_figures import WITHOUT
from planted_studies import planted

SPEC = ExponentSpec(seeds=tuple(range(12)))
PAPERS_SPEC = replace(SPEC, protocols=("authors",))
MATCHED_SPEC = replace(SPEC, protocols=("matched",), models=("mlp",))
CONTROLS = ("two_structure", "root_accuracy", "learned_accuracy", "learned_structure", "trend")
Metric = Callable[[ExponentCell, float], float]
"""A metric of a cell, given n in the meaning of the authors' code."""


def results(score: Callable[[str], float], spec: ExponentSpec = SPEC) -> dict[ExponentCell, CellResult]:
    return planted(cells(spec), lambda cell: score(spec.key(cell)[3]), exponent=2.5)


def controls(score: Callable[[str], float], spec: ExponentSpec = MATCHED_SPEC) -> tuple[str, ...]:
    """Return the verdicts on the models of a spec, which has one kind of them, under the matched protocol."""
    found = {one.claim: one.verdict for one in EXPERIMENT.summarize(spec, results(score, spec)).verdicts}
    assert list(found) == [claim.id for claim in EXPERIMENT.claims]
    return tuple(found[f"{name}_{spec.models[0]}_matched"] for name in CONTROLS)


def falling(arm: str) -> float:
    return 0.9 if arm == "learned" else 0.9 - 0.03 * float(arm)


def as_the_paper_says(metric: str) -> Metric:
    """Return a metric with which every sentence of the appendix holds."""

    def value(cell: ExponentCell, n: float) -> float:
        noise = 0.01 * math.sin(17 * cell.seed + 5 * n)
        if cell.task == "lattice":
            return 1.0 - 0.005 * (n - 1) + 0.1 * noise
        if cell.model == "mlp":
            return 0.9 - 0.02 * (n - 1) + noise
        return 0.4 + 0.05 * n + 10 * noise * (metric != "plane")

    return value


def papers(spec: ExponentSpec = PAPERS_SPEC, *, exponent_of_n: float = 2, **changed: Metric) -> dict[str, Verdict]:
    """Return the verdicts on the paper's claims and their twins, with some metrics other than the paper's."""
    metrics = {name: changed.get(name, as_the_paper_says(name)) for name in ("structure", "variance", "plane")}

    def own(value: Metric) -> Callable[[ExponentCell], float]:
        return lambda cell: value(cell, cell.exponent / exponent_of_n)

    options: dict[str, Any] = {name: own(value) for name, value in metrics.items()}
    accuracy = changed.get("accuracy")
    options["accuracy"] = own(accuracy) if accuracy else 1.0
    found = EXPERIMENT.summarize(spec, planted(cells(spec), lambda cell: 0.5, exponent=2.5, **options))
    return {one.claim: one for one in found.verdicts if not one.claim.endswith("_matched")}


def broken(found: dict[str, Verdict], verdict: str = NOT_REPRODUCED) -> set[str]:
    return {name for name, one in found.items() if one.verdict == verdict and not name.endswith("_text")}


def test_planted_runs_that_are_as_the_paper_says_reproduce_it() -> None:
    found = papers()
    assert {one.verdict for name, one in found.items() if not name.endswith("_text")} == {REPRODUCED}
    by_text = papers(exponent_of_n=1)
    assert {one.verdict for name, one in by_text.items() if name.endswith("_text")} == {REPRODUCED}


def other(base: str, value: Metric, *, task: str, model: str = "") -> Metric:
    """Return a metric that is another one on a task, with one model or both."""
    usual = as_the_paper_says(base)
    return lambda cell, n: (value if cell.task == task and model in ("", cell.model) else usual)(cell, n)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        # The picture of the lattice breaks at n = 7.
        (
            {"plane": other("plane", lambda cell, n: 0.8 if n == 7 else 1.0, task="lattice", model="mlp")},
            {"lattice_stable_mlp"},
        ),
        (
            {"plane": other("plane", lambda cell, n: 0.9, task="lattice", model="mlp")},
            {"lattice_stable_mlp", "lattice_crisp_mlp"},
        ),
        # One run in six has none.
        (
            {"plane": other("plane", lambda cell, n: float(cell.seed > 1), task="lattice", model="transformer")},
            {"lattice_stable_transformer", "lattice_crisp_transformer"},
        ),
        (
            {"structure": other("structure", lambda cell, n: 1.0 - 0.3 * (n > 4), task="lattice", model="mlp")},
            {"lattice_minor_mlp"},
        ),
        (
            {"variance": other("variance", lambda cell, n: 0.9 + 0.01 * n, task="lattice", model="mlp")},
            {"lattice_highest_mlp"},
        ),
        (
            {"structure": other("structure", lambda cell, n: 1.0 - 0.3 * (n > 4), task="lattice", model="transformer")},
            {"lattice_minor_transformer"},
        ),
        (
            {"variance": other("variance", lambda cell, n: 0.9 + 0.01 * n, task="lattice", model="transformer")},
            {"lattice_highest_transformer"},
        ),
        (
            {"structure": other("structure", lambda cell, n: 0.3 + 0.05 * n, task="modular_addition", model="mlp")},
            {"circle_one_mlp"},
        ),
        (
            {"plane": other("plane", lambda cell, n: 0.9 - 0.05 * n, task="modular_addition", model="transformer")},
            {"circle_tighter_transformer"},
        ),
        (
            {
                name: other(
                    name,
                    lambda cell, n: 0.9 - 0.08 * n + 0.1 * (cell.seed % 2),
                    task="modular_addition",
                    model="transformer",
                )
                for name in ("structure", "variance")
            },
            {"circle_larger_transformer", "circle_slightly_transformer"},
        ),
        (
            {
                "variance": other(
                    "variance", lambda cell, n: 0.9 - 0.05 * n, task="modular_addition", model="transformer"
                )
            },
            {"circle_slightly_transformer"},
        ),
        (
            {
                "structure": other(
                    "structure",
                    lambda cell, n: 0.9 - 0.02 * n + 0.2 * (cell.seed % 2),
                    task="modular_addition",
                    model="mlp",
                )
            },
            {"circle_sensitive"},
        ),
    ],
)
def test_planted_runs_that_are_not_break_the_claim_that_says_so(changed: dict[str, Metric], expected: set[str]) -> None:
    assert broken(papers(**changed)) == expected


def test_where_n_changes_nothing_none_is_preferred() -> None:
    same = papers(**{name: lambda cell, n: 0.97 for name in ("structure", "variance", "plane")})
    undecided = {"lattice_highest_mlp", "lattice_highest_transformer", "circle_one_mlp", "circle_sensitive"}
    undecided |= {"circle_tighter_transformer", "circle_larger_transformer", "circle_slightly_transformer"}
    assert broken(same, NOT_DECIDED) == undecided


def test_runs_that_fail_the_test_do_not_decide_what_circles_look_like() -> None:
    def rises_where_it_fails(cell: ExponentCell, n: float) -> float:
        return 0.5 - 0.04 * n if cell.seed % 2 else 0.1 + 0.09 * n

    found = papers(
        replace(PAPERS_SPEC, seeds=tuple(range(30))),
        plane=other("plane", rises_where_it_fails, task="modular_addition", model="transformer"),
        accuracy=lambda cell, n: 1.0 if cell.seed % 2 else 0.2,
    )["circle_tighter_transformer"]
    assert found.verdict == NOT_DECIDED


@pytest.mark.parametrize(
    "change",
    [
        {"seeds": tuple(range(9))},
        {"mlp_epochs": 6999, "transformer_epochs": 9999},
        {"authors_exponents": (4.0, 10.0)},
        {"authors_tasks": ("genealogy",)},
    ],
)
def test_too_little_decides_nothing_of_the_paper(change: dict[str, Any]) -> None:
    assert {one.verdict for one in papers(replace(PAPERS_SPEC, **change)).values()} == {NOT_DECIDED}


@pytest.mark.parametrize("model", FULL.models)
def test_where_small_exponents_are_better_two_is_unbeaten_and_the_root_is_not(model: str) -> None:
    found = controls(falling, replace(MATCHED_SPEC, models=(model,)))
    assert found == (REPRODUCED, NOT_REPRODUCED, REPRODUCED, REPRODUCED, REPRODUCED)


@pytest.mark.parametrize("model", FULL.models)
def test_where_large_exponents_are_better_the_rest_is_broken(model: str) -> None:
    spec = replace(MATCHED_SPEC, models=(model,))
    assert controls(lambda arm: 0.2 if arm == "learned" else 0.2 + 0.03 * float(arm), spec) == (NOT_REPRODUCED,) * 5


@pytest.mark.parametrize("model", FULL.models)
def test_where_the_root_of_the_width_is_best_it_is_unbeaten(model: str) -> None:
    def highest_at_four(arm: str) -> float:
        return 0.5 if arm == "learned" else 0.9 - 0.1 * abs(math.log2(float(arm) / 4))

    found = controls(highest_at_four, replace(MATCHED_SPEC, models=(model,)))
    assert found[:2] == (NOT_REPRODUCED, REPRODUCED)


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
        assert set(controls(falling, replace(MATCHED_SPEC, **change))) == {NOT_DECIDED}


def test_the_sweep_has_both_meanings_of_n_the_root_of_the_width_and_the_learnable_one() -> None:
    assert set(by_n("code").values()) | set(by_n("text").values()) == set(FULL.arms("authors"))
    assert {4.0, 16.0} < set(EXPONENTS)
    assert (min(EXPONENTS), max(EXPONENTS), START) == (1, 20, 4)
    full = cells(FULL)
    assert len(full) == (5 * (len(EXPONENTS) + 1) + 2 * 15) * 2 * 20
    assert {cell.exponent for cell in full if cell.head == "learnable"} == {START}
    assert all(settings_of(FULL, cell).exact for cell in full)


def test_the_papers_sweep_is_tabulated_beside_the_authors_numbers() -> None:
    table = EXPERIMENT.summarize(SPEC, results(lambda arm: 0.3)).tables[0]
    assert len(table.rows) == 40
    row = next(row for row in table.rows if (row["task"], row["models"], row["n"]) == ("Lattice", "MLPs", 10))
    assert (row["exponent"], row["authors' explained variance"]) == ("20", 0.97)
    assert row["Explained variance"].startswith("0.3")


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


def test_figures_show_tokens_at_every_n_and_scores_at_every_exponent() -> None:
    with house_style():
        pictures = EXPERIMENT.draw(SPEC, results(lambda arm: 0.3))
    assert list(pictures) == ["sweep_lattice", "sweep_modular_addition", "exponents_authors", "exponents_matched"]
    assert len(pictures["sweep_lattice"].figure.axes) == 10 * 2 * 4
    axes = pictures["exponents_matched"].figure.axes[0]
    assert any(len(np.asarray(line.get_xdata())) == len(EXPONENTS) for line in axes.lines)
    legend = pictures["exponents_matched"].figure.legends[0]
    assert "exponent 4, the square root of the width" in [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize("profile", ["smoke", "quick"])
def test_short_profiles_are_small(profile: str) -> None:
    assert len(EXPERIMENT.work.cells(EXPERIMENT.profiles[profile])) <= 24
