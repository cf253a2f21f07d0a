"""The Ray engine, on a real cluster of this machine: the same numbers, failures that stay small, nothing done twice."""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from harmax.environment import cores
from harmax_lab.ensemble.memory import free_bytes
from harmax_lab.experiments import find_experiment, run
from harmax_lab.kit.engine import Event
from harmax_lab.kit.engine.ray import ClusterError, parts_of, slots_for
from harmax_lab.kit.experiment import Cell, Context, Experiment, Spec, Work
from harmax_lab.kit.store import CellResult


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    # Workers read this file to find what is in it.
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Its own, whatever runs on this machine.
    ray.init("local", num_cpus=2, object_store_memory=2**27, runtime_env={"env_vars": {"PYTHONPATH": path}}, **options)
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
    return Experiment(
        name="numbers",
        title="Numbers",
        figure="Fig. 0",
        claims=(),
        profiles=dict.fromkeys(("smoke", "quick", "full"), spec),
        work=replace(Work(cells_of, run_cells, group=by_group), **changes),
    )


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


@pytest.mark.slow
def test_a_real_experiment_stacked_in_one_group_is_cut_and_comes_out_the_same(tmp_path: Path) -> None:
    far, near = (run("ablation", smoke=True, engine=engine, folder=tmp_path / engine) for engine in ("ray", "local"))
    assert not far.failed
    assert list(far.results) == list(near.results)
    for name, result in near.results.items():
        # Stacks of other sizes round differently.
        np.testing.assert_allclose(far.results[name].arrays["embedding"], result.arrays["embedding"], atol=1e-5)


def test_a_group_is_cut_along_its_pieces_into_as_many_parts_as_run_at_once(tmp_path: Path) -> None:
    slow = numbers(NumberSpec(seeds=(0, 1, 2)), group=together, pieces=by_group, run_cells=slowly)
    found = run(slow, engine="ray", folder=tmp_path).results
    processes: dict[str, set[int]] = {"a": set(), "b": set()}
    for name, result in found.items():
        processes[name.split(",")[0].removeprefix("group=")].add(result.metrics["process"])
    assert [len(own) for own in processes.values()] == [1, 1]
    assert processes["a"] != processes["b"]


def test_pieces_are_shared_out_evenly_and_never_torn() -> None:
    work = numbers(group=together, pieces=lambda cell: cell.group).work
    sizes = {"a": 5, "b": 1, "c": 2, "d": 2}
    group = [NumberCell(name, seed) for seed in range(5) for name, size in sizes.items() if seed < size]
    parts = list(parts_of(work, [group], 2))
    assert sorted(map(len, parts)) == [5, 5]
    assert sorted(cell.name for part in parts for cell in part) == sorted(cell.name for cell in group)
    assert not {cell.group for cell in parts[0]} & {cell.group for cell in parts[1]}
    assert len(list(parts_of(work, [group], 64))) == 4
    assert list(parts_of(numbers(group=together).work, [group], 64)) == [group]


@pytest.mark.parametrize(
    "name", ["ablation", "authors_losses", "confounds", "exponents", "rivals_mlp", "rivals_transformer", "start"]
)
def test_studies_are_cut_between_their_stacks_and_searches(name: str) -> None:
    experiment = find_experiment(name)
    work = experiment.work
    groups = work.groups(work.cells(experiment.profiles["full"]))
    parts = list(parts_of(work, groups, 8))
    stacks = {work.pieces(cell) for group in groups for cell in group}
    assert len(stacks) >= 6
    assert len(parts) == min(8, len(stacks))
    # What a stack may share: of confounds all that is tied, whoever drew its data.
    tied = {"untied": False}
    arms = [
        {
            (cell.model, cell.head, tied.get(cell.condition, True))
            if name == "confounds"
            else (cell.protocol, cell.model, getattr(cell, "loss", getattr(cell, "start", cell.head)))
            for cell in part
        }
        for part in parts
    ]
    assert sum(map(len, arms)) == len(set.union(*arms))


def slowly(spec: NumberSpec, cells: Sequence[NumberCell], context: Context) -> Iterator[tuple[NumberCell, CellResult]]:
    time.sleep(1.0)  # so that one process cannot do it all
    yield from run_cells(spec, cells, context)


@pytest.mark.parametrize("death", [False, True])
def test_a_failure_or_a_death_keeps_what_is_finished_and_the_others_go_on(tmp_path: Path, death: bool) -> None:
    spec = NumberSpec(seeds=(0, 1), fail="a", death=death)
    result = run(numbers(spec), engine="ray", folder=tmp_path)
    assert "group=a,seed=1" in result.failed
    assert {"group=b,seed=0", "group=b,seed=1"} <= set(result.done)
    (error, *_) = result.failed.values()
    if death:
        assert "ray.exceptions" in error
    else:
        assert "RuntimeError: out of numbers" in error
        assert "group=a,seed=0" in result.done
    # The same call goes on with what failed, and with nothing else.
    mended = numbers(spec, run_cells=healthy)
    again = run(mended, engine="ray", folder=tmp_path)
    assert not again.failed
    kept = [name for name, one in again.results.items() if one.metrics["process"]]
    assert set(kept) == set(result.done)


