"""Fig. 3 c: planted curves give planted verdicts."""

from dataclasses import replace
from typing import Any

import pytest

from harmax_lab.algorithmic.grokking import EXPERIMENT, Gaps, compare, measure
from harmax_lab.algorithmic.runs import AlgorithmicSpec
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.store import CellResult
from planted_runs import like_the_authors, rise

SPEC = AlgorithmicSpec(seeds=tuple(range(20)))
NEVER = float("inf")
Results = dict[RunCell, CellResult]


def verdicts(results: Results, spec: AlgorithmicSpec = SPEC) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def set_epochs(results: Results, train: float, test: float, **wanted: Any) -> None:
    """Plant other epochs of learning and generalizing into the runs with these fields."""
    for cell, result in results.items():
        if all(getattr(cell, name) == value for name, value in wanted.items()):
            epochs = len(result.curves["train_accuracy"])
            curves = {"train_accuracy": rise(epochs, train), "test_accuracy": rise(epochs, test)}
            results[cell] = replace(result, curves={**result.curves, **curves})


def gaps(results: Results, task: str) -> Gaps:
    rows = EXPERIMENT.results(SPEC, results).where(protocol="authors", task=task, model="mlp")
    found = compare(rows)
    assert found is not None
    return found


@pytest.fixture
def results() -> Results:
    return like_the_authors(SPEC)


def test_an_epoch_counts_from_0_and_needs_twenty_in_a_row(results: Results) -> None:
    cell = RunCell("authors", "lattice", "mlp", "linear", 0.8, 0)
    accuracy = rise(7000, 50)
    accuracy[65] = 0.5
    result = replace(results[cell], curves={**results[cell].curves, "test_accuracy": accuracy})
    assert measure(SPEC, cell, result)["test_epoch"] == 66


def test_the_authors_numbers_come_back_as_reproduced(results: Results) -> None:
    found = verdicts(results)
    for claim in ("gap_smaller_mlp_authors", "gap_smaller_mlp_matched", "authors_medians", "authors_counts"):
        assert found[claim] == REPRODUCED, claim


def test_a_task_without_a_gap_does_not_decide(results: Results) -> None:
    comparison = gaps(results, "equivalence")
    assert comparison.paired.difference.low > 0, "the authors' harmonic MLP waits longer, but for 12 epochs only"
    assert comparison.outcome == "no gap in either"


def test_a_larger_gap_in_one_task_breaks_the_claim(results: Results) -> None:
    set_epochs(results, 100, 900, protocol="matched", task="genealogy", model="mlp", head="harmonic")
    found = verdicts(results)
    assert (found["gap_smaller_mlp_matched"], found["gap_smaller_mlp_authors"]) == (NOT_REPRODUCED, REPRODUCED)


def test_a_run_that_never_generalises_counts_as_the_longest_gap(results: Results) -> None:
    arm = {"protocol": "authors", "task": "modular_addition", "model": "mlp", "head": "harmonic"}
    for seed in range(12):
        set_epochs(results, 300, NEVER, seed=seed, **arm)
    comparison = gaps(results, "modular_addition")
    assert comparison.harmonic == NEVER
    assert (comparison.paired.greater, comparison.paired.less) == (12, 8)
    assert comparison.reaching is not None
    assert (comparison.reaching.greater, comparison.reaching.less) == (0, 8)
    assert verdicts(results)["gap_smaller_mlp_authors"] != REPRODUCED


def test_a_run_that_generalises_without_having_learnt_is_left_out_of_the_pairs(results: Results) -> None:
    arm = {"protocol": "matched", "task": "lattice", "model": "transformer", "head": "harmonic"}
    set_epochs(results, NEVER, 30, seed=4, **arm)
    rows = EXPERIMENT.summarize(SPEC, results).tables[1].rows
    (row,) = [r for r in rows if (r["protocol"], r["task"], r["models"]) == ("matched", "Lattice", "transformers")]
    assert row["pairs"] == 19


def test_medians_far_from_the_authors_are_noticed(results: Results) -> None:
    for task in ("lattice", "modular_addition", "equivalence", "genealogy"):
        set_epochs(results, 2000, 2500, protocol="authors", task=task, model="mlp")
    assert verdicts(results)["authors_medians"] == NOT_REPRODUCED


def test_two_medians_off_are_to_be_expected(results: Results) -> None:
    set_epochs(results, 2000, 2500, protocol="authors", task="lattice", model="mlp", head="linear")
    assert verdicts(results)["authors_medians"] == REPRODUCED


