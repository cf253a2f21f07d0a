"""Fig. 3 c: planted curves give planted verdicts."""

from dataclasses import replace
from typing import Any

import pytest

from harmax_lab.algorithmic.grokking import EXPERIMENT, measure
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


@pytest.fixture
def results() -> Results:
    return like_the_authors(SPEC)


def test_an_epoch_counts_from_0_and_needs_twenty_in_a_row(results: Results) -> None:
    cell = RunCell("authors", "lattice", "mlp", "linear", 0.8, 0)
    accuracy = rise(7000, 50)
    accuracy[65] = 0.5
    result = replace(results[cell], curves={**results[cell].curves, "test_accuracy": accuracy})
    assert measure(SPEC, cell, result)["test_epoch"] == 66


@pytest.mark.parametrize(
    ("train", "test", "wait", "groks"),
    [
        (50, 40, 0, False),
        (50, 149, 99, False),
        (50, 150, 100, True),
        (150, 290, 140, False),  # less than twice as late
        (50, NEVER, 7000, True),
        (NEVER, NEVER, 7000, False),  # has nothing to wait for, but is no better than one that waits
        (NEVER, 40, 0, False),  # dropout lowers the training accuracy
    ],
)
def test_a_run_waits_from_fitting_to_generalizing(
    results: Results, train: float, test: float, wait: float, groks: bool
) -> None:
    cell = RunCell("authors", "lattice", "mlp", "linear", 0.8, 0)
    set_epochs(results, train, test, protocol="authors", task="lattice", model="mlp", head="linear", seed=0)
    found = measure(SPEC, cell, results[cell])
    assert (found["wait"], found["groks"]) == (wait, groks)
    broken = replace(results[cell], metrics={**results[cell].metrics, "diverged_at": 6000})
    found = measure(SPEC, cell, broken)
    assert (found["test_epoch"], found["wait"], found["groks"]) == (NEVER, 7000, False)


def test_the_authors_numbers_come_back_but_their_transformers_contradict_the_first_claim(results: Results) -> None:
    found = verdicts(results)
    assert found.pop("genealogy_two_modes") == NOT_REPRODUCED  # planted evenly around their median
    assert {claim for claim, verdict in found.items() if verdict != REPRODUCED} == {
        f"less_grokking_{models}_{protocol}"
        for models in ("overall", "transformer")
        for protocol in ("authors", "matched")
    }


def test_each_sentence_of_the_section_has_its_claims() -> None:
    sentences = {claim.id: claim.sentences for claim in EXPERIMENT.claims if claim.sentences}
    assert sentences == {
        "less_grokking_overall_authors": ("3.4/3",),
        **dict.fromkeys(("most_evident_authors", "standard_severe_authors", "harmonic_closer_authors"), ("3.4/5",)),
    }


def test_overall_means_over_tasks_and_models(results: Results) -> None:
    set_epochs(results, 100, 3000, head="linear")
    set_epochs(results, 100, 200, head="harmonic")
    assert verdicts(results)["less_grokking_overall_authors"] == REPRODUCED
    set_epochs(results, 100, 5000, head="harmonic", task="equivalence")  # a longer wait in one task of five
    found = verdicts(results)
    assert found["less_grokking_overall_authors"] == found["less_grokking_drawn_authors"] == REPRODUCED
    set_epochs(results, 100, 200, head="linear")
    found = verdicts(results)
    assert found["less_grokking_overall_authors"] == found["less_grokking_drawn_authors"] == NOT_REPRODUCED


def test_a_difference_that_varies_over_seeds_is_not_decided(results: Results) -> None:
    set_epochs(results, 100, 600)
    for seed in SPEC.seeds:
        set_epochs(results, 100, 500 if seed % 2 else 720, seed=seed, head="harmonic")
    found = verdicts(results)
    assert found["less_grokking_overall_authors"] == found["less_grokking_mlp_matched"] == NOT_DECIDED


def test_a_run_that_never_generalizes_counts_as_the_longest_wait(results: Results) -> None:
    set_epochs(results, 100, 3000, head="linear", model="mlp")
    set_epochs(results, 100, 200, head="harmonic", model="mlp")
    for seed in range(18):
        set_epochs(results, 300, NEVER, seed=seed, head="harmonic", model="mlp")
    found = verdicts(results)
    assert found["less_grokking_mlp_authors"] == NOT_REPRODUCED
    (verdict,) = [v for v in EXPERIMENT.summarize(SPEC, results).verdicts if v.claim == "less_grokking_mlp_authors"]
    assert "Over the 10 of 100 pairs in which both reach both accuracies: 2800 [2800, 2800] epochs." in verdict.sentence


