"""Running experiments: `run` opens the run folder of an experiment and gives the pending cells to an engine."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from harmax.environment import choose_device
from harmax.errors import needs, unknown
from harmax.figures import house_style, to_png
from harmax_lab.kit.engine import local, ray
from harmax_lab.kit.engine.ledger import Event, Ledger
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.reservations import Reservations
from harmax_lab.kit.store import Run
from harmax_lab.kit.variants import changes_of, in_words, stored
from harmax_lab.kit.writer import RunWriter

LOOK_EVERY = 1.0
"""Seconds between two looks at what another process is computing."""


class Engine(NamedTuple):
    """One way to run cells."""

    execute: Callable[[Ledger[Any, Any], Any], None]
    """Runs the cells of a ledger on a device."""
    choose_device: Callable[[str | None], str | None]
    """Returns the device that is asked for, or the best one; raises if the engine does not have it."""


ENGINES: dict[str, Engine] = {
    "local": Engine(local.execute, choose_device),
    "ray": Engine(ray.execute, ray.choose_device),
}

__all__ = ["ENGINES", "Event", "device_for", "matching", "run"]


def run(
    experiment: Experiment[Any, Any],
    *,
    engine: str = "local",
    seeds: Sequence[int] | int | None = None,
    changes: Mapping[str, Any] | None = None,
    smoke: bool = False,
    profile: str | None = None,
    folder: Path | str = "runs",
    device: str | None = None,
    cells: str | None = None,
    retry: bool = True,
    figures: bool = False,
    progress: Callable[[Event], None] | None = None,
) -> Run:
    """Run an experiment, or what is left of it, and return its run folder.

    Finished cells are read, not computed again. Failed cells are tried again. After an interrupt the same call
    continues the run. Several processes may make the same call: each computes what the others do not. For a view, the
    missing cells of its source are computed first.

    Args:
        experiment: one of `EXPERIMENTS`, or one of your own.
        engine: a name in `ENGINES`.
        seeds: replaces the seeds of the profile; a number stands for 0, 1, ...
        changes: replaces other settings of the profile, such as {"exponent": 4}. The run is a variant then, with a
            folder of its own.
        smoke: short for `profile="smoke"`.
        profile: "smoke", "quick" (the default) or "full".
        folder: the folder of all runs.
        device: "cpu", "cuda" or "cuda:1"; None: cuda if the experiment uses it and this machine (or Ray's cluster)
            has one.
        cells: run only cells with these fields ("dataset=cifar10,stage=final"; * stands for anything), so that several
            processes can share one run.
        retry: whether cells that failed before are tried again.
        figures: whether to draw the experiment's figures into the folder figures/ of its run.
        progress: called with an `Event` whenever something is done.
    """
    if smoke and profile not in (None, "smoke"):
        raise ValueError(f"`profile` must be 'smoke' or None with `smoke=True`, got {profile!r}; give one of the two.")
    with needs("run"):
        import safetensors  # noqa: F401  (a missing package must show before the work)
    if engine not in ENGINES:
        raise ValueError(unknown("engine", engine, ENGINES))
    profile = "smoke" if smoke else profile or "quick"
    place = device_for(experiment, device, engine)
    spec = experiment.resolve(profile, seeds, changes)
    usual, given = experiment.resolve(profile), ("seeds",) * (seeds is not None)
    own = [name for name in changes or () if getattr(spec, name) != getattr(usual, name)]
    overrides = {name: getattr(spec, name) for name in (*given, *own)}
    trained = experiment.source or experiment
    result = _open(trained, folder, profile, spec, overrides)
    report = progress or (lambda event: None)
    adopted = result.adopt() if trained.work.seeds_apart and result.pending else 0
    if adopted:
        done, total = len(result.done), len(result.cells)
        words = f"{adopted} cells taken from runs with other seeds"
        report(Event(trained.name, done, len(result.failed), total, done / total, words))
    wanted = matching(result.cells, cells)
    names = [name for name in result.pending if name in wanted and (retry or name not in result.failed)]
    _compute(trained, spec, result, names, ENGINES[engine], place, report)
    if not result.pending:
        result.tidy()
    _judge(trained, result, figures and trained is experiment)
    if trained is not experiment:
        result = _open(experiment, folder, profile, spec, overrides)
        _judge(experiment, result, figures)
    return result


def _compute(
    experiment: Experiment[Any, Any],
    spec: Any,
    run: RunWriter,
    names: list[str],
    engine: Engine,
    device: str | None,
    progress: Callable[[Event], None],
) -> None:
    """Compute cells of a run. Wait for cells that other processes compute, and compute what these leave unfinished."""
    with Reservations(run.folder) as reservations:
        while names:
            ledger = Ledger(experiment, spec, run, names, reservations, progress)
            engine.execute(ledger, device)
            names = [name for name in names if name not in ledger.tried]
            while names := [name for name in names if not run.is_written(name)]:
                others = reservations.held_by_others(names)
                if len(others) < len(names):
                    break
                ledger.report(f"waiting for {others[names[0]]}, which computes {names[0]}")
                time.sleep(LOOK_EVERY)
    run.look_again()


def _judge(experiment: Experiment[Any, Any], run: RunWriter, figures: bool) -> None:
    """Store the summary of a run, and its figures."""
    spec = experiment.load_spec(run.config["spec"])
    results = experiment.results(spec, experiment.by_cell(spec, run.results))
    run.write_summary(experiment.summary_of(run, experiment.judge(results, in_words(changes_of(run)))))
    if figures and results:
        with house_style():
            pictures = experiment.figures(results)
            run.write_figures({name: (to_png(one.figure), one.caption) for name, one in pictures.items()})


def _open(
    experiment: Experiment[Any, Any], folder: Path | str, profile: str, spec: Any, overrides: dict[str, Any]
) -> RunWriter:
    config = {
        "experiment": experiment.name,
        "version": experiment.version,
        "profile": profile,
        "spec": stored(spec),
        "overrides": overrides,
        "cells": {cell.name: asdict(cell) for cell in experiment.work.cells(spec)},
    }
    if experiment.source is not None:
        config["source"] = experiment.source_key(spec)
    return RunWriter(folder, config)


def matching(names: Collection[str], pattern: str | None) -> set[str]:
    """Return the names of the cells that have all fields of a pattern. In a pattern * stands for anything.

    >>> sorted(matching(["task=lattice,seed=1", "task=lattice,seed=10"], "seed=1"))
    ['task=lattice,seed=1']
    """
    if pattern is None:
        return set(names)
    wanted = pattern.split(",")
    found = {name for name in names if all(any(fnmatchcase(field, one) for field in name.split(",")) for one in wanted)}
    if not found:
        fields = dict.fromkeys(field.partition("=")[0] for name in names for field in name.split(","))
        raise ValueError(f"no cell matches {pattern!r}; this experiment's cells have the fields {', '.join(fields)}.")
    return found


def device_for(experiment: Experiment[Any, Any], wanted: str | None, engine: str = "local") -> str | None:
    """Return the device for an experiment, or None if the engine chooses it later; raise if there is none."""
    device = ENGINES[engine].choose_device(wanted)
    if experiment.work.accelerated or device == "cpu":
        return device
    if wanted is None:
        return "cpu"
    raise ValueError(f"`{experiment.name}` computes on the CPU only, got device {wanted!r}; leave `device` out.")