def test_one_count_far_from_the_authors_is_noticed(results: Results) -> None:
    set_epochs(results, 300, 400, protocol="authors", task="permutation", model="transformer", head="harmonic")
    assert verdicts(results)["authors_counts"] == NOT_REPRODUCED


@pytest.mark.parametrize(("late", "verdict"), [(110, NOT_REPRODUCED), (230, REPRODUCED), (1200, REPRODUCED)])
def test_two_modes_are_told_from_one(results: Results, late: int, verdict: str) -> None:
    arm = {"protocol": "authors", "task": "genealogy", "model": "mlp", "head": "linear"}
    for seed in SPEC.seeds:
        set_epochs(results, 26, 90 + seed if seed < 9 else late + seed, seed=seed, **arm)
    assert verdicts(results)["genealogy_two_modes"] == verdict


def test_a_stretch_that_evenly_spread_epochs_leave_too_is_no_sign_of_two_modes(results: Results) -> None:
    arm = {"protocol": "authors", "task": "genealogy", "model": "mlp", "head": "linear"}
    for place, seed in enumerate(SPEC.seeds):
        # Each epoch a third above the last, and once twice as high.
        set_epochs(results, 5, round(10 * 1.35**place * (1 if place < 8 else 1.55)), seed=seed, **arm)
    assert verdicts(results)["genealogy_two_modes"] == NOT_DECIDED


def test_too_few_pairs_decide_nothing(results: Results) -> None:
    arm = {"protocol": "matched", "task": "modular_addition", "model": "mlp", "head": "harmonic"}
    for seed in range(15):
        set_epochs(results, NEVER, 30, seed=seed, **arm)
    rows = EXPERIMENT.summarize(SPEC, results).tables[1].rows
    (row,) = [r for r in rows if (r["protocol"], r["task"], r["models"]) == ("matched", "Modular addition", "MLPs")]
    assert (row["pairs"], row["smaller on"], row["harmonic's gap is"]) == (5, 5, "undecided")
    assert verdicts(results)["gap_smaller_mlp_matched"] == NOT_DECIDED


def test_too_few_runs_show_no_modes(results: Results) -> None:
    set_epochs(results, 26, NEVER, protocol="authors", task="genealogy", model="mlp", head="linear")
    assert verdicts(results)["genealogy_two_modes"] == NOT_DECIDED


def test_a_short_run_decides_nothing() -> None:
    short = replace(SPEC, mlp_epochs=400, transformer_epochs=30)
    assert set(verdicts(like_the_authors(short), short).values()) == {NOT_DECIDED}


def test_the_tables_count_those_who_never_get_there(results: Results) -> None:
    tables = EXPERIMENT.summarize(SPEC, results).tables
    (row,) = [
        row
        for row in tables[0].rows
        if (row["protocol"], row["task"], row["model"]) == ("authors", "Permutation composition", "standard MLP")
    ]
    assert (row["runs"], row["learn"], row["generalize"], row["reach both"]) == (20, 20, 14, 14)
    assert row["authors' of 20"] == 14
    assert row["p, Fisher"] == 1
    (median,) = [
        row for row in tables[2].rows if list(row.values())[:3] == ["Permutation composition", "standard MLP", "test"]
    ]
    assert (median["our runs"], median["authors' runs"]) == ("14 of 20", "14 of 20")
    assert row["test [95 %]"].endswith("inf]")
    assert all(row["in our interval"] == "yes" for row in tables[2].rows)


def test_a_median_that_never_comes_is_infinite(results: Results) -> None:
    row = EXPERIMENT.summarize(SPEC, results).tables[0].rows[-1]
    assert (row["task"], row["model"]) == ("Permutation composition", "harmonic transformer")
    assert row["test [95 %]"] == "inf [inf, inf]"


def test_it_is_a_view_that_has_a_verdict_for_every_claim(results: Results) -> None:
    assert EXPERIMENT.source is not None
    assert set(verdicts(results)) == {claim.id for claim in EXPERIMENT.claims}


def test_runs_that_are_not_finished_are_left_out_of_the_tables(results: Results) -> None:
    some = {cell: result for cell, result in results.items() if cell.seed < 5}
    summary = EXPERIMENT.summarize(SPEC, some)
    assert {verdict.verdict for verdict in summary.verdicts} == {NOT_DECIDED}
    assert {row["runs"] for row in summary.tables[0].rows} == {5}
    assert summary.tables[0].rows[0]["reach both"] == 5
