"""Groups of cells as Ray tasks: on the cores and GPUs of this machine, or of a cluster.

    harmax run exponents --full --engine ray                     all GPUs of this machine, or all cores
    RAY_ADDRESS=auto harmax run mnist --full --engine ray        on a machine of a cluster: the cluster's

A task has one GPU and its share of the cores, or one core. A group is one task; a group with the key None, which is
together only because that suits one device, is cut into as many as can run at once. Results come back to this process,
which alone writes the run's folder, so machines need share nothing but an installed harmax. What a task keeps on its
way is found again where the machines share the run's folder, and otherwise stays on the machine that had it.
"""

import contextlib
import itertools
import logging
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harmax.engine.ledger import C, Event, Ledger, Part, S, Stopwatch
from harmax.environment import environment
from harmax.experiments.spec import Context, Experiment
from harmax.extras import needs
from harmax.store import Run

NEWS_EVERY = 0.5  # seconds between two words of progress from a task


class Slots(NamedTuple):
    """How many tasks run at once, and what each of them has."""

    at_once: int
    cpus: int
    gpus: int


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
    with needs("ray"):
        import ray
    if device not in ("cpu", "cuda"):
        raise ValueError(f"`device` must be cpu or cuda with Ray, which chooses among GPUs itself, got {device!r}.")
    with _connected():
        slots = slots_for(device, ray.nodes())
        task: Any = ray.remote(num_cpus=slots.cpus, num_gpus=slots.gpus, max_retries=0)(_work)
        ledger = Ledger(experiment, spec, run, names, progress)
        active: dict[Any, Part[C]] = {}
        waiting = _parts(experiment, ledger.groups, slots.at_once)
        try:
            while True:
                # Some ahead, so that none waits for this process; not all, which may be thousands.
                for cells in itertools.islice(waiting, 2 * slots.at_once - len(active)):
                    part = ledger.open(cells)
                    scratch = part.scratch.absolute()
                    active[task.remote(experiment, spec, cells, scratch, device, slots.cpus)] = part
                if not active:
                    return
                ready, _ = ray.wait(list(active), num_returns=1)
                for stream in ready:
                    if _take(stream, active[stream], run):
                        del active[stream]
        finally:
            for stream in active:
                ray.cancel(stream, force=True)


def slots_for(device: str, nodes: Sequence[dict[str, Any]]) -> Slots:
    """Return how many tasks a cluster's machines run at once.

    >>> big, small = ({"Alive": True, "Resources": {"CPU": 32.0, "GPU": gpus}} for gpus in (4.0, 2.0))
    >>> slots_for("cuda", [big, small])
    Slots(at_once=6, cpus=8, gpus=1)
    >>> slots_for("cpu", [big])
    Slots(at_once=32, cpus=1, gpus=0)
    """
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    if device == "cpu":
        return Slots(max(1, int(sum(machine.get("CPU", 0) for machine in machines))), 1, 0)
    fitted = [machine for machine in machines if machine.get("GPU", 0) >= 1]
    if not fitted:
        raise ValueError("a machine of the Ray cluster must have a GPU for `device` cuda, got none; take cpu.")
    share = min(int(machine.get("CPU", 1) // machine["GPU"]) for machine in fitted)
    return Slots(int(sum(machine["GPU"] for machine in fitted)), max(1, share), 1)


def _parts(experiment: Experiment[S, C], groups: Sequence[list[C]], count: int) -> Iterator[list[C]]:
    for group in groups:
        pieces = min(count, len(group)) if experiment.group(group[0]) is None else 1
        ends = [len(group) * piece // pieces for piece in range(pieces + 1)]
        yield from (group[start:end] for start, end in itertools.pairwise(ends))


def _take(stream: Any, part: Part[C], run: Run) -> bool:
    """Take one word from a task; return whether it was the last."""
    import ray

    try:
        kind, *content = ray.get(next(stream))
    except StopIteration:  # without a last word
        part.fail("RuntimeError: the task ended without saying so.")
        return True
    except ray.exceptions.RayError:  # its process is gone, or what it said cannot be read
        part.fail(traceback.format_exc())
        return True
    if kind == "environment":
        run.add_environment(*content)
    elif kind == "progress":
        part.report(*content)
    elif kind == "result":
        part.store(*content)
    elif kind == "failed":
        part.fail(*content)
    else:
        part.close()
    return kind in ("failed", "done")


def _work(
    experiment: Experiment[S, C], spec: S, cells: Sequence[C], scratch: Path, device: str, cores: int
) -> Iterator[tuple[Any, ...]]:
    """Run cells in a process of Ray's, and yield what there is to say; "done" or "failed" is the last word."""
    os.environ["HARMAX_CORES"] = str(cores)
    said: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    told = [0.0]

    def report(fraction: float, message: str = "", /) -> None:
        if time.monotonic() - told[0] >= NEWS_EVERY:
            told[0] = time.monotonic()
            said.put(("progress", fraction, message))

    def compute() -> None:
        seconds = Stopwatch()
        try:
            said.put(("environment", environment(device)))
            for cell, result in experiment.run_cells(spec, cells, Context(scratch, device, report)):
                said.put(("result", cell.name, result, seconds()))
        except BaseException:
            said.put(("failed", traceback.format_exc()))
        else:
            said.put(("done",))

    # Beside this one, so that progress is told while there is no result to yield.
    threading.Thread(target=compute, daemon=True).start()
    while True:
        word = said.get()
        yield word
        if word[0] in ("done", "failed"):
            return


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine and stop it in the end."""
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()
