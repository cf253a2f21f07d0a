"""The Ray engine, on a real cluster of this machine: the same numbers, failures that stay small, nothing done twice."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from harmax.engine import Event, run
from harmax.engine.ray import slots_for
from harmax.environment import cores
from harmax.experiments.spec import Cell, Context, Experiment, Spec, Summary
from harmax.store import CellResult


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    # Workers read this file to find what is in it.
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(num_cpus=2, object_store_memory=2**27, runtime_env={"env_vars": {"PYTHONPATH": path}}, **options)
    yield
    ray.shutdown()


@dataclass(frozen=True, kw_only=True)
class NumberSpec(Spec):
    scale: float = 1.0
    fail: str = ""
    """Cells with this field fail: by an error, or by the death of their process."""
    death: bool = False


@dataclass(frozen=True)
class NumberCell(Cell):
    group: str
    seed: int


def run_cells(
    spec: NumberSpec, cells: Sequence[NumberCell], context: Context
) -> Iterator[tuple[NumberCell, CellResult]]:
    for index, cell in enumerate(cells):
        if cell.group == spec.fail and cell.seed:
            if spec.death:
                os._exit(3)
            raise RuntimeError("out of numbers")
        context(index / len(cells), f"cell {cell.seed}")
        value = spec.scale * np.random.default_rng(cell.seed).normal(size=4)
        yield cell, CellResult(arrays={"x": value}, metrics={"process": os.getpid(), "cores": cores()})


def together(cell: NumberCell) -> None:
    return None


def by_group(cell: NumberCell) -> str:
    return cell.group


def cells_of(spec: NumberSpec) -> list[NumberCell]:
    return [NumberCell(group, seed) for group in ("a", "b") for seed in spec.seeds]


def numbers(spec: NumberSpec | None = None, **changes: Any) -> Experiment[NumberSpec, NumberCell]:
    spec = spec or NumberSpec(seeds=(0, 1))
    whole: Experiment[NumberSpec, NumberCell] = Experiment(
        name="numbers",
        title="Numbers",
        figure="Fig. 0",
        claims=(),
        profiles=dict.fromkeys(("smoke", "quick", "full"), spec),
        cells=cells_of,
        run_cells=run_cells,
        summarize=lambda spec, results: Summary(()),
        figures=lambda spec, results: {},
        group=by_group,
    )
    return replace(whole, **changes)


def test_the_numbers_are_those_of_the_local_engine(tmp_path: Path) -> None:
    events: list[Event] = []
    far = run(numbers(), engine="ray", folder=tmp_path / "ray", progress=events.append)
    near = run(numbers(), folder=tmp_path / "local")
    assert list(far.results) == list(near.results)
    for name, result in near.results.items():
        np.testing.assert_array_equal(far.results[name].arrays["x"], result.arrays["x"])
        assert far.results[name].metrics["process"] != os.getpid()
        assert far.results[name].metrics["cores"] == 1
    assert far.environments
    assert far.seconds > 0
    assert (events[-1].done, events[-1].failed, events[-1].total, events[-1].fraction) == (4, 0, 4, 1.0)
    assert not (far.folder / "partial").exists()


def test_a_real_experiment_stacked_in_one_group_is_cut_and_comes_out_the_same(tmp_path: Path) -> None:
    far, near = (run("ablation", smoke=True, engine=engine, folder=tmp_path / engine) for engine in ("ray", "local"))
    assert not far.failed
    assert list(far.results) == list(near.results)
    for name, result in near.results.items():
        # Stacks of other sizes round differently.
        np.testing.assert_allclose(far.results[name].arrays["embedding"], result.arrays["embedding"], atol=1e-5)


def test_a_group_without_a_key_is_cut_into_as_many_parts_as_run_at_once(tmp_path: Path) -> None:
    slow = numbers(NumberSpec(seeds=(0, 1, 2)), group=together, run_cells=slowly)
    found = run(slow, engine="ray", folder=tmp_path).results
    processes = [result.metrics["process"] for result in found.values()]
    assert len(set(processes)) == 2
    assert processes == sorted(processes, key=processes.index)  # neighbours stay together


def slowly(spec: NumberSpec, cells: Sequence[NumberCell], context: Context) -> Iterator[tuple[NumberCell, CellResult]]:
    time.sleep(1.0)  # so that one process cannot do it all
    yield from run_cells(spec, cells, context)


@pytest.mark.parametrize("death", [False, True])
def test_a_failure_or_a_death_keeps_what_is_finished_and_the_others_go_on(tmp_path: Path, death: bool) -> None:
    broken = numbers(NumberSpec(seeds=(0, 1), fail="a", death=death))
    result = run(broken, engine="ray", folder=tmp_path)
    assert "group=a,seed=1" in result.failed
    assert {"group=b,seed=0", "group=b,seed=1"} <= set(result.done)
    (error, *_) = result.failed.values()
    if death:
        assert "ray.exceptions" in error
    else:
        assert "RuntimeError: out of numbers" in error
        assert "group=a,seed=0" in result.done
    # The same call goes on with what failed, and with nothing else.
    mended = replace(broken, run_cells=healthy)
    again = run(mended, engine="ray", folder=tmp_path)
    assert not again.failed
    kept = [name for name, one in again.results.items() if one.metrics["process"]]
    assert set(kept) == set(result.done)


def healthy(spec: NumberSpec, cells: Sequence[NumberCell], context: Context) -> Iterator[tuple[NumberCell, CellResult]]:
    for cell in cells:
        yield cell, CellResult(metrics={"process": None})


def test_a_cell_without_a_result_has_failed(tmp_path: Path) -> None:
    result = run(numbers(run_cells=nothing), engine="ray", folder=tmp_path)
    assert len(result.failed) == 4
    assert "must give a result for every cell" in next(iter(result.failed.values()))


def nothing(spec: NumberSpec, cells: Sequence[NumberCell], context: Context) -> Iterator[tuple[NumberCell, CellResult]]:
    yield from ()


def test_progress_comes_before_the_first_result(tmp_path: Path) -> None:
    events: list[Event] = []
    run(numbers(run_cells=telling), engine="ray", folder=tmp_path, progress=events.append)
    assert any(event.message == "half way" and event.done == 0 and event.fraction > 0 for event in events)


def telling(spec: NumberSpec, cells: Sequence[NumberCell], context: Context) -> Iterator[tuple[NumberCell, CellResult]]:
    context(0.5, "half way")
    time.sleep(0.5)
    yield from run_cells(spec, cells, context)


def test_an_interrupt_keeps_what_is_finished_and_ends_the_tasks(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.done == 1:
            raise KeyboardInterrupt

    endless = numbers(NumberSpec(seeds=(0, 1)), run_cells=then_for_ever)
    with pytest.raises(KeyboardInterrupt):
        run(endless, engine="ray", folder=tmp_path, progress=interrupt)
    again = run(replace(endless, run_cells=healthy), engine="ray", folder=tmp_path)  # their cores are free again
    assert not again.pending
    assert sum(one.metrics["process"] is not None for one in again.results.values()) == 1


def then_for_ever(
    spec: NumberSpec, cells: Sequence[NumberCell], context: Context
) -> Iterator[tuple[NumberCell, CellResult]]:
    if cells[0].group == "a":
        yield from run_cells(spec, cells[:1], context)
        context(0.5, "on and on")
    while True:
        time.sleep(0.6)
        context(0.5, "on and on")


@pytest.mark.parametrize(("device", "words"), [("cuda:1", "must be cpu or cuda with Ray"), ("cuda", "must have a GPU")])
def test_devices_that_ray_cannot_give_are_refused(tmp_path: Path, device: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(numbers(accelerated=True), engine="ray", device=device, folder=tmp_path)


def test_a_task_has_one_gpu_and_the_least_share_of_cores() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 64.0, "GPU": 8.0}},
        {"Alive": True, "Resources": {"CPU": 6.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 96.0}},
        {"Alive": False, "Resources": {"CPU": 1.0, "GPU": 1.0}},
    ]
    assert slots_for("cuda", nodes) == (10, 3, 1)
    assert slots_for("cpu", nodes) == (166, 1, 0)


@pytest.mark.parametrize("cores_wanted", ["0", "many", "-1", "1.5"])
def test_senseless_numbers_of_cores_are_refused(cores_wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARMAX_CORES", cores_wanted)
    with pytest.raises(ValueError, match="HARMAX_CORES must be a whole number"):
        cores()
