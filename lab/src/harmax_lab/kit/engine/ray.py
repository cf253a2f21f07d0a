"""Groups of cells as Ray tasks: on the cores and GPUs of this machine, or of a cluster.

    harmax run exponents --full --engine ray                     all GPUs of this machine, or all cores
    RAY_ADDRESS=auto harmax run mnist --full --engine ray        on a machine of a cluster: the cluster's

A task has one GPU and its share of the cores, or one core. A group is one task, or several where the experiment says
along what it may be cut (`Experiment.pieces`). Results come back to this process, which alone writes the run's folder,
so machines need share nothing but an installed harmax. What a task keeps on its way is found again where the machines
share the run's folder, and otherwise stays on the machine that had it.
"""

import contextlib
import itertools
import logging
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harmax.environment import cores, environment
from harmax.errors import needs
from harmax_lab.kit.engine.ledger import C, Event, Ledger, Part, S, Stopwatch
from harmax_lab.kit.experiment import Context, Experiment
from harmax_lab.kit.store import Run

NEWS_EVERY = 0.5  # seconds between two words of progress from a task
PATIENCE = 20.0  # seconds without a word from any task, after which that is told


class ClusterError(OSError):
    """The machines of the cluster cannot do what is asked of them."""


class Slots(NamedTuple):
    """How many tasks run at once, and what each of them has."""

    at_once: int
    cpus: int
    gpus: int


def choose_device(wanted: str | None) -> str | None:
    """Return the device that is wanted; None, for the best, is decided when the cluster's machines are known."""
    with needs("ray"):
        import ray  # noqa: F401
    if wanted not in (None, "cpu", "cuda"):
        raise ValueError(f"`device` must be cpu or cuda with engine ray, which picks GPUs itself, got {wanted!r}.")
    return wanted


def execute(
    experiment: Experiment[S, C],
    spec: S,
    run: Run,
    names: Collection[str],
    *,
    device: str | None,
    progress: Callable[[Event], None],
) -> None:
    """Run the cells of these names; a failure is recorded and the others go on, an interrupt keeps what is finished.

    Args:
        experiment: what to run.
        spec: its settings.
        run: where results go.
        names: the cells to run.
        device: "cpu", "cuda", or None: cuda where the cluster has one.
        progress: called with an `Event` whenever there is something to tell.
    """
    import ray

    with _connected():
        device = device or ("cuda" if any(_gpus(node) for node in ray.nodes()) else "cpu")
        slots = slots_for(device, ray.nodes())
        remote: Any = ray.remote  # its types do not know all that it takes
        task = remote(
            num_cpus=slots.cpus,
            num_gpus=slots.gpus,
            max_retries=0,
            # A task goes on when its last word was taken: what follows a result finds it stored, as in one process.
            _generator_backpressure_num_objects=1,
        )(_work)
        ledger = Ledger(experiment, spec, run, names, progress)
        active: dict[Any, Part[C]] = {}
        waiting = parts_of(experiment, ledger.groups, slots.at_once)
        try:
            while True:
                # Some ahead, so that none waits for this process; not all, which may be thousands.
                for cells in itertools.islice(waiting, 2 * slots.at_once - len(active)):
                    part = ledger.open(cells)
                    scratch = part.scratch.absolute()
                    active[task.remote(experiment, spec, cells, scratch, device, max(1, slots.cpus))] = part
                if not active:
                    return
                ready, _ = ray.wait(list(active), num_returns=1, timeout=PATIENCE)
                if not ready:
                    ledger.tell("no word from Ray's machines yet")
                for stream in ready:
                    if _take(stream, active[stream], run):
                        del active[stream]
        finally:
            _stop(active, run)


def _stop(active: dict[Any, Part[C]], run: Run) -> None:
    """Take what has come, and end all tasks."""
    import ray

    with contextlib.suppress(Exception, KeyboardInterrupt):
        ready, _ = ray.wait(list(active), num_returns=len(active), timeout=0) if active else ([], [])
        for stream in ready:
            _take(stream, active[stream], run)
    for stream in active:
        ray.cancel(stream, force=True)


