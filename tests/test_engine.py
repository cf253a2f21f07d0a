"""Runs resume, failures stay small, and nothing finished is computed twice."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harmax.engine import Event, run
from harmax.experiments.spec import NOT_DECIDED, Cell, Claim, Experiment, Progress, Spec, Summary, Verdict
from harmax.extras import MissingExtraError
from harmax.store import CellResult


@dataclass(frozen=True, kw_only=True)
class DemoSpec(Spec):
    groups: tuple[str, ...] = ("a", "b")
    scale: float = 1.0


@dataclass(frozen=True)
class DemoCell(Cell):
    group: str
    seed: int


Hook = Callable[[DemoCell], None]


def demo(calls: list[str], hook: Hook = lambda cell: None) -> Experiment[DemoSpec, DemoCell]:
    """An experiment that notes each cell it computes and lets a test fail or interrupt one."""

    def run_cells(
        spec: DemoSpec, cells: Sequence[DemoCell], progress: Progress
    ) -> Iterator[tuple[DemoCell, CellResult]]:
        for index, cell in enumerate(cells):
            hook(cell)
            calls.append(cell.name)
            progress(index / len(cells))
            generator = np.random.default_rng(cell.seed)
            yield cell, CellResult(arrays={"x": spec.scale * generator.normal(size=4)}, metrics={"seed": cell.seed})

    def summarize(spec: DemoSpec, results: Any) -> Summary:
        return Summary((Verdict("finished", NOT_DECIDED, f"{len(results)} cells", {"cells": len(results)}),))

    return Experiment(
        name="demo",
        title="Demo",
        figure="Fig. 0",
        claims=(Claim("finished", "It finishes.", "Nothing."),),
        profiles={"smoke": DemoSpec(scale=0.1), "quick": DemoSpec(seeds=(0, 1)), "full": DemoSpec(seeds=(0, 1, 2))},
        cells=lambda spec: [DemoCell(group, seed) for group in spec.groups for seed in spec.seeds],
        run_cells=run_cells,
        summarize=summarize,
        figures=lambda spec, results: {},
        group=lambda cell: cell.group,
    )


def fail_at(name: str, error: type[BaseException]) -> Hook:
    def hook(cell: DemoCell) -> None:
        if cell.name == name:
            raise error("on purpose")

    return hook


def test_a_run_holds_every_cell_and_a_summary(tmp_path: Path) -> None:
    result = run(demo([]), folder=tmp_path)
    assert list(result.results) == ["group=a,seed=0", "group=a,seed=1", "group=b,seed=0", "group=b,seed=1"]
    assert result.folder.parent == tmp_path / "demo"
    assert not result.failed
    assert result.summary is not None
    assert result.summary["cells"] == {"done": 4, "failed": 0, "damaged": 0, "total": 4}
    assert result.summary["verdicts"][0]["numbers"] == {"cells": 4}
    assert result.environments[0]["torch"]


def test_finished_cells_are_not_computed_again(tmp_path: Path) -> None:
    calls: list[str] = []
    run(demo(calls), folder=tmp_path)
    run(demo(calls), folder=tmp_path)
    assert len(calls) == 4
    run(demo(calls), folder=tmp_path, profile="full")
    assert len(calls) == 10


def test_a_new_version_of_an_experiment_starts_over(tmp_path: Path) -> None:
    calls: list[str] = []
    run(demo(calls), folder=tmp_path)
    run(replace(demo(calls), version=2), folder=tmp_path)
    assert len(calls) == 8


def test_a_failed_cell_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    calls: list[str] = []
    result = run(demo(calls, fail_at("group=a,seed=1", ZeroDivisionError)), folder=tmp_path)
    assert list(result.failed) == ["group=a,seed=1"]
    assert "ZeroDivisionError: on purpose" in result.failed["group=a,seed=1"]
    assert list(result.results) == ["group=a,seed=0", "group=b,seed=0", "group=b,seed=1"]
    assert result.summary is not None
    assert result.summary["cells"]["failed"] == 1
    calls.clear()
    again = run(demo(calls), folder=tmp_path)
    assert calls == ["group=a,seed=1"]
    assert not again.failed


@pytest.mark.parametrize("at", ["group=a,seed=0", "group=a,seed=1", "group=b,seed=1"])
def test_an_interrupted_run_resumes_to_the_same_numbers(tmp_path: Path, at: str) -> None:
    calls: list[str] = []
    whole = run(demo([]), folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(demo(calls, fail_at(at, KeyboardInterrupt)), folder=tmp_path / "cut")
    resumed = run(demo(calls), folder=tmp_path / "cut")
    assert sorted(calls) == sorted(whole.results)
    for name, result in whole.results.items():
        np.testing.assert_array_equal(resumed.results[name].arrays["x"], result.arrays["x"])
    assert resumed.summary == whole.summary


def test_a_cell_without_a_result_counts_as_failed(tmp_path: Path) -> None:
    lazy = replace(demo([]), run_cells=lambda spec, cells, progress: iter(()))
    assert len(run(lazy, folder=tmp_path).failed) == 4


def test_a_damaged_cell_is_reported_and_neither_used_nor_run(tmp_path: Path) -> None:
    calls: list[str] = []
    first = run(demo(calls), folder=tmp_path)
    victim = first.folder / "cells/group=b,seed=0/arrays.safetensors"
    victim.write_bytes(b"rubbish")
    again = run(demo(calls), folder=tmp_path)
    assert len(calls) == 4
    assert [damage.path.name for damage in again.damaged] == ["group=b,seed=0"]
    assert "group=b,seed=0" not in again.results
    assert victim.read_bytes() == b"rubbish"


def test_seeds_can_be_a_number_or_a_list(tmp_path: Path) -> None:
    assert [cell["seed"] for cell in run(demo([]), seeds=3, folder=tmp_path).cells.values()] == [0, 1, 2] * 2
    listed = run(demo([]), seeds=[7, 5], folder=tmp_path)
    assert [cell["seed"] for cell in listed.cells.values()] == [7, 5] * 2
    assert listed.config["overrides"] == {"seeds": [7, 5]}


@pytest.mark.parametrize("seeds", [0, -1, [], [1, 1], [-2]])
def test_senseless_seeds_are_refused(tmp_path: Path, seeds: Any) -> None:
    with pytest.raises(ValueError, match="`seeds` must be"):
        run(demo([]), seeds=seeds, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_smoke_is_the_smoke_profile(tmp_path: Path) -> None:
    result = run(demo([]), smoke=True, folder=tmp_path)
    assert result.profile == "smoke"
    assert result.config["spec"]["scale"] == 0.1
    with pytest.raises(ValueError, match="give one of the two"):
        run(demo([]), smoke=True, profile="full", folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"experiment": "toy_case"}, "did you mean 'toy_cases'"),
        ({"experiment": "toy_cases", "engine": "locale"}, "did you mean 'local'"),
        ({"experiment": "toy_cases", "profile": "huge"}, "must be one of smoke, quick, full, got 'huge'"),
    ],
)
def test_bad_names_are_refused_with_the_nearest_good_ones(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(**arguments, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_progress_never_goes_back_and_ends_at_one(tmp_path: Path) -> None:
    events: list[Event] = []
    run(demo([], fail_at("group=a,seed=1", ValueError)), folder=tmp_path, progress=events.append)
    fractions = [event.fraction for event in events]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0
    assert (events[-1].fraction, events[-1].done, events[-1].failed, events[-1].total) == (1.0, 3, 1, 4)


def test_a_missing_extra_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtraError, match=r'pip install "harmax\[run\]"'):
        run("toy_cases", smoke=True, folder=tmp_path)
    assert not list(tmp_path.iterdir())
