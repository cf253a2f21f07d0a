"""Planted structures give the verdicts that they must, and every figure is drawn."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harmax.figures import house_style
from harmax_lab.algorithmic import runs
from harmax_lab.algorithmic.representations import CLAIMS, EXPERIMENT
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED, Verdict
from harmax_lab.kit.report.svg import to_svg
from harmax_lab.kit.store import CellResult
from planted_structures import diverged, plant

SPEC = replace(runs.EXPERIMENT.profiles["full"], seeds=tuple(range(10)), protocols=("matched",))
MATCHED = [claim.id for claim in CLAIMS if claim.id.endswith("_matched")]


def planted_by(noise: Callable[[RunCell], float]) -> dict[RunCell, CellResult]:
    return plant(runs.cells(SPEC), noise)


def verdicts(results: dict[RunCell, CellResult]) -> dict[str, Verdict]:
    return {verdict.claim: verdict for verdict in EXPERIMENT.summarize(SPEC, results).verdicts}


@pytest.fixture(scope="module")
def clean() -> dict[RunCell, CellResult]:
    return planted_by(lambda cell: 0.05 if cell.head == "harmonic" else 1.5)


def test_structure_against_noise_is_reproduced(clean: dict[RunCell, CellResult]) -> None:
    found = verdicts(clean)
    assert {found[claim].verdict for claim in MATCHED} == {REPRODUCED}
    numbers = found["modular_addition_matched"].numbers
    assert (numbers["clean_harmonic"], numbers["clean_linear"]) == (10, 0)


def test_noise_against_structure_is_not() -> None:
    found = verdicts(planted_by(lambda cell: 1.5 if cell.head == "harmonic" else 0.05))
    assert {found[claim].verdict for claim in MATCHED} == {NOT_REPRODUCED}


def test_models_that_are_alike_decide_nothing() -> None:
    found = verdicts(planted_by(lambda cell: 0.5))
    assert {found[claim].verdict for claim in MATCHED} == {NOT_DECIDED}


def test_one_task_in_which_the_transformer_is_worse_breaks_the_claim_of_all() -> None:
    def noise(cell: RunCell) -> float:
        return 0.05 if (cell.head == "harmonic") != (cell.model == "transformer" and cell.task == "genealogy") else 1.5

    found = verdicts(planted_by(noise))
    assert found["transformers_matched"].verdict == NOT_REPRODUCED
    assert "Genealogy: worse" in found["transformers_matched"].sentence
    assert {found[claim].verdict for claim in MATCHED if "transformers" not in claim} == {REPRODUCED}


def test_diverged_runs_count_as_the_worst(clean: dict[RunCell, CellResult]) -> None:
    def broken(seeds: int) -> dict[str, Verdict]:
        lost = {cell for cell in clean if cell.arm == ("mlp", "harmonic") and cell.seed < seeds}
        return verdicts({cell: diverged(result) if cell in lost else result for cell, result in clean.items()})

    one, nine = broken(1), broken(9)
    assert one["lattice_matched"].verdict == REPRODUCED
    assert "better on 9 of 10 seeds" in one["lattice_matched"].sentence
    assert "diverged, counted as the worst: 1" in one["lattice_matched"].sentence
    assert {nine[claim].verdict for claim in MATCHED if "transformers" not in claim} == {NOT_REPRODUCED}


def test_short_runs_and_missing_cells_decide_nothing(clean: dict[RunCell, CellResult]) -> None:
    short = EXPERIMENT.summarize(replace(SPEC, mlp_epochs=100, transformer_epochs=100), clean)
    assert {verdict.verdict for verdict in short.verdicts} == {NOT_DECIDED}
    few = {cell: result for cell, result in clean.items() if cell.task != "lattice"}
    found = verdicts(few)
    assert {claim for claim in MATCHED if found[claim].verdict == NOT_DECIDED} == {
        "lattice_matched",
        "transformers_matched",
    }


def test_tables_hold_every_model_and_count_failures(clean: dict[RunCell, CellResult]) -> None:
    results = {cell: diverged(result) if cell.seed == 3 else result for cell, result in clean.items()}
    tables = EXPERIMENT.summarize(SPEC, results).tables
    assert len(tables) == 5
    for table in tables:
        assert [row["model"] for row in table.rows] == [
            "standard MLP",
            "harmonic MLP",
            "standard transformer",
            "harmonic transformer",
        ]
        assert all((row["runs"], row["diverged"]) == (10, 1) for row in table.rows)
    circles = next(table for table in tables if table.title.startswith("Modular"))
    assert [row["runs with a clean circle"] for row in circles.rows] == [0, 9, 0, 9]


def test_figures_show_the_median_seed_and_all_seeds(clean: dict[RunCell, CellResult]) -> None:
    lost = {cell for cell in clean if cell.seed == 4 and cell.head == "linear"}
    results = {cell: diverged(result) if cell in lost else result for cell, result in clean.items()}
    with house_style():
        pictures = EXPERIMENT.draw(SPEC, results)
        sizes = {name: len(to_svg(picture.figure, name)) for name, picture in pictures.items()}
    assert set(pictures) == {"planes_matched", *(f"planes_{task}_matched" for task in SPEC.tasks)}
    assert max(sizes.values()) < 500_000
    sheet = pictures["planes_lattice_matched"].figure
    words = [text.get_text() for axes in sheet.axes for text in axes.texts]
    assert len(words) == 4 * 10
    assert words.count("diverged") == 2
    titles = [axes.get_title(loc="left") for axes in pictures["planes_matched"].figure.axes]
    assert titles[0].startswith("standard MLP\n")
    assert all(title.endswith(" %") for title in titles)


def test_it_reads_the_runs_of_algorithmic() -> None:
    assert EXPERIMENT.source is runs.EXPERIMENT
    assert EXPERIMENT.name == "representations"
