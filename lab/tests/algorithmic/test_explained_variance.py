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
    curve = cumulative(CellResult(arrays={"embedding": points}, metrics={"diverged_at": None}))
    assert curve is not None
    assert curve[1] == pytest.approx(0.8, abs=1e-5)
    assert curve[1] == pytest.approx(two_components(points[-1]))
    assert curve[-1] == pytest.approx(1)
    assert (np.diff(curve) >= -1e-12).all()


def test_the_authors_own_numbers_say_that_harmonic_mlps_lose_on_equivalence_classes(results: Results) -> None:
    found = verdicts(results)
    assert [claim for claim, verdict in found.items() if verdict != REPRODUCED] == [
        "harmonic_beats_standard_mlp_authors",
        "harmonic_beats_standard_mlp_matched",
    ]
    assert found["harmonic_beats_standard_mlp_authors"] == NOT_REPRODUCED


@pytest.mark.parametrize("protocol", ["authors", "matched"])
def test_harmonic_wins_where_it_is_higher_in_every_task(results: Results, protocol: str) -> None:
    set_share(results, 0.97, protocol=protocol, task="equivalence", model="mlp", head="harmonic")
    assert verdicts(results)[f"harmonic_beats_standard_mlp_{protocol}"] == REPRODUCED


def test_a_tie_is_not_decided(results: Results) -> None:
    for head in ("linear", "harmonic"):
        set_share(results, 0.5, protocol="matched", task="genealogy", model="transformer", head=head)
    assert verdicts(results)["harmonic_beats_standard_transformer_matched"] == NOT_DECIDED


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


def test_a_diverged_run_is_left_out_of_means_but_is_no_lattice(results: Results) -> None:
    cell = RunCell("authors", "lattice", "mlp", "harmonic", 0.8, 3)
    broken = np.full_like(results[cell].arrays["embedding"], np.nan)
    results[cell] = replace(
        results[cell],
        arrays={**results[cell].arrays, "embedding": broken},
        metrics={**results[cell].metrics, "diverged_at": 12},
    )
    own = EXPERIMENT.results(SPEC, results).where(protocol="authors", task="lattice", arm=cell.arm)
    assert len(own.metric("explained_variance").present) == 19
    assert verdicts(results)["lattice_in_a_plane"] == NOT_REPRODUCED
    shares, differences = EXPERIMENT.summarize(SPEC, results).tables
    row = shares.rows[1]
    assert (row["task"], row["model"], row["runs"], row["runs at 99 % or more"]) == ("Lattice", "harmonic MLP", 19, 19)
    assert row["diverged"] == 1
    assert differences.rows[0]["pairs"] == 19


def test_too_few_pairs_have_no_direction(results: Results) -> None:
    for cell, result in results.items():
        if cell.protocol == "matched" and cell.seed >= 5:
            results[cell] = replace(result, metrics={**result.metrics, "diverged_at": 12})
    row = EXPERIMENT.summarize(SPEC, results).tables[1].rows[10]
    assert (row["protocol"], row["pairs"], row["higher on"], row["harmonic is"]) == ("matched", 5, 5, "undecided")
    assert verdicts(results)["harmonic_beats_standard_mlp_matched"] == NOT_DECIDED


def test_one_task_in_five_that_is_barely_lower_does_not_break_the_claim(results: Results) -> None:
    for seed in SPEC.seeds:
        higher = 0.97 if seed % 4 else 0.91
        set_share(results, 0.94, protocol="authors", task="genealogy", model="transformer", head="harmonic", seed=seed)
        set_share(results, higher, protocol="authors", task="genealogy", model="transformer", head="linear", seed=seed)
    row = EXPERIMENT.summarize(SPEC, results).tables[1].rows[7]
    assert (row["task"], row["models"]) == ("Genealogy", "transformers")
    assert row["harmonic is"] == "lower"
    assert verdicts(results)["harmonic_beats_standard_transformer_authors"] == NOT_DECIDED


@pytest.mark.parametrize("change", [{"mlp_epochs": 6999, "transformer_epochs": 100}, {"seeds": (0, 1, 2)}])
def test_a_short_run_decides_nothing(change: dict[str, Any]) -> None:
    short = replace(SPEC, **change)
    assert set(verdicts(like_the_authors(short), short).values()) == {NOT_DECIDED}


def test_short_transformers_leave_the_mlps_decided() -> None:
    short = replace(SPEC, transformer_epochs=10)
    found = verdicts(like_the_authors(short), short)
    decided = [claim for claim, verdict in found.items() if verdict != NOT_DECIDED]
    assert "lattice_in_a_plane" in decided
    assert not any("transformer" in claim or "means" in claim for claim in decided)


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
