"""Groups of cells as Ray tasks: on the cores and GPUs of this machine, or of a cluster.

    harmax run exponents --full --engine ray                     all GPUs of this machine, or all cores
    RAY_ADDRESS=auto harmax run mnist --full --engine ray        on a machine of a cluster: the cluster's

A task gets one GPU and its share of the cores, or one core. A group of cells is one task, or several if the experiment
says how it may be split (`Work.pieces`). Tasks send their results to this process, and only this process writes to the
run's folder. So all that the machines need is harmax. If they also share the run's folder, a task finds the partial
state of an earlier one. If not, partial state stays on the machine that wrote it. If a machine is lost, its unfinished
cells start again on another one. If the machine on which the run was started is lost, the run ends.
"""

import contextlib
import functools
import logging
import os
import queue
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple

from harmax.environment import cores, environment
from harmax.errors import needs
from harmax_lab.kit.engine.ledger import C, Ledger, Part, S, Stopwatch
from harmax_lab.kit.experiment import Context, Work

REPORT_EVERY = 0.5  # seconds between two progress reports of a task
PATIENCE = 20.0  # seconds without a message from any task, after which the user is told
LOSSES = 3  # machines that may be lost while they compute one part, before the part is thought to be the cause


class ClusterError(OSError):
    """The machines of the cluster cannot run the cells."""


class Slots(NamedTuple):
    """How many tasks run at once, and how many cores and GPUs each of them gets."""

    at_once: int
    cpus: int
    gpus: int


def choose_device(wanted: str | None) -> str | None:
    """Return the wanted device. None (the best one) is decided once the machines of the cluster are known."""
    with needs("ray"):
        import ray  # noqa: F401
    if wanted not in (None, "cpu", "cuda"):
        raise ValueError(f"`device` must be cpu or cuda with engine ray, which picks GPUs itself, got {wanted!r}.")
    return wanted


def execute(ledger: Ledger[S, C], device: str | None) -> None:
    """Run cells, as `local.execute` does. Without a device, use cuda if the cluster has a GPU."""
    import ray

    with _connected():
        device = device or ("cuda" if any(_gpus(node) for node in ray.nodes()) else "cpu")
        slots = slots_for(device, ray.nodes())
        remote: Any = ray.remote  # its types lack some of its arguments
        task = remote(
            num_cpus=slots.cpus,
            num_gpus=slots.gpus,
            max_retries=0,
            # A task waits until its last message is taken, so that a result is stored before the next cell begins.
            _generator_backpressure_num_objects=1,
        )(_run_task)
        start = functools.partial(task.remote, ledger.experiment.work, ledger.spec)
        tasks: _Tasks[C] = _Tasks(lambda part: start(part.left, part.scratch.absolute(), device, max(1, slots.cpus)))
        waiting = parts_of(ledger.experiment.work, ledger.groups, slots.at_once)
        try:
            while True:
                # Some tasks ahead, so that no machine waits for this process, but not all: there may be thousands.
                while len(tasks.active) < 2 * slots.at_once and (cells := next(waiting, None)) is not None:
                    if (part := ledger.open(cells)) is not None:
                        tasks.begin(part)
                if not tasks.active:  # all done, or what is left belongs to other processes
                    return
                if not tasks.take_messages(PATIENCE):
                    ledger.report("no message from Ray's machines yet")
        finally:
            tasks.stop()


class _Tasks(Generic[C]):
    """The tasks that Ray has, each with its part of the cells.

    Args:
        start: gives a part to Ray and returns the stream of its messages.
    """

    def __init__(self, start: Callable[[Part[C]], Any]) -> None:
        self._start = start
        self.active: dict[Any, Part[C]] = {}
        self._bystanders: set[Any] = set()
        """Tasks that were running when another one was ended by force: Ray may have run them in the same process."""
        self._nodes: dict[Any, str] = {}
        """The machine of each task, once it has begun."""
        self._losses: Counter[Any] = Counter()
        """How many machines were lost while they computed each part."""

    def begin(self, part: Part[C]) -> None:
        """Give a part to Ray."""
        self.active[self._start(part)] = part

    def take_messages(self, patience: float) -> bool:
        """Take the next messages; return whether any came within so many seconds."""
        import ray

        ready, _ = ray.wait(list(self.active), num_returns=1, timeout=patience)
        for stream in ready:
            self._take(stream)
        return bool(ready)

    def _take(self, stream: Any) -> None:
        """Take one message of a task."""
        import ray

        part = self.active[stream]
        try:
            kind, *content = ray.get(next(stream))
        except StopIteration:
            part.fail("RuntimeError: the task ended without a last message.")
            del self.active[stream]
            return
        except ray.exceptions.RayError as error:  # its process is gone
            del self.active[stream]
            if self._is_innocent(stream, part, error):
                self.begin(part)
            else:
                part.fail(traceback.format_exc())
            return
        if kind == "result":
            name, result, seconds = content
            try:
                part.store(name, ray.cloudpickle.loads(result), seconds)
            except Exception:  # not readable here, or not storable: the other cells would fail in the same way
                part.fail(traceback.format_exc())
                del self.active[stream]
                self._bystanders.update(self.active)
                ray.cancel(stream, force=True)
            return
        if kind == "node":
            self._nodes[stream] = content[0]
            return
        handlers: dict[str, Callable[..., None]] = {
            "environment": part.ledger.run.add_environment,
            "progress": part.report,
            "failed": part.fail,
            "done": part.close,
        }
        handlers[kind](*content)
        if kind in ("failed", "done"):
            del self.active[stream]

    def _is_innocent(self, stream: Any, part: Part[C], error: Exception) -> bool:
        """Whether a task ended for a reason outside it. Then the unfinished cells of its part can start again."""
        import ray

        if stream in self._bystanders and isinstance(error, ray.exceptions.WorkerCrashedError):
            return True
        if not isinstance(error, (ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError)) and self._stands(
            stream
        ):
            return False
        self._losses[part] += 1
        if self._losses[part] > LOSSES:
            return False
        part.report(part.fraction, "a machine is lost; its unfinished cells start again on another one")
        return True

    def _stands(self, stream: Any) -> bool:
        """Whether the machine of a task is still there. Ray takes some seconds to notice that one is not."""
        import ray

        node = self._nodes.get(stream)
        return node is None or any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())

    def stop(self) -> None:
        """Take the messages that have arrived, and end all tasks."""
        import ray

        with contextlib.suppress(Exception, KeyboardInterrupt):
            everything = list(self.active)
            ready, _ = ray.wait(everything, num_returns=len(everything), timeout=0) if everything else ([], [])
            for stream in ready:
                self._take(stream)
        for stream in self.active:
            ray.cancel(stream, force=True)


