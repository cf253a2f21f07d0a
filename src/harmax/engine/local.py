"""The engine that needs nothing: pending cells run in this process, one group after the other."""

import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from harmax.experiments.spec import Cell, Context, Experiment, Spec
from harmax.store import Run

S = TypeVar("S", bound=Spec)
C = TypeVar("C", bound=Cell)


@dataclass(frozen=True)
class Event:
    """How far a run is: finished, failed and all cells, the fraction done, and what happens now."""

    experiment: str
    done: int
    failed: int
    total: int
    fraction: float
    message: str


def execute(
    experiment: Experiment[S, C],
    spec: S,
    run: Run,
    names: Collection[str],
    *,
    device: str,
    progress: Callable[[Event], None],
) -> None:
    """Run the cells of these names; a failure is recorded and the others go on, an interrupt keeps what is finished."""
    done, failed = len(run.done), 0
    settled, total = done, done + len(names)
    everything = experiment.cells(spec)

    def tell(within: float, message: str) -> None:
        fraction = min(1.0, (settled + within) / total) if total else 1.0
        progress(Event(experiment.name, done, failed, total, fraction, message))

    for group in experiment.groups(cell for cell in everything if cell.name in names):
        missing = {cell.name for cell in group}
        key = repr(experiment.group(group[0]))
        others = {cell.name for cell in everything if repr(experiment.group(cell)) == key} - missing

        def report(fraction: float, message: str = "", /, size: int = len(group), name: str = group[0].name) -> None:
            tell(fraction * size, message or name)

        tell(0.0, group[0].name)
        since = time.perf_counter()
        try:
            for cell, result in experiment.run_cells(spec, group, Context(run.partial(key), device, report)):
                # Of cells that were computed together the first to come bears the time of all; the sum is right.
                run.write(cell.name, result, seconds=time.perf_counter() - since)
                since = time.perf_counter()
                missing.discard(cell.name)
                done += 1
            if missing:
                raise RuntimeError(f"`{experiment.name}` must give a result for every cell; none came for {missing}.")
            # Not while another call, or process, has cells of the group to do.
            if not (others and others & set(run.pending)):
                run.drop_partial(key)
        except Exception:
            error = traceback.format_exc()
            for name in sorted(missing):
                run.fail(name, error)
                failed += 1
        settled += len(group)
        tell(0.0, "")
