"""Fig. 6: planted scores give planted verdicts, and what is stored of a run is what it scored."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harmax.analysis import explained_variance
from harmax_lab.algorithmic.protocols import settings
from harmax_lab.algorithmic.training import RunCell, split_of, train
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED, Verdict
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.ablation import EXPERIMENT, FULL, HEADS, OTHERS, SWITCHES, AblationSpec, cells, settings_of
from harmax_lab.studies.compare_arms import PAPERS_TASKS
from harmax_lab.studies.score_runs import compact, structure_score
from harmax_lab.studies.tables_and_figures import ELSEWHERE
from harmax_lab.tasks import find_task
from planted_studies import planted

SPEC = AblationSpec(seeds=tuple(range(12)))
PAPERS_SPEC = replace(SPEC, protocols=("authors",), models=("mlp",))
MATCHED_SPEC = replace(SPEC, protocols=("matched",), models=("mlp",))
Scores = Mapping[str, float]
PAPERS = ("lattice_either", "circle_both", "circle_better", "circle_incomplete", "only_both")
# By head, on the lattice and on modular addition.
AS_THE_PAPER_SAYS = {
    "harmonic": (1.0, 1.0),
    "l2": (0.99, 0.6),
    "dot_harmax": (0.98, 0.5),
    "linear": (0.9, 0.3),
    "gaussian": (0.4, 0.2),
    "spherical": (0.4, 0.2),
}
DISTANCE = {"linear": 0.3, "l2": 0.8, "dot_harmax": 0.3, "harmonic": 0.9}
ALONE = {"linear": 0.3, "l2": 0.3, "dot_harmax": 0.9, "harmonic": 0.8}  # HarMax, and the distance is in its way
TOGETHER = {"linear": 0.3, "l2": 0.4, "dot_harmax": 0.3, "harmonic": 0.9}


def papers(
    spec: AblationSpec = PAPERS_SPEC, *, spread: float = 0.004, accuracy: Any = 1.0, **heads: Any
) -> dict[str, Verdict]:
    """Return the verdicts on the paper's claims, by name; heads are those of `AS_THE_PAPER_SAYS` but for some."""
    scores = AS_THE_PAPER_SAYS | heads

    def score(cell: RunCell) -> float:
        found = scores[cell.head][PAPERS_TASKS.index(cell.task)] if cell.task in PAPERS_TASKS else 0.5
        return float(found(cell) if callable(found) else found)

    found = EXPERIMENT.summarize(spec, planted(cells(spec), score, spread=spread, accuracy=accuracy))
    assert [one.claim for one in found.verdicts] == [claim.id for claim in EXPERIMENT.claims]
    return {name: next(one for one in found.verdicts if one.claim == f"{name}_mlp") for name in PAPERS}


@pytest.mark.parametrize(
    ("heads", "broken"),
    [
        ({}, ()),
        # A part counts in the better of its definitions.
        ({"l2": (0.4, 0.2), "gaussian": (0.99, 0.6)}, ()),
        ({"l2": (0.9, 0.6)}, ("lattice_either",)),
        ({"dot_harmax": (0.1, 0.1)}, ("lattice_either", "circle_better")),
        ({"gaussian": (0.4, 0.97)}, ("circle_both",)),
        ({"spherical": (0.4, 1.0)}, ("circle_both", "circle_incomplete")),
        ({"spherical": (1.0, 1.0)}, ("circle_both", "circle_incomplete", "only_both")),
        ({"linear": (0.9, 0.9)}, ("circle_better",)),
        ({"harmonic": (1.0, 0.9)}, ("only_both",)),
    ],
)
def test_planted_scores_give_planted_verdicts_on_the_papers_sentences(
    heads: dict[str, Any], broken: tuple[str, ...]
) -> None:
    found = papers(**heads)
    assert {name for name, one in found.items() if one.verdict == NOT_REPRODUCED} == set(broken)
    assert {one.verdict for name, one in found.items() if name not in broken} == {REPRODUCED}


def test_what_does_not_learn_does_not_replicate() -> None:
    fails = papers(accuracy=lambda cell: 0.5 if cell.head in ("l2", "gaussian") else 1.0)
    assert fails["lattice_either"].verdict == NOT_REPRODUCED
    assert fails["circle_both"].verdict == REPRODUCED


def test_scores_near_the_margin_decide_nothing() -> None:
    near = papers(l2=(0.98, 0.95), linear=(0.9, 0.5), spread=0.1)
    for name in ("lattice_either", "circle_both", "circle_better"):
        assert near[name].verdict == NOT_DECIDED


def test_runs_that_fail_the_test_do_not_decide_what_trained_models_look_like() -> None:
    def passes(cell: RunCell) -> bool:
        return cell.seed % 2 == 0

    found = papers(
        l2=(0.99, lambda cell: 1.0 if passes(cell) else 0.1), accuracy=lambda cell: 1.0 if passes(cell) else 0.1
    )["circle_incomplete"]
    assert found.verdict == NOT_DECIDED
    assert found.sentence.startswith("Runs that pass the test say the opposite")