def slots_for(device: str, nodes: Sequence[dict[str, Any]]) -> Slots:
    """Return how many tasks a cluster runs at once. A machine may offer its GPUs and no cores.

    >>> big, small = ({"Alive": True, "Resources": {"CPU": 32.0, "GPU": gpus}} for gpus in (4.0, 2.0))
    >>> slots_for("cuda", [big, small])
    Slots(at_once=6, cpus=8, gpus=1)
    >>> slots_for("cpu", [big])
    Slots(at_once=32, cpus=1, gpus=0)
    """
    alive = [node for node in nodes if node["Alive"]]
    if device == "cpu":
        offered = int(sum(node["Resources"].get("CPU", 0) for node in alive))
        if not offered:
            raise ClusterError("a machine of the Ray cluster must offer a core for `device` cpu, got none; start one.")
        return Slots(offered, 1, 0)
    with_gpu = [node for node in alive if _gpus(node)]
    if not with_gpu:
        raise ClusterError("a machine of the Ray cluster must have a GPU for `device` cuda, got none; take cpu.")
    share = min(int(node["Resources"].get("CPU", 0) // _gpus(node)) for node in with_gpu)
    return Slots(sum(map(_gpus, with_gpu)), share, 1)


def _gpus(node: dict[str, Any]) -> int:
    return int(node["Resources"].get("GPU", 0)) if node["Alive"] else 0


def parts_of(work: Work[S, C], groups: Sequence[list[C]], at_once: int) -> Iterator[list[C]]:
    """Split groups into about as many equal parts as run at once, but keep the cells of a piece together."""
    for group in groups:
        pieces: dict[Hashable, list[C]] = {}
        for cell in group:
            pieces.setdefault(work.pieces(cell), []).append(cell)
        parts: list[list[C]] = [[] for _ in range(min(at_once, len(pieces)))]
        for piece in sorted(pieces.values(), key=len, reverse=True):
            min(parts, key=len).extend(piece)
        yield from parts


def _run_task(
    work: Work[S, C], spec: S, cells: Sequence[C], scratch: Path, device: str, share: int
) -> Iterator[tuple[Any, ...]]:
    """Run cells in one of Ray's processes and yield messages. The last one is "done" or "failed"."""
    import ray

    os.environ["HARMAX_CORES"] = str(share)
    messages: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    taken = threading.Semaphore(0)
    reported = 0.0

    def report(fraction: float, message: str = "", /) -> None:
        nonlocal reported
        if time.monotonic() - reported >= REPORT_EVERY:
            reported = time.monotonic()
            messages.put(("progress", fraction, message))

    def compute() -> None:
        seconds = Stopwatch()
        try:
            messages.put(("node", ray.get_runtime_context().get_node_id()))
            messages.put(("environment", environment(device)))
            for cell, result in work.run_cells(spec, cells, Context(scratch, device, report)):
                # Pickled here, so that an error counts as one of the experiment.
                messages.put(("result", cell.name, ray.cloudpickle.dumps(result), seconds()))
                taken.acquire()
        except BaseException:
            messages.put(("failed", traceback.format_exc()))
        else:
            messages.put(("done",))

    # In a thread of its own, so that progress can be reported while no result is ready.
    threading.Thread(target=compute, daemon=True).start()
    kind = ""
    while kind not in ("done", "failed"):
        kind, *content = messages.get()
        yield kind, *content
        if kind == "result":
            taken.release()


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine and stop it at the end."""
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise ClusterError(
            f"RAY_ADDRESS must not be the address of a client, got {address!r}; run harmax on a machine of the cluster "
            "with RAY_ADDRESS=auto."
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own: dict[str, Any] = {"num_cpus": cores(), "include_dashboard": False} if address == "local" else {}
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    try:
        yield
    finally:
        ray.shutdown()