def healthy(spec: NumberSpec, cells: Sequence[NumberCell], context: Context) -> Iterator[tuple[NumberCell, CellResult]]:
    for cell in cells:
        yield cell, CellResult(metrics={"process": None})


@pytest.mark.parametrize("bad", ["not to be stored", "not to be sent", "not to be read"])
def test_a_result_that_does_not_arrive_fails_its_cells_and_ends_their_task(tmp_path: Path, bad: str) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    broken = numbers(run_cells=partial(unfit, bad, seen))
    result = run(broken, engine="ray", folder=tmp_path / "runs")
    assert sorted(result.failed) == ["group=a,seed=0", "group=a,seed=1"]
    assert sorted(result.done) == ["group=b,seed=0", "group=b,seed=1"]
    # Ray ends a process a moment after it was told to; one that is not ended makes a file every 0.2 s, for minutes.
    counts = [-1, len(list(seen.iterdir()))]
    while counts[-1] != counts[-2] and len(counts) < 12:
        time.sleep(1.5)
        counts.append(len(list(seen.iterdir())))
    assert counts[-1] == counts[-2], counts


class Unreadable:
    """Can be sent, and not be read."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def unfit(
    bad: str, seen: Path, spec: NumberSpec, cells: Sequence[NumberCell], context: Context
) -> Iterator[tuple[NumberCell, CellResult]]:
    if cells[0].group == "b":
        yield from run_cells(spec, cells, context)
        return
    content = {"not to be stored": {1, 2}, "not to be sent": threading.Lock(), "not to be read": Unreadable()}[bad]
    yield cells[0], CellResult(metrics={"x": content})
    for number in range(1000):
        (seen / str(number)).touch()
        time.sleep(0.2)


def test_what_follows_a_result_finds_it_stored(tmp_path: Path) -> None:
    result = run(numbers(run_cells=partial(looking, tmp_path)), engine="ray", folder=tmp_path)
    assert not result.failed, next(iter(result.failed.values()))


def looking(
    folder: Path, spec: NumberSpec, cells: Sequence[NumberCell], context: Context
) -> Iterator[tuple[NumberCell, CellResult]]:
    for cell, result in run_cells(spec, cells, context):
        yield cell, result
        time.sleep(0.3)  # taken by now; to write it down is a matter of milliseconds
        assert list(folder.rglob(f"{cell.name}/done"))


def test_a_cell_without_a_result_has_failed(tmp_path: Path) -> None:
    result = run(numbers(run_cells=nothing), engine="ray", folder=tmp_path)
    assert len(result.failed) == 4
    assert "gave no result for the cells" in next(iter(result.failed.values()))


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


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_finished_and_ends_the_tasks(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.done == 1:
            raise KeyboardInterrupt

    endless = numbers(NumberSpec(seeds=(0, 1)), run_cells=then_for_ever)
    with pytest.raises(KeyboardInterrupt):
        run(endless, engine="ray", folder=tmp_path, progress=interrupt)
    again = run(numbers(run_cells=healthy), engine="ray", folder=tmp_path)  # their cores are free again
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


def test_devices_that_ray_cannot_give_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be cpu or cuda with engine ray"):
        run(numbers(accelerated=True), engine="ray", device="cuda:1", folder=tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ClusterError, match="must have a GPU"):
        run(numbers(accelerated=True), engine="ray", device="cuda", folder=tmp_path)
    assert not run(numbers(accelerated=True), engine="ray", folder=tmp_path).pending  # it takes what there is


def test_a_task_has_one_gpu_and_the_least_share_of_cores() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 64.0, "GPU": 8.0}},
        {"Alive": True, "Resources": {"CPU": 6.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 96.0}},
        {"Alive": False, "Resources": {"CPU": 1.0, "GPU": 1.0}},
    ]
    assert slots_for("cuda", nodes) == (10, 3, 1)
    assert slots_for("cpu", nodes) == (166, 1, 0)
    bare = [{"Alive": True, "Resources": {"GPU": 2.0}}]  # a machine that lends no cores
    assert slots_for("cuda", bare) == (2, 0, 1)
    with pytest.raises(ClusterError, match="must offer a core"):
        slots_for("cpu", bare)


def test_who_has_some_of_the_cores_has_as_much_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    whole = free_bytes(torch.device("cpu"))
    monkeypatch.setenv("HARMAX_CORES", "2")
    assert free_bytes(torch.device("cpu")) == pytest.approx(whole / 4, rel=0.2)


@pytest.mark.parametrize("cores_wanted", ["0", "many", "-1", "1.5"])
def test_senseless_numbers_of_cores_are_refused(cores_wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARMAX_CORES", cores_wanted)
    with pytest.raises(ValueError, match="HARMAX_CORES must be a whole number"):
        cores()
