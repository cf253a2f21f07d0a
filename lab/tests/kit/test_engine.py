"""Runs resume, failures stay small, and nothing finished is computed twice."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo import DemoCell, DemoSpec, Hook, demo
from harmax import environment
from harmax.errors import MissingExtraError
from harmax.figures import Picture, new_figure
from harmax_lab.experiments import run
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.engine import ENGINES, Event
from harmax_lab.kit.experiment import Context, Experiment, view
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult


def computing(run_cells: Callable[..., Iterator[Any]], **changes: Any) -> Experiment[DemoSpec, DemoCell]:
    """Return the demo with other work."""
    whole = demo([])
    return replace(whole, work=replace(whole.work, run_cells=run_cells, **changes))


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


def sharing(calls: list[str]) -> Experiment[DemoSpec, DemoCell]:
    """The demo, whose seeds have nothing to do with one another."""
    whole = demo(calls)
    return replace(whole, work=replace(whole.work, seeds_apart=True))


def test_more_seeds_take_the_finished_cells_of_fewer(tmp_path: Path) -> None:
    calls: list[str] = []
    two = run(sharing(calls), folder=tmp_path)
    told: list[Event] = []
    three = run(sharing(calls), folder=tmp_path, seeds=[2, 1, 0], progress=told.append)
    assert calls[4:] == ["group=a,seed=2", "group=b,seed=2"]
    assert told[0].message == "4 cells taken from runs with other seeds"
    assert three.folder != two.folder
    assert not three.pending
    assert three.environments == two.environments
    fresh = run(demo([]), folder=tmp_path / "fresh", seeds=[2, 1, 0])
    for name, result in three.results.items():
        assert np.array_equal(result.arrays["x"], fresh.results[name].arrays["x"])


def test_other_settings_another_version_and_damage_are_not_taken(tmp_path: Path) -> None:
    calls: list[str] = []
    first = run(sharing(calls), folder=tmp_path)
    run(sharing(calls), folder=tmp_path, changes={"scale": 2}, seeds=3)
    assert len(calls) == 4 + 6
    run(replace(sharing(calls), version=2), folder=tmp_path, seeds=3)
    assert len(calls) == 4 + 6 + 6
    (first.cell_folder("group=a,seed=0") / "arrays.safetensors").write_bytes(b"lost")
    run(sharing(calls), folder=tmp_path, seeds=3)
    assert calls[16:] == ["group=a,seed=0", "group=a,seed=2", "group=b,seed=2"]


def test_seeds_that_share_something_are_computed_again(tmp_path: Path) -> None:
    calls: list[str] = []
    run(demo(calls), folder=tmp_path)
    run(demo(calls), folder=tmp_path, seeds=3)
    assert len(calls) == 4 + 6


def test_a_changed_setting_has_a_folder_of_its_own_and_says_what_was_changed(tmp_path: Path) -> None:
    usual = run(demo([]), folder=tmp_path)
    variant = run(demo([]), folder=tmp_path, changes={"scale": "3", "groups": "a"})
    assert variant.folder != usual.folder
    assert variant.config["overrides"] == {"scale": 3.0, "groups": ["a"]}
    assert list(variant.cells) == ["group=a,seed=0", "group=a,seed=1"]
    assert np.array_equal(
        variant.results["group=a,seed=0"].arrays["x"], 3 * usual.results["group=a,seed=0"].arrays["x"]
    )
    assert run(demo([]), folder=tmp_path, changes={"scale": 1}).folder == usual.folder
    early = run(demo([]), folder=tmp_path, changes={"scale": 0.1}, seeds=1)
    assert (early.profile, early.config["overrides"]) == ("quick", {"seeds": [0], "scale": 0.1})
    smoke = run(demo([]), folder=tmp_path, smoke=True)
    assert smoke.folder == early.folder
    assert (smoke.profile, smoke.config["overrides"]) == ("smoke", {})
    with pytest.raises(ValueError, match="no setting 'scal'; did you mean 'scale'"):
        run(demo([]), folder=tmp_path, changes={"scal": 3})


def test_figures_lie_beside_the_summary_and_a_notebook_shows_them(tmp_path: Path) -> None:
    def draw(results: Results[DemoSpec, DemoCell]) -> dict[str, Picture]:
        return {f"dots_{results.spec.scale:g}": Picture(new_figure(1, 1), "Dots < lines.")}

    result = run(replace(demo([]), figures=draw), folder=tmp_path, figures=True)
    assert sorted(path.name for path in result.figures.iterdir()) == ["captions.json", "dots_1.png"]
    assert (result.figures / "dots_1.png").read_bytes().startswith(b"\x89PNG")
    page = result._repr_html_()
    for words in (
        "4 of 4 cells done, 0 failed",
        "not decided",
        "4 cells",
        "Dots &lt; lines.",
        "data:image/png;base64,",
    ):
        assert words in page, words


def test_processes_share_a_run_by_the_names_of_its_cells(tmp_path: Path) -> None:
    calls: list[str] = []
    part = run(demo(calls), folder=tmp_path, cells="group=b")
    assert calls == part.done == ["group=b,seed=0", "group=b,seed=1"]
    assert part.summary is not None
    assert part.summary["cells"]["done"] == 2
    run(demo(calls), folder=tmp_path, cells="seed=1,group=*")
    assert calls[2:] == ["group=a,seed=1"]
    assert not run(demo(calls), folder=tmp_path).pending
    assert calls[3:] == ["group=a,seed=0"]
    with pytest.raises(ValueError, match=r"no cell matches 'seed'.* fields group, seed"):
        run(demo(calls), folder=tmp_path, cells="seed")


def test_a_part_of_a_group_leaves_its_partial_state_to_the_others(tmp_path: Path) -> None:
    def keep(spec: DemoSpec, cells: Sequence[DemoCell], context: Context) -> Iterator[tuple[DemoCell, CellResult]]:
        context.scratch.mkdir(parents=True, exist_ok=True)
        (context.scratch / cells[0].name).touch()
        yield from ((cell, CellResult(metrics={"found": len(list(context.scratch.iterdir()))})) for cell in cells)

    told: list[Event] = []
    experiment = computing(keep)
    part = run(experiment, folder=tmp_path, cells="group=a,seed=0", progress=told.append)
    assert (told[0].fraction, told[-1].fraction, told[-1].done, told[-1].total) == (0, 1, 1, 1)
    assert list((part.folder / "partial").iterdir())
    whole = run(experiment, folder=tmp_path)
    assert whole.results["group=a,seed=1"].metrics == {"found": 2}
    assert not (whole.folder / "partial").exists()


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
    lazy = computing(lambda spec, cells, progress: iter(()))
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


@pytest.mark.parametrize("seeds", [0, -1, [], [1, 1], [-2], 99_999_999_999, [2**63]])
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


def view_of(source: Experiment[DemoSpec, DemoCell], version: int = 1) -> Experiment[DemoSpec, DemoCell]:
    def judge(results: Results[DemoSpec, DemoCell]) -> Finding:
        total = sum(float(array.sum()) for array in results.array("x"))
        return Finding(None, f"{len(results)} cells", {"total": total})

    claims = (Claim("seen", "It sees.", "Nothing.", judge=judge),)
    return view(source, "look", "Look", "Fig. 9", claims, version=version)


def test_a_view_has_its_source_run_and_is_judged_on_its_results(tmp_path: Path) -> None:
    calls: list[str] = []
    look = run(view_of(demo(calls)), folder=tmp_path, seeds=3)
    assert len(calls) == 6
    (trained,) = (tmp_path / "demo").iterdir()
    assert look.source == f"demo/{trained.name}"
    assert sorted(path.name for path in look.folder.iterdir()) == ["config.json", "summary.json"]
    assert look.summary is not None
    assert look.summary["experiment"] == "look"
    assert look.summary["cells"] == {"done": 6, "failed": 0, "damaged": 0, "total": 6}
    whole = run(demo(calls), folder=tmp_path, seeds=3)
    total = sum(result.arrays["x"].sum() for result in whole.results.values())
    assert look.summary["verdicts"][0]["numbers"]["total"] == pytest.approx(total)
    assert look.environments == whole.environments
    run(view_of(demo(calls)), folder=tmp_path, seeds=3)
    assert len(calls) == 6


def test_a_view_completes_what_its_source_lacks(tmp_path: Path) -> None:
    calls: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(demo(calls, fail_at("group=b,seed=0", KeyboardInterrupt)), folder=tmp_path)
    assert len(calls) == 2
    look = run(view_of(demo(calls)), folder=tmp_path)
    assert len(calls) == 4
    assert len(look.done) == 4


def test_a_views_counts_are_its_sources(tmp_path: Path) -> None:
    broken = demo([], fail_at("group=a,seed=1", ZeroDivisionError))
    look = run(view_of(broken), folder=tmp_path)
    assert list(look.failed) == ["group=a,seed=1"]
    assert look.summary is not None
    assert look.summary["cells"] == {"done": 3, "failed": 1, "damaged": 0, "total": 4}
    mended = run(view_of(demo([])), folder=tmp_path)
    assert not mended.failed


def test_a_views_key_changes_with_its_sources_version(tmp_path: Path) -> None:
    keys = {
        run(view_of(replace(demo([]), version=of_source), version), smoke=True, folder=tmp_path).folder
        for of_source in (1, 2)
        for version in (1, 2)
    }
    assert len(keys) == 4
    assert len(list((tmp_path / "demo").iterdir())) == 2


def with_partial_state(seen: list[str], hook: Hook) -> Experiment[DemoSpec, DemoCell]:
    def run_cells(spec: DemoSpec, cells: Sequence[DemoCell], context: Context) -> Iterator[Any]:
        context.scratch.mkdir(parents=True, exist_ok=True)
        state = context.scratch / "state"
        seen.append(state.read_text() if state.exists() else "")
        state.write_text(cells[0].group)
        for cell in cells:
            hook(cell)
            yield cell, CellResult()

    return computing(run_cells)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_partial_state_outlives_an_interruption_and_goes_with_the_group(tmp_path: Path, error: type) -> None:
    seen: list[str] = []
    cut = with_partial_state(seen, fail_at("group=b,seed=1", error))
    with contextlib.suppress(KeyboardInterrupt):
        run(cut, folder=tmp_path)
    assert seen == ["", ""], "one group must not see another's state"
    assert [path.read_text() for path in tmp_path.rglob("state")] == ["b"]
    result = run(with_partial_state(seen, lambda cell: None), folder=tmp_path)
    assert seen == ["", "", "b"]
    assert not (result.folder / "partial").exists()


def test_the_device_reaches_the_cells_and_the_record_but_not_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "choose_device", lambda wanted: wanted or "cpu")
    monkeypatch.setitem(ENGINES, "local", ENGINES["local"]._replace(choose_device=lambda wanted: wanted or "cuda"))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"Abacus at {device}")
    devices: list[str] = []

    def run_cells(spec: DemoSpec, cells: Sequence[DemoCell], context: Context) -> Iterator[Any]:
        devices.append(context.device)
        return ((cell, CellResult()) for cell in cells)

    fast = computing(run_cells, accelerated=True)
    folders = {run(fast, folder=tmp_path / name, device=name).folder.name for name in ("cpu", "cuda", "cuda:1")}
    assert len(folders) == 1
    assert devices == ["cpu"] * 2 + ["cuda"] * 2 + ["cuda:1"] * 2
    (record,) = run(fast, folder=tmp_path / "cuda:1").environments
    assert record["device"] == "Abacus at cuda:1"
    slow = run(demo([]), folder=tmp_path)
    assert slow.environments[0]["device"].endswith("CPU")
    with pytest.raises(ValueError, match="`demo` computes on the CPU only, got device 'cuda'"):
        run(demo([]), folder=tmp_path / "none", device="cuda")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta", ""])
def test_a_device_that_is_not_there_is_refused_before_any_work(tmp_path: Path, device: str) -> None:
    with pytest.raises(ValueError, match="`device` must be one that this machine has"):
        run(demo([]), folder=tmp_path, device=device)
    assert not list(tmp_path.iterdir())


def test_failed_cells_can_be_left_alone(tmp_path: Path) -> None:
    run(demo([], fail_at("group=a,seed=1", ValueError)), folder=tmp_path)
    calls: list[str] = []
    result = run(demo(calls), folder=tmp_path, retry=False)
    assert not calls
    assert list(result.failed) == ["group=a,seed=1"]


def test_the_time_of_cells_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("harmax_lab.kit.engine.ledger.time.perf_counter", lambda: float(next(clock)))
    assert run(demo([]), folder=tmp_path).seconds == 4
