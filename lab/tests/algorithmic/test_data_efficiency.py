"""Accuracy against the train fraction: verdicts on made-up accuracies, thinned curves, the table and the figure."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harmax.figures import house_style
from harmax_lab.algorithmic import data_efficiency
from harmax_lab.algorithmic.data_efficiency import (
    AUTHORS,
    AUTHORS_FRACTIONS,
    CLAIMS,
    EXPERIMENT,
    cells,
    fraction_needed,
    means,
    measure,
    thinned,
)
from harmax_lab.algorithmic.training import CURVES, RunCell
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.report.svg import to_svg
from harmax_lab.kit.store import CellResult

SPEC = EXPERIMENT.profiles["full"]


def authors(cell: RunCell) -> float:
    """What the authors have, the transformers like the MLPs, with a little of the seed."""
    found = float(np.interp(cell.train_fraction, *zip(*AUTHORS[cell.task, ("mlp", cell.head)].items(), strict=True)))
    return min(1.0, found + 0.01 * (cell.seed - 66))


def swapped(cell: RunCell) -> float:
    return authors(replace(cell, head="linear" if cell.head == "harmonic" else "harmonic"))


def run(accuracy: float, *, epochs: int = 2, diverged_at: int | None = None, rows: int = 800) -> CellResult:
    curve = np.linspace(0, accuracy, epochs, dtype=np.float32)
    return CellResult(dict.fromkeys(CURVES, curve), {}, {"diverged_at": diverged_at, "train_rows": rows})


def make(accuracy: Callable[[RunCell], float]) -> dict[RunCell, CellResult]:
    return {cell: run(accuracy(cell)) for cell in cells(SPEC)}


def verdicts(results: dict[RunCell, CellResult], spec: data_efficiency.EfficiencySpec = SPEC) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def test_the_authors_accuracies_reproduce_every_claim() -> None:
    assert set(verdicts(make(authors)).values()) == {REPRODUCED}


def test_with_the_models_swapped_none_is() -> None:
    assert set(verdicts(make(swapped)).values()) == {NOT_REPRODUCED}


def test_one_task_that_needs_more_data_breaks_its_claim_alone() -> None:
    def accuracy(cell: RunCell) -> float:
        return (
            0.0
            if (cell.task, cell.arm, cell.protocol) == ("lattice", ("mlp", "harmonic"), "matched")
            else authors(cell)
        )

    found = verdicts(make(accuracy))
    assert found["fraction_mlp_matched"] == NOT_REPRODUCED
    assert found["fraction_mlp_authors"] == found["fraction_transformer_matched"] == REPRODUCED


def test_a_task_that_needs_more_data_on_some_seeds_only_leaves_it_open() -> None:
    def accuracy(cell: RunCell) -> float:
        lattice = (cell.task, cell.arm, cell.protocol) == ("lattice", ("mlp", "harmonic"), "matched")
        return 0.0 if lattice and cell.seed == SPEC.seeds[0] else authors(cell)

    found = verdicts(make(accuracy))
    assert found["fraction_mlp_matched"] == NOT_DECIDED
    assert found["fraction_mlp_authors"] == REPRODUCED


def test_models_that_are_alike_are_no_gain() -> None:
    found = verdicts(make(lambda cell: cell.train_fraction))
    assert {found[claim.id] for claim in CLAIMS if claim.id.startswith("fraction")} == {NOT_REPRODUCED}
    assert {found[claim.id] for claim in CLAIMS if claim.id.startswith("area")} == {NOT_DECIDED}


@pytest.mark.parametrize(("off", "verdict"), [(8, REPRODUCED), (9, NOT_REPRODUCED)])
def test_nine_in_ten_of_the_authors_points_must_come_back(off: int, verdict: str) -> None:
    points = [(task, arm, fraction) for task, arm in AUTHORS for fraction in AUTHORS_FRACTIONS]
    wrong = {point for point in points if AUTHORS[point[:2]][point[2]] == 1}
    moved = sorted(wrong)[:off]

    def accuracy(cell: RunCell) -> float:
        return 0.85 if (cell.task, cell.arm, cell.train_fraction) in moved else authors(cell)

    assert verdicts(make(accuracy))["authors_points"] == verdict


def test_diverged_runs_have_learnt_nothing_and_are_counted() -> None:
    results = make(authors)
    cell = next(iter(results))
    assert measure(SPEC, cell, run(0.97, diverged_at=5))["accuracy"] == 0
    results[cell] = run(0.97, diverged_at=5)
    row = EXPERIMENT.summarize(SPEC, results).tables[0].rows[0]
    assert row["diverged"] == 1
    assert row["runs"] == 45


def test_the_table_has_the_authors_rows_below_ours() -> None:
    rows = EXPERIMENT.summarize(SPEC, make(authors)).tables[0].rows
    assert len(rows) == 2 * 5 * 4 + 10
    ours, theirs = rows[0], rows[1]
    assert theirs["model"] == "standard MLP, the authors' own"
    assert ours["0.3"] == pytest.approx(0.46)
    assert theirs["0.3"] == 0.44
    assert theirs["0.5"] is None
    assert ours["reaches 0.9 at"] == theirs["reaches 0.9 at"] == 0.4


def test_the_table_tells_how_long_runs_with_few_rows_wait() -> None:
    spec = replace(SPEC, fractions=(0.2, 0.8), tasks=("lattice", "permutation"), models=("mlp",))
    rows = {"lattice": 1000, "permutation": 576}
    results = {cell: run(1.0, rows=int(rows[cell.task] * cell.train_fraction)) for cell in cells(spec)}
    found = {
        (row["protocol"], row["task"]): row["steps waited, %"]
        for row in EXPERIMENT.summarize(spec, results).tables[0].rows
    }
    # 7 and 25 steps an epoch; 4 and 15 for permutation, whose questions are shorter, so that it waits for nobody else.
    assert found["matched", "Lattice"] == pytest.approx(100 * (1 - 7 / 25) / 2)
    assert found["matched", "Permutation composition"] == pytest.approx(100 * (1 - 4 / 15) / 2)


def test_the_fraction_needed_is_of_the_mean_and_may_not_exist() -> None:
    planted = {0.1: (1.0, 0.7), 0.2: (0.95, 0.9)}
    spec = replace(SPEC, fractions=tuple(planted), seeds=(0, 1))
    found = EXPERIMENT.results(spec, {cell: run(planted[cell.train_fraction][cell.seed]) for cell in cells(spec)})
    assert fraction_needed(means(found)) == 0.2
    assert fraction_needed({0.1: 0.5}) is None


def test_curves_are_thinned_and_keep_their_end() -> None:
    found = thinned(run(1.0, epochs=131))
    assert found.curves["epoch"].tolist() == [0, 50, 100, 130]
    assert found.curves["test_accuracy"].tolist() == pytest.approx([0, 50 / 130, 100 / 130, 1.0])
    assert thinned(run(1.0, epochs=1)).curves["epoch"].tolist() == [0]


def test_quick_and_smoke_decide_nothing() -> None:
    for profile in ("smoke", "quick"):
        spec = EXPERIMENT.profiles[profile]
        assert set(verdicts({cell: run(authors(cell)) for cell in cells(spec)}, spec).values()) == {NOT_DECIDED}


def test_the_figure_shows_both_protocols_and_the_authors_points() -> None:
    with house_style():
        pictures = EXPERIMENT.draw(SPEC, make(authors))
        figure = pictures["data_efficiency"].figure
        assert len(to_svg(figure, "data_efficiency")) < 400_000
    assert len(figure.axes) == 20  # two protocols, MLPs and transformers, five tasks
    crosses = [sum(line.get_marker() == "x" for line in axes.lines) for axes in figure.axes]
    assert crosses == [2] * 5 + [0] * 15
    one_seed = replace(SPEC, seeds=(66,), protocols=("matched",), models=("mlp",))
    with house_style():
        assert EXPERIMENT.draw(one_seed, {cell: run(0.5) for cell in cells(one_seed)})
    assert EXPERIMENT.draw(SPEC, {}) == {}


def test_cells_of_all_fractions_train_together(tmp_path: Path) -> None:
    spec = replace(EXPERIMENT.profiles["smoke"], protocols=("matched",), tasks=("permutation",), models=("mlp",))
    found = dict(EXPERIMENT.work.run_cells(spec, cells(spec), Context(tmp_path)))
    assert set(found) == set(cells(spec))
    for cell, result in found.items():
        assert result.metrics["train_rows"] == int(576 * cell.train_fraction)
        assert result.curves["epoch"].tolist() == [0, 2]
        assert np.isfinite(result.curves["test_loss"]).all()