def test_too_few_seeds_that_reach_decide_nothing_about_the_papers_figure(results: Results) -> None:
    for seed in range(11):
        set_epochs(results, 300, NEVER, seed=seed, head="harmonic")
    assert verdicts(results)["less_grokking_drawn_authors"] == NOT_DECIDED


@pytest.mark.parametrize(
    ("task", "standard", "verdict"),
    [
        ("lattice", 9, REPRODUCED),
        ("equivalence", NEVER, NOT_REPRODUCED),  # the improvement there is larger than in modular addition
        ("modular_addition", 300, NOT_REPRODUCED),  # no improvement in one of the two
    ],
)
def test_evident_in_two_tasks_means_more_than_in_the_others(
    results: Results, task: str, standard: float, verdict: str
) -> None:
    set_epochs(results, 8, standard, protocol="authors", task=task, model="mlp", head="linear")
    if task == "modular_addition":
        set_epochs(results, 8, 300, protocol="authors", task=task, model="mlp", head="harmonic")
    found = verdicts(results)
    assert found["most_evident_authors"] == verdict
    assert found["most_evident_matched"] == REPRODUCED


@pytest.mark.parametrize(
    ("groks", "verdict"), [(20, REPRODUCED), (12, REPRODUCED), (9, NOT_DECIDED), (4, NOT_REPRODUCED)]
)
def test_severe_grokking_is_that_of_most_runs_in_both_tasks(results: Results, groks: int, verdict: str) -> None:
    arm = {"protocol": "authors", "task": "permutation", "model": "mlp", "head": "linear"}
    for seed in SPEC.seeds:
        set_epochs(results, 95, 2861 if seed < groks else 120, seed=seed, **arm)
    found = verdicts(results)
    assert (found["standard_severe_authors"], found["standard_severe_matched"]) == (verdict, REPRODUCED)


def test_a_model_that_never_fits_does_not_grok(results: Results) -> None:
    set_epochs(results, NEVER, NEVER, protocol="authors", task="permutation", model="mlp", head="linear")
    assert verdicts(results)["standard_severe_authors"] == NOT_REPRODUCED


def test_the_same_breaks_under_the_matched_protocol(results: Results) -> None:
    arm = {"protocol": "matched", "model": "mlp", "head": "linear"}
    set_epochs(results, 8, NEVER, task="equivalence", **arm)
    set_epochs(results, NEVER, NEVER, task="permutation", **arm)
    found = verdicts(results)
    assert (found["most_evident_matched"], found["standard_severe_matched"]) == (NOT_REPRODUCED, NOT_REPRODUCED)


@pytest.mark.parametrize(
    ("near", "verdict"), [(18, REPRODUCED), (12, REPRODUCED), (9, NOT_DECIDED), (4, NOT_REPRODUCED)]
)
def test_most_points_must_lie_much_closer_to_the_line(results: Results, near: int, verdict: str) -> None:
    arm = {"protocol": "authors", "task": "modular_addition", "model": "mlp", "head": "harmonic"}
    for seed in SPEC.seeds:
        set_epochs(results, 300, 310 if seed < near else 1000, seed=seed, **arm)  # the standard one waits for 964
    found = verdicts(results)
    assert (found["harmonic_closer_authors"], found["harmonic_closer_matched"]) == (verdict, REPRODUCED)


def test_a_harmonic_model_that_never_generalizes_is_not_close_to_the_line(results: Results) -> None:
    set_epochs(results, 300, NEVER, protocol="authors", task="permutation", model="mlp")
    assert verdicts(results)["harmonic_closer_authors"] == NOT_REPRODUCED


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


def test_too_few_runs_show_no_modes(results: Results) -> None:
    set_epochs(results, 26, NEVER, protocol="authors", task="genealogy", model="mlp", head="linear")
    assert verdicts(results)["genealogy_two_modes"] == NOT_DECIDED


def test_few_seeds_decide_nothing() -> None:
    few = replace(SPEC, seeds=tuple(range(9)))
    assert set(verdicts(like_the_authors(few), few).values()) == {NOT_DECIDED}


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


def test_the_table_of_waits_shows_all_pairs_and_those_that_reach(results: Results) -> None:
    rows = EXPERIMENT.summarize(SPEC, results).tables[1].rows
    (row,) = [
        row
        for row in rows
        if (row["protocol"], row["task"], row["models"]) == ("authors", "Permutation composition", "MLPs")
    ]
    assert (row["pairs"], row["shorter on"], row["pairs that reach"]) == (20, 18, 14)
    assert row["standard's mean"] > 0.3 * 7000 > row["harmonic's mean"] > 0.1 * 7000
    assert (row["standard that grok"], row["harmonic that grok"]) == (20, 18 - 16)


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
