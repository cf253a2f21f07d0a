"""Fig. 3 a: planted embeddings give planted verdicts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harmax.analysis import explained_variance as two_components
from harmax_lab.algorithmic.anchors import EXPLAINED_VARIANCE
from harmax_lab.algorithmic.explained_variance import CLAIMS, EXPERIMENT, cumulative
from harmax_lab.algorithmic.runs import AlgorithmicSpec
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.store import CellResult
from planted_runs import embedding, like_the_authors

SPEC = AlgorithmicSpec(seeds=tuple(range(20)))
Results = dict[RunCell, CellResult]


def verdicts(results: Results, spec: AlgorithmicSpec = SPEC) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def set_share(results: Results, share: float, **wanted: Any) -> None:
    """Plant another explained variance into the runs with these fields."""
    for cell, result in results.items():
        if all(getattr(cell, name) == value for name, value in wanted.items()):
            results[cell] = replace(result, arrays={**result.arrays, "embedding": embedding(cell, share)})


@pytest.fixture
def results() -> Results:
    return like_the_authors(SPEC)


def test_the_last_snapshot_is_measured() -> None:
    cell = RunCell("authors", "lattice", "mlp", "harmonic", 0.8, 0)
    points = embedding(cell, 0.8)
    curve = cumulative(points[-1].astype(float))
    assert curve is not None
    assert curve[1] == pytest.approx(0.8, abs=1e-5)
    assert curve[1] == pytest.approx(two_components(points[-1]))
    assert curve[-1] == pytest.approx(1)
    assert (np.diff(curve) >= -1e-12).all()


def test_the_authors_own_numbers_reproduce_every_claim_although_one_task_is_lower(results: Results) -> None:
    found = EXPERIMENT.summarize(SPEC, results)
    assert {verdict.verdict for verdict in found.verdicts} == {REPRODUCED}
    (compact,) = [verdict for verdict in found.verdicts if verdict.claim == "more_compact"]
    assert "harmonic is clearly higher in 9 and clearly lower in 1: equivalence classes, mlp -16.6" in compact.sentence


@pytest.mark.parametrize("protocol", ["authors", "matched"])
def test_the_mean_over_tasks_and_models_decides(results: Results, protocol: str) -> None:
    name = "more_compact" + "_matched" * (protocol == "matched")
    for head, share in (("linear", 0.6), ("harmonic", 0.5)):
        set_share(results, share, protocol=protocol, head=head)
    assert verdicts(results)[name] == NOT_REPRODUCED
    for seed in SPEC.seeds:
        set_share(results, 0.4 + 0.01 * seed, protocol=protocol, head="harmonic", seed=seed)
    set_share(results, 0.5, protocol=protocol, head="linear")
    assert verdicts(results)[name] == NOT_DECIDED


@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_both_harmonic_models_need_all_of_the_lattice_in_two_components(results: Results, model: str) -> None:
    lattice = {"protocol": "authors", "task": "lattice", "model": model, "head": "harmonic"}
    set_share(results, 0.95, **lattice)
    assert verdicts(results)["lattice_in_two"] == NOT_REPRODUCED
    for seed in SPEC.seeds:
        set_share(results, 0.9999 if seed % 2 else 0.96, seed=seed, **lattice)
    assert verdicts(results)["lattice_in_two"] == NOT_REPRODUCED
    set_share(results, 0.9999, **lattice)
    for seed in (0, 1):
        set_share(results, 0.895, seed=seed, **lattice)
    assert verdicts(results)["lattice_in_two"] == NOT_DECIDED
    assert verdicts(results)["lattice_in_two_matched"] == REPRODUCED
    set_share(results, 0.95, **{**lattice, "protocol": "matched"})
    assert verdicts(results)["lattice_in_two_matched"] == NOT_REPRODUCED


def test_runs_that_pass_the_test_may_not_say_the_opposite(results: Results) -> None:
    lattice = {"protocol": "authors", "task": "lattice", "model": "mlp", "head": "harmonic"}
    for seed in SPEC.seeds[:15]:
        set_share(results, 0.9, seed=seed, **lattice)
        cell = RunCell("authors", "lattice", "mlp", "harmonic", 0.8, seed)
        curves = {**results[cell].curves, "test_accuracy": np.zeros(7000, np.float32)}
        results[cell] = replace(results[cell], curves=curves)
    (found,) = [v for v in EXPERIMENT.summarize(SPEC, results).verdicts if v.claim == "lattice_in_two"]
    assert found.verdict == NOT_DECIDED
    assert found.sentence.startswith("Runs that pass the test say the opposite")


def test_one_lattice_outside_the_plane_is_enough(results: Results) -> None:
    set_share(results, 0.98, protocol="authors", task="lattice", model="mlp", head="harmonic", seed=5)
    assert verdicts(results)["lattice_in_a_plane"] == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("count", "verdict"), [(6, NOT_REPRODUCED), (7, REPRODUCED), (19, REPRODUCED), (20, NOT_REPRODUCED)]
)
def test_modular_addition_is_compatible_from_7_to_19(results: Results, count: int, verdict: str) -> None:
    arm = {"protocol": "authors", "task": "modular_addition", "model": "mlp", "head": "harmonic"}
    for seed in SPEC.seeds:
        set_share(results, 0.999 if seed < count else 0.5, seed=seed, **arm)
    assert verdicts(results)["modular_addition_in_a_plane"] == verdict


@pytest.mark.parametrize("off", [-0.07, 0.07])
@pytest.mark.parametrize("task", ["equivalence", "genealogy"])
def test_one_mean_7_points_off_is_too_far(results: Results, task: str, off: float) -> None:
    model, head = "transformer", "linear"
    share = EXPLAINED_VARIANCE[task][model, head] + off
    set_share(results, share, protocol="authors", task=task, model=model, head=head)
    other = {"equivalence": "genealogy", "genealogy": "equivalence"}[task]
    found = verdicts(results)
    assert (found[f"{task}_means"], found[f"{other}_means"]) == (NOT_REPRODUCED, REPRODUCED)


def test_transformers_are_compared_with_the_authors_after_as_many_epochs_as_theirs(results: Results) -> None:
    for cell, result in results.items():
        if (cell.protocol, cell.task, cell.model) == ("authors", "genealogy", "transformer"):
            later = result.arrays["embedding"].copy()
            later[-1] = later[0]
            results[cell] = replace(result, arrays={**result.arrays, "embedding": later})
    assert verdicts(results)["genealogy_means"] == REPRODUCED
    (row,) = [
        row
        for row in EXPERIMENT.summarize(SPEC, results).tables[0].rows
        if (row["protocol"], row["task"], row["model"]) == ("authors", "Genealogy", "standard transformer")
    ]
    assert not row["mean [95 %]"].startswith("25.4")
    assert row["ours after as many epochs"].startswith("25.4 [")


def test_a_diverged_run_explains_nothing(results: Results) -> None:
    cell = RunCell("authors", "lattice", "mlp", "harmonic", 0.8, 3)
    broken = np.full_like(results[cell].arrays["embedding"], np.nan)
    results[cell] = replace(
        results[cell],
        arrays={**results[cell].arrays, "embedding": broken},
        metrics={**results[cell].metrics, "diverged_at": 12},
    )
    found = verdicts(results)
    assert found["lattice_in_a_plane"] == NOT_REPRODUCED
    shares, differences = EXPERIMENT.summarize(SPEC, results).tables
    row = shares.rows[1]
    assert (row["task"], row["model"], row["runs"], row["runs at 99 % or more"]) == ("Lattice", "harmonic MLP", 20, 19)
    assert row["diverged"] == 1
    assert (differences.rows[0]["pairs"], differences.rows[0]["lower on"]) == (20, 1)


def test_too_few_pairs_have_no_direction(results: Results) -> None:
    few = {cell: result for cell, result in results.items() if cell.protocol == "authors" or cell.seed < 2}
    row = EXPERIMENT.summarize(SPEC, few).tables[1].rows[10]
    assert (row["protocol"], row["pairs"], row["higher on"], row["harmonic is"]) == ("matched", 2, 2, "undecided")


@pytest.mark.parametrize("change", [{"mlp_epochs": 6999, "transformer_epochs": 100}, {"seeds": (0, 1)}])
def test_a_short_run_decides_nothing(change: dict[str, Any]) -> None:
    short = replace(SPEC, **change)
    assert set(verdicts(like_the_authors(short), short).values()) == {NOT_DECIDED}


def test_short_transformers_leave_the_mlps_decided() -> None:
    short = replace(SPEC, transformer_epochs=10)
    found = verdicts(like_the_authors(short), short)
    decided = [claim for claim, verdict in found.items() if verdict != NOT_DECIDED]
    assert decided == ["lattice_in_a_plane", "modular_addition_in_a_plane"]


def test_the_table_holds_our_mean_beside_the_authors(results: Results) -> None:
    rows = EXPERIMENT.summarize(SPEC, results).tables[0].rows
    assert len(rows) == 2 * 5 * 4
    (row,) = [
        row for row in rows if (row["protocol"], row["task"], row["model"]) == ("authors", "Genealogy", "harmonic MLP")
    ]
    assert row["mean [95 %]"].startswith("50.7 [")
    assert row["authors' mean"] == pytest.approx(50.7)
    assert row["ours - authors'"] == pytest.approx(0, abs=0.01)
    assert row["in our interval"] == "yes"
    matched = [row for row in rows if row["protocol"] == "matched"]
    assert {row[key] for row in matched for key in ("authors' mean", "in our interval", "authors' runs")} == {""}


def test_it_is_a_view_that_has_a_verdict_for_every_claim(results: Results) -> None:
    assert EXPERIMENT.source is not None
    assert EXPERIMENT.source.name == "algorithmic"
    assert set(verdicts(results)) == {claim.id for claim in CLAIMS}
