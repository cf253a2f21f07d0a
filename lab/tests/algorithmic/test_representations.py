"""Sec. 3.2, sentence by sentence: planted structures give the verdicts that they must, and every figure is drawn."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from harmax.figures import house_style
from harmax_lab.algorithmic import runs
from harmax_lab.algorithmic.anchors import HARMONIC_MLP
from harmax_lab.algorithmic.representations import CLAIMS, EXPERIMENT
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, NOT_RUN, REPRODUCED, Verdict
from harmax_lab.kit.store import CellResult
from harmax_lab.report.svg import to_svg
from harmax_lab.tasks import TASKS
from planted_structures import diverged, planted

SPEC = replace(runs.EXPERIMENT.profiles["full"], seeds=tuple(range(10)), protocols=("authors",))
JUDGED = [claim for claim in CLAIMS if claim.judge is not None]
PAPERS = [claim.id for claim in JUDGED if not claim.control]
Results = dict[RunCell, CellResult]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmax_lab.algorithmic.measures.DRAWS", 99)


class Run(NamedTuple):
    """What is planted into a run."""

    noise: float
    subgroup: str = "Klein four V4"
    learned: float = 1.0
    diverges: bool = False


def as_said(cell: RunCell) -> Run:
    """Return what a run looks like if all that the paper says is true."""
    harmonic = cell.head == "harmonic"
    if cell.task == "genealogy":
        return Run(0.05 if cell.arm == HARMONIC_MLP else 5.0, "tower")
    if cell.task == "permutation":
        return Run(0.1 if harmonic else 2.0)
    return Run(0.05 if harmonic else 0.5)


def made(
    plan: Callable[[RunCell], Run], task: str | None = None, protocol: str = "authors", seeds: int = 10
) -> Results:
    """Plant the runs of one task, or of all."""
    spec = replace(
        SPEC, tasks=SPEC.tasks if task is None else (task,), protocols=(protocol,), seeds=tuple(range(seeds))
    )
    found = {}
    for cell in runs.cells(spec):
        noise, subgroup, learned, diverges = plan(cell)
        result = planted(cell.task, protocol, noise=noise, seed=cell.seed, subgroup=subgroup, learned=learned)
        found[cell] = diverged(result) if diverges else result
    return found


def verdicts(results: Results, **changes: object) -> dict[str, Verdict]:
    cells = list(results)
    of = {name: tuple(dict.fromkeys(getattr(cell, name) for cell in cells)) for name in ("task", "protocol", "seed")}
    spec = replace(SPEC, tasks=of["task"], protocols=of["protocol"], seeds=of["seed"], **changes)
    return {verdict.claim: verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


@pytest.fixture(scope="module")
def good() -> Results:
    return made(as_said)


@pytest.mark.parametrize("protocol", ["authors", "matched"])
def test_what_the_paper_says_is_reproduced_where_it_is_so(protocol: str) -> None:
    found = verdicts(made(as_said, protocol=protocol))
    names = PAPERS if protocol == "authors" else [f"{name}_matched" for name in PAPERS]
    assert {name: found[name].verdict for name in names} == dict.fromkeys(names, REPRODUCED)


def harmonic_mlp(run: Run) -> Callable[[RunCell], Run]:
    return lambda cell: run if cell.arm == HARMONIC_MLP else as_said(cell)


def of_arm(model: str, head: str, run: Run, least: int = 0) -> Callable[[RunCell], Run]:
    """Plant something else into the runs of a model, from some seed on."""
    return lambda cell: run if cell.arm == (model, head) and cell.seed >= least else as_said(cell)


def swapped(cell: RunCell) -> Run:
    return as_said(replace(cell, head="linear" if cell.head == "harmonic" else "harmonic"))


def alike(cell: RunCell) -> Run:
    return Run(0.5)


TREE = Run(0.3, "tree")
NO_TOWER, TOWER = Run(5.0, "tower"), Run(0.05, "tower")
CASES: list[tuple[str, str, Callable[[RunCell], Run], str]] = [
    ("circle", "modular_addition", harmonic_mlp(Run(0.5)), NOT_REPRODUCED),
    ("circle", "modular_addition", of_arm("mlp", "harmonic", Run(0.5), 4), NOT_DECIDED),
    ("circle", "modular_addition", of_arm("mlp", "harmonic", Run(0.5), 7), REPRODUCED),
    ("tower", "genealogy", harmonic_mlp(NO_TOWER), NOT_REPRODUCED),
    ("tower", "genealogy", harmonic_mlp(TREE), NOT_REPRODUCED),
    ("clusters", "permutation", harmonic_mlp(Run(2.0)), NOT_REPRODUCED),
    ("clusters", "permutation", harmonic_mlp(Run(1.2)), NOT_REPRODUCED),  # beyond chance, but not neat
    ("lattice_harmonic", "lattice", of_arm("transformer", "harmonic", Run(0.5)), NOT_REPRODUCED),
    ("lattice_harmonic", "lattice", of_arm("mlp", "harmonic", Run(0.5), 9), REPRODUCED),
    ("lattice_harmonic", "lattice", of_arm("mlp", "harmonic", Run(0.5), 8), NOT_DECIDED),
    ("lattice_harmonic", "lattice", of_arm("mlp", "harmonic", Run(0.05, diverges=True), 4), NOT_REPRODUCED),
    ("lattice_standard", "lattice", of_arm("mlp", "linear", Run(0.05)), NOT_REPRODUCED),
    ("lattice_standard", "lattice", of_arm("transformer", "linear", Run(0.05), 8), NOT_DECIDED),
    ("circle_harmonic_mlp", "modular_addition", of_arm("mlp", "harmonic", Run(0.5), 5), NOT_REPRODUCED),
    ("circle_harmonic_mlp", "modular_addition", of_arm("mlp", "harmonic", Run(0.5), 8), NOT_DECIDED),
    ("circle_transformers", "modular_addition", of_arm("transformer", "linear", Run(5.0)), NOT_REPRODUCED),
    ("circle_transformers", "modular_addition", of_arm("transformer", "linear", Run(5.0), 7), NOT_DECIDED),
    ("circle_transformers", "modular_addition", of_arm("transformer", "linear", Run(5.0), 8), REPRODUCED),
    ("variance_transformers", "modular_addition", alike, NOT_REPRODUCED),
    ("variance_transformers", "modular_addition", swapped, NOT_REPRODUCED),
    ("variance_transformers", "modular_addition", of_arm("transformer", "linear", Run(0.05), 5), NOT_DECIDED),
    ("classes_found", "equivalence", of_arm("transformer", "linear", Run(30.0)), NOT_REPRODUCED),
    ("classes_found", "equivalence", of_arm("transformer", "linear", Run(30.0), 4), NOT_DECIDED),
    ("classes_elongated", "equivalence", swapped, NOT_REPRODUCED),
    ("classes_elongated", "equivalence", alike, NOT_DECIDED),
    ("tree", "genealogy", harmonic_mlp(NO_TOWER), NOT_REPRODUCED),
    ("tree", "genealogy", of_arm("transformer", "harmonic", TOWER), NOT_REPRODUCED),
    ("tree", "genealogy", of_arm("mlp", "linear", TOWER, 6), NOT_DECIDED),
    ("tree_distances", "genealogy", lambda cell: TREE if cell.arm == HARMONIC_MLP else Run(30.0), REPRODUCED),
    ("tree_distances", "genealogy", lambda cell: TREE, NOT_REPRODUCED),
    ("clusters_separated", "permutation", swapped, NOT_REPRODUCED),
    ("clusters_separated", "permutation", alike, NOT_DECIDED),
]


@pytest.mark.parametrize(("claim", "task", "plan", "verdict"), CASES)
def test_what_is_planted_decides(claim: str, task: str, plan: Callable[[RunCell], Run], verdict: str) -> None:
    found = verdicts(made(plan, task))[claim]
    assert found.verdict == verdict, found.sentence
    if claim in PAPERS:
        assert verdicts(made(plan, task, "matched"))[f"{claim}_matched"].verdict == verdict


def test_every_claim_can_fail() -> None:
    tested = {claim for claim, _, _, verdict in CASES if verdict == NOT_REPRODUCED}
    assert tested | {"overall", "circle_standard_mlp"} >= {claim.id for claim in JUDGED if "_matched" not in claim.id}


def test_a_model_that_never_fails_does_not_often_fail() -> None:
    for protocol, claim in (("authors", "circle_standard_mlp"), ("matched", "circle_standard_mlp_matched")):
        perfect = made(of_arm("mlp", "linear", Run(0.05)), "modular_addition", protocol, seeds=20)
        assert verdicts(perfect)[claim].verdict == NOT_REPRODUCED


@pytest.mark.parametrize(("plan", "verdict"), [(swapped, NOT_REPRODUCED), (alike, NOT_DECIDED)])
def test_overall_is_about_all_tasks_and_both_models(plan: Callable[[RunCell], Run], verdict: str) -> None:
    assert verdicts(made(plan))["overall"].verdict == verdict
    assert verdicts(made(plan, protocol="matched"))["overall_matched"].verdict == verdict


def test_one_task_in_which_harmonic_is_worse_does_not_break_what_is_said_overall(good: Results) -> None:
    worse = made(swapped, "equivalence")
    found = verdicts({**good, **worse})
    assert found["overall"].verdict == REPRODUCED
    assert "equivalence classes, mlp 0 of 10" in found["overall"].sentence


def test_a_lattice_on_a_line_is_not_perfect() -> None:
    results, place = made(as_said, "lattice"), np.arange(25.0)
    bow = np.stack([place, 0.01 * np.square(place - 12), *np.zeros((14, 25))], axis=1)
    for cell, result in results.items():
        if cell.arm == ("transformer", "harmonic"):
            results[cell] = replace(result, arrays={**result.arrays, "embedding": bow[None]})
    found = verdicts(results)["lattice_harmonic"]
    assert found.verdict == NOT_REPRODUCED
    assert "harmonic transformer 0 of 10" in found.sentence


def test_runs_that_pass_the_test_may_not_say_the_opposite() -> None:
    found = verdicts(made(of_arm("mlp", "harmonic", Run(0.5, learned=0.5), 2), "modular_addition"))["circle"]
    assert found.verdict == NOT_DECIDED
    assert found.sentence.startswith("Runs that pass the test say the opposite")


def test_short_runs_few_seeds_and_missing_cells_decide_nothing(good: Results) -> None:
    short = verdicts(good, mlp_epochs=100)
    assert {short[name].verdict for name in PAPERS if "transformers" not in name} == {NOT_DECIDED}
    assert {short[name].verdict for name in PAPERS if "transformers" in name} == {REPRODUCED}
    assert short["classes_explained"].verdict == NOT_RUN
    assert short["circle"].sentence.startswith("Only 100 of the paper's 7000 epochs of MLPs were run.")
    few = verdicts({cell: result for cell, result in good.items() if cell.seed < 5})
    decided = {name for name in PAPERS if few[name].verdict != NOT_DECIDED}
    assert decided == {"overall", "variance_transformers", "classes_elongated", "clusters_separated"}
    only_mlps = verdicts({cell: result for cell, result in good.items() if cell.model == "mlp"})
    assert only_mlps["circle"].verdict == REPRODUCED
    assert only_mlps["lattice_harmonic"].verdict == NOT_DECIDED


def test_tables_hold_every_model_and_count_failures(good: Results) -> None:
    results = {cell: diverged(result) if cell.seed == 3 else result for cell, result in good.items()}
    closer, *tables = EXPERIMENT.summarize(SPEC, results).tables
    assert [row["closer on"] for row in closer.rows][:2] == [9, 9]
    assert len(tables) == len(TASKS)
    for table in tables:
        assert [row["model"] for row in table.rows] == [
            "standard MLP",
            "harmonic MLP",
            "standard transformer",
            "harmonic transformer",
        ]
        assert all((row["runs"], row["diverged"]) == (10, 1) for row in table.rows)
    circles = next(table for table in tables if table.title.startswith("Modular"))
    assert [row["perfect circles"] for row in circles.rows] == [0, 9, 0, 9]
    assert [row["runs with a clean circle"] for row in circles.rows] == [0, 9, 0, 9]


def test_figures_show_the_median_seed_and_all_seeds(good: Results) -> None:
    lost = {cell for cell in good if cell.seed == 4 and cell.head == "linear"}
    results = {cell: diverged(result) if cell in lost else result for cell, result in good.items()}
    with house_style():
        pictures = EXPERIMENT.draw(SPEC, results)
        sizes = {name: len(to_svg(picture.figure, name)) for name, picture in pictures.items()}
    sheets = {f"planes_{task}_authors" for task in SPEC.tasks}
    assert set(pictures) == {"planes_authors", "structure_authors"} | sheets
    assert max(sizes.values()) < 500_000
    sheet = pictures["planes_lattice_authors"].figure
    words = [text.get_text() for axes in sheet.axes for text in axes.texts]
    assert len(words) == 4 * 10
    assert words.count("diverged") == 2
    titles = [axes.get_title(loc="left") for axes in pictures["planes_authors"].figure.axes]
    assert titles[0].startswith("standard MLP\n")
    assert all(title.endswith(" % of the variance" if "\n" in title else " %") for title in titles)


def test_it_reads_the_runs_of_algorithmic() -> None:
    assert EXPERIMENT.source is runs.EXPERIMENT
    assert EXPERIMENT.name == "representations"