@pytest.mark.parametrize("change", [{"seeds": (0, 1)}, {"mlp_epochs": 6999}])
def test_too_few_seeds_or_epochs_decide_nothing(change: dict[str, Any]) -> None:
    assert {one.verdict for one in papers(replace(PAPERS_SPEC, **change)).values()} == {NOT_DECIDED}
    assert set(controls(TOGETHER, replace(MATCHED_SPEC, **change)).values()) == {NOT_DECIDED}


def test_other_tasks_decide_nothing_of_the_paper() -> None:
    found = papers(replace(PAPERS_SPEC, authors_tasks=("genealogy",)))
    assert {one.verdict for one in found.values()} == {NOT_DECIDED}


def test_each_claim_of_the_paper_names_its_sentence() -> None:
    named = {claim.id: claim.sentences for claim in EXPERIMENT.claims if not claim.control}
    assert [named[f"{name}_mlp"][0] for name in PAPERS] == ["6/5", "6/6", "6/7", "6/7", "Fig. 6/5"]
    assert len(named) == len(PAPERS)


def controls(scores: Scores, spec: AblationSpec = MATCHED_SPEC) -> dict[str, str]:
    """Return the verdicts on MLPs under the matched protocol, by name."""
    found = EXPERIMENT.summarize(spec, planted(cells(spec), lambda cell: scores.get(cell.head, 0.5)))
    tail = "_mlp_matched"
    return {one.claim.removesuffix(tail): one.verdict for one in found.verdicts if one.claim.endswith(tail)}


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (TOGETHER, (REPRODUCED, REPRODUCED)),
        (ALONE, (NOT_REPRODUCED, NOT_REPRODUCED)),
        # Nothing does anything.
        (dict.fromkeys(HEADS, 0.5), (NOT_DECIDED, NOT_DECIDED)),
    ],
)
def test_planted_scores_give_planted_verdicts_on_controls(scores: Scores, expected: tuple[str, ...]) -> None:
    found = controls(scores)
    assert tuple(found[name] for name in ("both_needed", "interaction")) == expected


@pytest.mark.parametrize(
    ("protocol", "model"), [("authors", "mlp"), ("authors", "transformer"), ("matched", "transformer")]
)
@pytest.mark.parametrize(("scores", "verdict"), [(TOGETHER, REPRODUCED), (ALONE, NOT_REPRODUCED)])
def test_controls_turn_for_each_model_and_protocol(protocol: str, model: str, scores: Scores, verdict: str) -> None:
    spec = replace(SPEC, protocols=(protocol,), models=(model,))
    made = planted(cells(spec), lambda cell: scores.get(cell.head, 0.5))
    own = {f"{name}_{model}_{protocol}" for name in ("both_needed", "interaction")}
    found = {one.claim: one.verdict for one in EXPERIMENT.summarize(spec, made).verdicts if one.claim in own}
    assert set(found.values()) == {verdict}


def test_of_fewer_tasks_only_what_asks_for_no_others_is_decided() -> None:
    found = controls(TOGETHER, replace(MATCHED_SPEC, tasks=PAPERS_TASKS))
    assert {name for name, verdict in found.items() if verdict != NOT_DECIDED} == {"both_needed"}


def test_effects_are_the_usual_ones_of_two_switches() -> None:
    results = planted(cells(SPEC), lambda cell: DISTANCE.get(cell.head, 0.5), spread=0.0)
    place = next(one for one in SPEC.places(results) if (one.protocol, one.model) == ("matched", "mlp"))
    place = place._replace(tasks=("lattice", "genealogy"))
    found = {name: place.contrast(weights, "structure") for name, weights in SWITCHES.items()}
    effects = {name: one.difference.estimate for name, one in found.items() if one}
    assert effects == pytest.approx({"distance": 0.55, "HarMax": 0.05, "interaction": 0.1})


def test_only_seeds_that_all_heads_have_are_compared() -> None:
    results = planted(cells(SPEC), lambda cell: TOGETHER.get(cell.head, 0.5))
    del results[RunCell("matched", "lattice", "mlp", "l2", 0.8, 3)]
    _, effects, *_ = EXPERIMENT.summarize(SPEC, results).tables
    seeds = {(row["models"], row["task"]): row["seeds"] for row in effects.rows if row["protocol"] == "matched"}
    assert seeds["MLPs", "Lattice"] == seeds["MLPs", "mean of 5"] == 11
    assert seeds["MLPs", "Genealogy"] == seeds["transformers", "Lattice"] == 12


def test_never_generalizing_is_later_than_any_epoch() -> None:
    scores = {"harmonic": 0.9, "linear": 0.4}
    own = [RunCell("matched", "lattice", "mlp", head, 0.8, seed) for head in scores for seed in range(12)]
    (whole,) = (one for one in SPEC.places(planted(own, lambda cell: scores[cell.head])) if one.runs)
    found = whole.alone()[0].epochs_later("harmonic", "linear")
    assert found is not None
    assert found.difference.high == -np.inf
    assert found.less == 12