def slots_for(device: str, nodes: Sequence[dict[str, Any]]) -> Slots:
    """Return how many tasks a cluster's machines run at once; a machine may have lent no cores, for its GPUs alone.

    >>> big, small = ({"Alive": True, "Resources": {"CPU": 32.0, "GPU": gpus}} for gpus in (4.0, 2.0))
    >>> slots_for("cuda", [big, small])
    Slots(at_once=6, cpus=8, gpus=1)
    >>> slots_for("cpu", [big])
    Slots(at_once=32, cpus=1, gpus=0)
    """
    alive = [node for node in nodes if node["Alive"]]
    if device == "cpu":
        lent = int(sum(node["Resources"].get("CPU", 0) for node in alive))
        if not lent:
            raise ClusterError("a machine of the Ray cluster must lend a core for `device` cpu, got none; start one.")
        return Slots(lent, 1, 0)
    fitted = [node for node in alive if _gpus(node)]
    if not fitted:
        raise ClusterError("a machine of the Ray cluster must have a GPU for `device` cuda, got none; take cpu.")
    share = min(int(node["Resources"].get("CPU", 0) // _gpus(node)) for node in fitted)
    return Slots(sum(map(_gpus, fitted)), share, 1)


def _gpus(node: dict[str, Any]) -> int:
    return int(node["Resources"].get("GPU", 0)) if node["Alive"] else 0


def parts_of(experiment: Experiment[S, C], groups: Sequence[list[C]], at_once: int) -> Iterator[list[C]]:
    """Cut groups that may be cut into about as many equal parts as run at once, and never through a piece."""
    for group in groups:
        pieces: dict[Hashable, list[C]] = {}
        for cell in group:
            pieces.setdefault(experiment.pieces(cell) if experiment.pieces else None, []).append(cell)
        parts: list[list[C]] = [[] for _ in range(min(at_once, len(pieces)))]
        for piece in sorted(pieces.values(), key=len, reverse=True):
            min(parts, key=len).extend(piece)
        yield from parts


def _take(stream: Any, part: Part[C], run: Run) -> bool:
    """Take one word from a task; return whether it was the last."""
    import ray

    try:
        kind, *content = ray.get(next(stream))
    except StopIteration:
        part.fail("RuntimeError: the task ended without a last word.")
        return True
    except ray.exceptions.RayError:  # its process is gone
        part.fail(traceback.format_exc())
        return True
    if kind == "environment":
        run.add_environment(*content)
    elif kind == "progress":
        part.report(*content)
    elif kind == "failed":
        part.fail(*content)
    elif kind == "done":
        part.close()
    else:
        name, result, seconds = content
        try:
            part.store(name, ray.cloudpickle.loads(result), seconds)
        except Exception:  # that cannot be read here, or not be stored: the rest of these cells would not be either
            part.fail(traceback.format_exc())
            ray.cancel(stream, force=True)
            return True
    return kind in ("failed", "done")


def _work(
    experiment: Experiment[S, C], spec: S, cells: Sequence[C], scratch: Path, device: str, share: int
) -> Iterator[tuple[Any, ...]]:
    """Run cells in a process of Ray's, and yield what there is to say; "done" or "failed" is the last word."""
    import ray

    os.environ["HARMAX_CORES"] = str(share)
    said: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    taken = threading.Semaphore(0)
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
                # Pickled here, where an error is one of the experiment's.
                said.put(("result", cell.name, ray.cloudpickle.dumps(result), seconds()))
                taken.acquire()
        except BaseException:
            said.put(("failed", traceback.format_exc()))
        else:
            said.put(("done",))

    # Beside this one, so that progress is told while there is no result to yield.
    threading.Thread(target=compute, daemon=True).start()
    while True:
        word = said.get()
        yield word
        if word[0] == "result":
            taken.release()
        if word[0] in ("done", "failed"):
            return


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine and stop it in the end."""
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise ClusterError(
            f"RAY_ADDRESS must be that of a cluster this machine is part of, got {address!r}, a client's; run it on a "
            "machine of the cluster with RAY_ADDRESS=auto."
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own: dict[str, Any] = {"num_cpus": cores(), "include_dashboard": False} if address == "local" else {}
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    try:
        yield
    finally:
        ray.shutdown()
