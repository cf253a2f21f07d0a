"""The paper's own comparison: planted scores give planted verdicts, and every loss is trained as its authors did."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harmax.figures import house_style
from harmax_lab.algorithmic.protocols import settings
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, NOT_RUN, REPRODUCED, Verdict
from harmax_lab.kit.experiment import Context
from harmax_lab.studies.authors_losses import (
    ARGUMENTS,
    CAPTION,
    EXPERIMENT,
    FULL,
    LOSSES,
    NOTEBOOK,
    PUBLISHED,
    TEXT,
    AuthorsLossesSpec,
    cells,
    settings_of,
)
from harmax_lab.studies.tuned_losses import PAIRS_BATCH
from harmax_lab.tasks import find_task
from planted_studies import planted

SPEC = replace(FULL, seeds=tuple(range(12)))
LEADS = {"harmonic": 0.9, **dict.fromkeys((*TEXT, *CAPTION, *PUBLISHED), 0.5)}
NO_ACCURACY = dict.fromkeys(TEXT, 0.0)


def judged(
    scores: Mapping[str, float],
    *,
    variance: Mapping[str, float] | None = None,
    accuracy: Mapping[str, float] = NO_ACCURACY,
    spec: AuthorsLossesSpec = SPEC,
) -> dict[str, Verdict]:
    found = planted(cells(spec), lambda cell: scores[cell.head])
    for cell, one in found.items():
        own = {"accuracy": accuracy.get(cell.head, 1.0)}
        if variance is not None:
            own["variance"] = variance[cell.head]
        found[cell] = replace(one, metrics={**one.metrics, **own})
    return {one.claim: one for one in EXPERIMENT.summarize(spec, found).verdicts}


def verdicts(scores: Mapping[str, float], **options: Any) -> dict[str, str]:
    """Return the verdicts on MLPs, by name."""
    found = judged(scores, **options)
    return {name.removesuffix("_mlp"): one.verdict for name, one in found.items() if name.endswith("_mlp")}


def test_where_harmonic_leads_every_claim_holds_for_both_models() -> None:
    found = judged(LEADS)
    assert {one.verdict for name, one in found.items() if name.endswith(("_mlp", "_transformer"))} == {REPRODUCED}
    assert {found[claim.id].verdict for claim in ARGUMENTS} == {NOT_RUN}


@pytest.mark.parametrize(
    ("ahead", "broken"),
    [
        ("contrastive_authors", {"best_of_text", "text_by_variance"}),
        ("spherical_authors", {"best_of_text", "text_by_variance", "spherical_poorer"}),
        ("l2", {"best_of_caption"}),
        ("normface", {"best_of_published"}),
    ],
)
def test_one_loss_that_is_ahead_breaks_what_is_said_of_it_and_no_more(ahead: str, broken: set[str]) -> None:
    found = verdicts({**LEADS, ahead: 0.97})
    assert {name for name, verdict in found.items() if verdict == NOT_REPRODUCED} == broken
    assert {verdict for name, verdict in found.items() if name not in broken} == {REPRODUCED}


def test_what_ties_is_not_best() -> None:
    found = verdicts(dict.fromkeys(LOSSES, 0.9))
    assert {verdict for name, verdict in found.items() if name != "no_classifier"} == {NOT_DECIDED}


def test_structure_and_variance_are_judged_apart() -> None:
    found = verdicts(LEADS, variance={**LEADS, "spherical_authors": 0.99})
    assert (found["best_of_text"], found["text_by_variance"]) == (REPRODUCED, NOT_REPRODUCED)


def test_one_run_that_passes_shows_a_classifier() -> None:
    assert verdicts(LEADS, accuracy={"spherical_authors": 0.0})["no_classifier"] == NOT_REPRODUCED


def test_runs_that_pass_may_not_say_the_opposite() -> None:
    found = planted(cells(SPEC), lambda cell: LEADS[cell.head])
    for cell, one in found.items():
        # Harmonic runs that fail have all of the structure, and those that pass less than the rows of the caption.
        fails = cell.head == "harmonic" and cell.seed < 9
        structure = {"harmonic": 0.99 if fails else 0.3}.get(cell.head, 0.5 + 0.01 * cell.seed)
        metrics = {"accuracy": 0.1 if fails else 1.0, "structure": structure, "variance": structure}
        found[cell] = replace(one, metrics={**one.metrics, **metrics})
    verdict = {one.claim: one for one in EXPERIMENT.summarize(SPEC, found).verdicts}["spherical_poorer_mlp"]
    assert verdict.verdict == NOT_DECIDED
    assert verdict.sentence.startswith("Runs that pass the test say the opposite")


@pytest.mark.parametrize("change", [{"mlp_epochs": 6999}, {"seeds": (0, 1)}, {"authors_tasks": ("lattice",)}])
def test_fewer_epochs_seeds_or_tasks_decide_nothing(change: dict[str, Any]) -> None:
    assert set(verdicts(LEADS, spec=replace(SPEC, **change)).values()) == {NOT_DECIDED}


def test_shorter_transformers_leave_the_mlps_alone() -> None:
    found = judged(LEADS, spec=replace(SPEC, transformer_epochs=9999))
    decided = {name for name, one in found.items() if one.verdict == REPRODUCED}
    assert decided == {claim.id for claim in EXPERIMENT.claims if claim.id.endswith("_mlp")}


def test_the_caption_and_the_text_are_the_papers_and_only_of_the_figure_with_that_sentence() -> None:
    of_paper = {claim.id: claim.sentences for claim in EXPERIMENT.claims if not claim.control}
    assert of_paper == {
        "best_of_text_mlp": ("Fig. 10/3",),
        "best_of_caption_mlp": ("Fig. 10/3",),
        "spherical_poorer_mlp": ("D/13",),
        "spherical_poorer_transformer": ("D/13",),
        "proximity_explains": ("D/13",),
        "maximal_separation": ("7/7",),
        "constellations_drift": ("D/5",),
        "anchors_are_stable": ("D/6",),
        "margins_are_global": ("D/9",),
    }


@pytest.mark.parametrize("model", FULL.models)
def test_losses_on_log_probabilities_are_trained_as_the_authors_harmonic_model(model: str) -> None:
    def own(loss: str) -> RunCell:
        return RunCell("authors", "lattice", model, loss, 0.8, 0)

    harmonic = settings("authors", model, "harmonic", epochs=FULL.epochs(model))
    for loss in ("harmonic", *TEXT):
        how = settings_of(FULL, own(loss))
        assert how == harmonic
        built = how.build(find_task("lattice", protocol="authors"), model, loss)
        assert (built.head.exponent, built.head.softening) == (2.0, 1e-4)
        assert (built.head.weight is built.embedding) == (model == "mlp")
    assert settings_of(FULL, own("linear")) == settings("authors", model, "linear", epochs=FULL.epochs(model))
    for loss in ("contrastive", "infonce"):
        assert settings_of(FULL, own(loss)).batch_size == PAIRS_BATCH


def test_the_authors_losses_train_but_not_to_predict(tmp_path: Path) -> None:
    spec = replace(
        FULL, seeds=(0, 1), models=("mlp",), authors_tasks=("lattice",), losses=("harmonic", *TEXT), mlp_epochs=40
    )
    found = dict(EXPERIMENT.work.run_cells(spec, cells(spec), Context(tmp_path)))
    accuracy = {cell.head: [] for cell in found}
    for cell, one in found.items():
        assert one.metrics["diverged_at"] is None
        accuracy[cell.head].append(one.metrics["accuracy"])
    assert min(accuracy["harmonic"]) > 0.9
    assert max(accuracy["contrastive_authors"]) < 0.2
    assert max(accuracy["spherical_authors"]) < 0.02  # below chance, 1 of 25: the right class is the least probable


def test_tables_and_figures_show_every_loss_and_the_authors_numbers() -> None:
    found = planted(cells(FULL), lambda cell: LEADS[cell.head])
    tables = {table.title: table.rows for table in EXPERIMENT.summarize(FULL, found).tables}
    (beside,) = (rows for title, rows in tables.items() if "notebook" in title)
    assert len(beside) == len(NOTEBOOK)
    assert beside[1]["authors, seed 52"] == 0.9434
    assert beside[1]["here, seed 52"] == pytest.approx(0.5, abs=0.02)
    with house_style():
        pictures = EXPERIMENT.draw(FULL, found)
    assert set(pictures) == {"structure", "embeddings_mlp", "embeddings_transformer"}
    labels = [text.get_text() for text in pictures["structure"].figure.axes[0].get_yticklabels()]
    assert labels == list(LOSSES.values())
    assert len(pictures["embeddings_mlp"].figure.axes) == 2 * len(LOSSES)