def test_under_the_matched_protocol_heads_differ_in_the_two_switches_alone() -> None:
    for model in ("mlp", "transformer"):
        own = [RunCell("matched", "lattice", model, head, 0.8, 0) for head in HEADS]
        assert len({settings_of(FULL, cell) for cell in own}) == 1
    biased = [RunCell("authors", "lattice", "mlp", head, 0.8, 0) for head in HEADS]
    assert [settings_of(FULL, cell).bias for cell in biased] == [head == "linear" for head in HEADS]


def test_the_two_arms_of_the_authors_are_trained_as_in_algorithmic() -> None:
    for protocol in ("authors", "matched"):
        for model in ("mlp", "transformer"):
            for head in ("linear", "harmonic"):
                own = settings_of(FULL, RunCell(protocol, "lattice", model, head, 0.8, 0))
                assert own == settings(protocol, model, head, epochs=FULL.epochs(model))


def test_a_stored_run_has_the_scores_of_its_whole_curves_and_last_embedding(tmp_path: Path) -> None:
    cell = RunCell("matched", "modular_addition", "mlp", "l2", 0.8, 0)
    spec = AblationSpec(mlp_epochs=70)
    how = settings_of(spec, cell)
    ((_, whole),) = train([cell], lambda cell: how, Context(tmp_path), snapshots=2)
    ((_, kept),) = compact([(cell, whole)])
    points = whole.arrays["embedding"][-1].astype(float)
    late = whole.curves["test_accuracy"][-7:]  # a tenth of 70 epochs
    assert kept.metrics["accuracy"] == pytest.approx(late.mean())
    assert kept.curves["test_accuracy"][-1] == late[-1]
    assert kept.metrics["variance"] == pytest.approx(explained_variance(points))
    assert kept.metrics["structure"] == pytest.approx(structure_score(find_task(cell.task).structure, points))
    assert kept.metrics["leak"] == 0
    assert split_of(cell).train.shape[0] == kept.metrics["train_rows"]
    assert len(kept.curves["epoch"]) < 70
    assert kept.arrays["embedding"].shape == (1, 31, 16)


def test_structure_is_1_where_it_is_all_there_and_near_0_in_noise() -> None:
    generator = np.random.default_rng(0)
    lattice, circle = find_task("lattice").structure, find_task("modular_addition").structure
    axes = generator.normal(size=(2, 16))
    assert structure_score(lattice, lattice.values @ axes) == pytest.approx(1)
    angle = 2 * np.pi * 3 * circle.values / 31
    assert structure_score(circle, np.stack([np.cos(angle), np.sin(angle)], 1) @ axes) == pytest.approx(1)
    for task in ("lattice", "modular_addition", "equivalence", "genealogy", "permutation"):
        structure = find_task(task).structure
        assert abs(structure_score(structure, generator.normal(size=(len(structure.values), 16)))) < 0.35


def test_a_diverged_run_scores_nothing() -> None:
    cell = RunCell("matched", "lattice", "mlp", "l2", 0.8, 0)
    curves = {name: np.ones(30) for name in ("train_accuracy", "test_accuracy")}
    arrays = {"embedding": np.full((2, 25, 16), np.nan), "snapshot_epoch": np.array([0, 30])}
    ((_, kept),) = compact([(cell, CellResult(curves, arrays, {"diverged_at": 7, "waste": 0.1}))])
    assert [kept.metrics[name] for name in ("structure", "variance", "accuracy", "test_epoch")] == [0, 0, 0, None]
    assert "waste" not in kept.metrics


def test_the_full_profile_has_20_seeds_of_everything() -> None:
    assert len(cells(FULL)) == (2 * 2 * 5 * 4 + 2 * len(OTHERS)) * 20


def test_what_an_untied_head_learned_is_tabulated_beside_the_embedding(tmp_path: Path) -> None:
    spec = AblationSpec(
        transformer_epochs=1, models=("transformer",), protocols=("authors",), authors_tasks=("lattice",)
    )
    own = [RunCell("authors", "lattice", "transformer", head, 0.8, 0) for head in ("linear", "harmonic")]
    found = dict(EXPERIMENT.work.run_cells(spec, own, Context(tmp_path)))
    assert [("centers" in found[cell].arrays) for cell in own] == [False, True]
    (rows,) = (table.rows for table in EXPERIMENT.summarize(spec, found).tables if table.title == ELSEWHERE)
    assert [row["arm"] for row in rows] == [HEADS["harmonic"]]
    assert "at their own length" not in rows[0]
    assert float(rows[0]["of the head's own weight"].split()[0]) == pytest.approx(
        found[own[1]].metrics["center_structure"], rel=0.01
    )
