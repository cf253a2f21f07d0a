"""The case study: verdicts on runs that generalize when they are told to, and the figure."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harmax.figures import house_style
from harmax_lab.algorithmic import modular_case
from harmax_lab.algorithmic.modular_case import (
    CASES,
    EXPERIMENT,
    CaseCell,
    cells,
    measure,
)
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.report.svg import to_svg
from harmax_lab.kit.store import CellResult
from planted_structures import diverged, planted

SPEC = replace(EXPERIMENT.profiles["full"], seeds=tuple(range(50, 60)))
Story = dict[str, tuple[float, float, float]]
"""For each case: when the training set is fitted, when the test set follows, the share of variance in the plane."""
PAPER: Story = {
    "standard": (100, np.inf, 0.26),
    "standard_decay": (1018, 1050, 0.58),
    "harmonic": (449, 448, 1.0),
}


def embedding(share: float, seed: int) -> np.ndarray:
    """Return 31 residues on a circle in 16 dimensions, with a share of their variance in its plane."""
    angle = 2 * np.pi * 5 * np.arange(31) / 31
    others = np.random.default_rng(seed).normal(size=(31, 14))
    basis = np.linalg.qr(np.column_stack([np.ones(31), np.cos(angle), np.sin(angle), others]))[0][:, 1:]
    return basis * np.sqrt([share / 2] * 2 + [(1 - share) / 14] * 14)


def make(story: Story, spec: modular_case.CaseSpec = SPEC) -> dict[CaseCell, CellResult]:
    results = {}
    for cell in cells(spec):
        train, test, share = story[cell.case]
        shift = cell.seed - 55
        base = planted(cell.task, cell.protocol, noise=0.0, seed=cell.seed)
        end = embedding(min(share + 0.001 * shift, 1.0) if share < 1 else share, cell.seed)
        epoch = np.arange(spec.epochs)
        low = 0.515 + 0.001 * shift
        curves = {
            "train_accuracy": np.where(epoch >= train + 10 * shift, 1.0, 0.1).astype(np.float32),
            "test_accuracy": np.where(epoch >= test + 10 * shift, 1.0, low).astype(np.float32),
        }
        arrays = {"embedding": np.stack([end, end]), "snapshot_epoch": np.array([0, spec.epochs])}
        results[cell] = CellResult({**base.curves, **curves}, arrays, base.metrics)
    return results


def verdicts(results: dict[CaseCell, CellResult], spec: modular_case.CaseSpec = SPEC) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def test_the_papers_story_is_reproduced() -> None:
    found = verdicts(make(PAPER))
    assert set(found.values()) == {REPRODUCED}


BREAKS: dict[str, tuple[str, tuple[float, float, float]]] = {
    "standard_memorises": ("standard", (100, 300, 0.26)),
    "decay_generalises": ("standard_decay", (1018, np.inf, 0.58)),
    "harmonic_sooner": ("harmonic", (1300, 1300, 1.0)),
    "harmonic_plane": ("harmonic", (449, 448, 0.9)),
}


@pytest.mark.parametrize("claim", BREAKS)
def test_each_claim_breaks_alone(claim: str) -> None:
    case, changed = BREAKS[claim]
    found = verdicts(make({**PAPER, case: changed}))
    assert found.pop("authors_numbers") != REPRODUCED
    assert {name for name, verdict in found.items() if verdict == NOT_REPRODUCED} == {
        f"{claim}_authors",
        f"{claim}_matched",
    }


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, REPRODUCED),
        ({"standard": (100, np.inf, 0.4)}, NOT_DECIDED),  # one outside
        ({"harmonic": (1300, 1300, 1.0)}, NOT_DECIDED),  # two
        ({"harmonic": (1300, 1300, 0.9)}, NOT_REPRODUCED),  # three
    ],
)
def test_a_number_or_two_outside_the_range_of_seeds_decide_nothing(
    changed: dict[str, tuple[float, float, float]], verdict: str
) -> None:
    assert verdicts(make({**PAPER, **changed}))["authors_numbers"] == verdict


def test_diverged_runs_never_generalise() -> None:
    results = make(PAPER)
    harmonic = [cell for cell in results if cell.case == "harmonic" and cell.seed > 50]
    found = verdicts({cell: diverged(result) if cell in harmonic else result for cell, result in results.items()})
    assert found["harmonic_sooner_authors"] == found["harmonic_plane_authors"] == NOT_REPRODUCED
    assert measure(SPEC, harmonic[0], diverged(results[harmonic[0]]))["test_epoch"] == np.inf


@pytest.mark.parametrize("change", [{"epochs": 1999}, {"seeds": (50, 51)}])
def test_short_runs_decide_nothing(change: dict[str, object]) -> None:
    spec = replace(SPEC, **change)
    assert set(verdicts(make(PAPER, spec), spec).values()) == {NOT_DECIDED}


def test_the_table_says_never_and_holds_the_authors_numbers() -> None:
    rows = EXPERIMENT.summarize(SPEC, make(PAPER)).tables[0].rows
    assert [row["model"] for row in rows] == [case.label for case in CASES.values()] * 2
    standard, decay, _ = rows[:3]
    assert standard["test above 0.9 from epoch"] == "never [never, never]"
    assert standard["runs that generalize"] == 0
    assert decay["test above 0.9 from epoch"].startswith("1045 [")
    assert decay["test above 0.9 from epoch"].endswith("(1050)")
    assert "(" not in rows[3]["last test accuracy"]


def test_arms_differ_in_weight_decay_and_share_their_data(tmp_path: Path) -> None:
    spec = replace(EXPERIMENT.profiles["smoke"], seeds=(50,), protocols=("authors",), epochs=2)
    found = dict(EXPERIMENT.work.run_cells(spec, cells(spec), Context(tmp_path)))
    assert {(cell.case, result.metrics["weight_decay"]) for cell, result in found.items()} == {
        ("standard", 0.0),
        ("standard_decay", 0.5),
        ("harmonic", 0.0),
    }
    assert {result.metrics["learning_rate"] for result in found.values()} == {1e-3}
    plain, decayed, _ = (result.arrays["embedding"] for result in found.values())
    np.testing.assert_array_equal(plain[0], decayed[0])
    assert not np.array_equal(plain[-1], decayed[-1])


@pytest.mark.parametrize("broken", [lambda cell: False, lambda cell: cell.case == "harmonic"])
def test_the_figure_shows_curves_and_planes(broken: Callable[[CaseCell], bool]) -> None:
    results = {cell: diverged(result) if broken(cell) else result for cell, result in make(PAPER).items()}
    with house_style():
        pictures = EXPERIMENT.draw(SPEC, results)
        assert set(pictures) == {"modular_case_authors", "modular_case_matched"}
        for name, picture in pictures.items():
            assert len(to_svg(picture.figure, name)) < 400_000
    plane = pictures["modular_case_authors"].figure.axes[5]
    if broken(cells(SPEC)[-1]):
        assert plane.texts[0].get_text() == "diverged at epoch 3"
    else:
        assert plane.get_title(loc="left").endswith("% (authors' seed 100 %)")
