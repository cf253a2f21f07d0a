"""Training ensembles: one, or several at the same time."""

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harmax.environment import is_out_of_memory
from harmax_lab.ensemble.parts import Job, Parts, outline, train_parts
from harmax_lab.ensemble.plan import History, Plan
from harmax_lab.ensemble.progress import Look, Progress, ReportProgress
from harmax_lab.ensemble.stack import Ensemble
from harmax_lab.ensemble.worker import Worker
from harmax_lab.tasks import Split


def fit(
    ensemble: Ensemble,
    splits: Sequence[Split],
    plan: Plan,
    *,
    progress: ReportProgress | None = None,
    checkpoint: Path | str | None = None,
) -> History:
    """Train all runs of an ensemble as one. Each run gives the result that it would give alone.

    Args:
        ensemble: the models, whose parameters are changed at the end.
        splits: the data of each run, as `harmax_lab.tasks.make_split` returns it.
        plan: how to train.
        progress: called from time to time with the fraction that is done and a short message.
        checkpoint: a folder for the state. After an interrupt, a call with the same arguments continues from it.

    >>> from harmax_lab.tasks import find_task, make_split
    >>> from harmax_lab.models import MLP
    >>> task = find_task("modular_addition", modulus=5)
    >>> runs = Ensemble(lambda: MLP(5, 2, exponent=2.0), seeds=[0, 1], device="cpu")
    >>> history = fit(runs, [make_split(task, seed) for seed in (0, 1)], Plan(epochs=3))
    >>> history.test_accuracy.shape
    (2, 3)
    """
    ((_, history),) = fit_all([Job(ensemble, splits, plan)], progress=progress, checkpoint=checkpoint)
    return history


def fit_all(
    jobs: Sequence[Job],
    *,
    progress: ReportProgress | None = None,
    checkpoint: Path | str | None = None,
    workers: int = 1,
    ahead: Iterable[Job] = (),
    look: Look | None = None,
) -> Iterator[tuple[Job, History]]:
    """Train several ensembles, side by side on a GPU or in several processes, and yield each as soon as it is done.

    Args:
        jobs: what to train. Runs that can share an ensemble should do so, which is faster than several ensembles.
        progress: called from time to time with the fraction that is done and a short message.
        checkpoint: a folder for the states. The state of a job is removed when the next result is asked for, so store
            each result first. After an interrupt, call this again with the jobs that are left.
        workers: number of processes. On a CPU they train, on a GPU they compile. Models and data must be picklable.
        ahead: what a later call will train. On a GPU, idle processes compile it in advance.
        look: called from time to time with the number of a job, and its progress with the last embeddings.
    """
    report = Progress(jobs, progress, look)
    if any(job.ensemble.device.type == "cuda" for job in jobs):
        yield from _fit_side_by_side(jobs, report, checkpoint, workers, ahead)
    elif workers > 1 and len(jobs) > 1:
        yield from _fit_in_processes(jobs, report, checkpoint, min(workers, len(jobs)))
    else:
        for number, job in enumerate(jobs):
            for parts in train_parts(job, checkpoint):
                report(number, parts.status(look=report.looks))
            yield job, parts.history()
            parts.forget()


def _fit_in_processes(
    jobs: Sequence[Job], report: Progress, checkpoint: Path | str | None, workers: int
) -> Iterator[tuple[Job, History]]:
    """Train each job in a process of its own, `workers` of them at a time."""
    messages: queue.SimpleQueue[tuple[int, str, Any]] = queue.SimpleQueue()
    waiting, running = list(range(len(jobs))), dict[int, Worker]()

    def listen(number: int, worker: Worker) -> None:
        try:
            for kind, content in worker.messages():
                messages.put((number, kind, content))
        except Exception as error:
            messages.put((number, "failed", error))

    try:
        while waiting or running:
            while waiting and len(running) < workers:
                number = waiting.pop(0)
                running[number] = Worker("train", jobs[number], checkpoint, workers, look=report.looks)
                threading.Thread(target=listen, args=(number, running[number]), daemon=True).start()
            number, kind, content = messages.get()
            if kind == "failed":
                raise content
            if kind == "progress":
                report(number, content)
                continue
            running.pop(number).process.wait()
            history, states, kept = content
            for model, state in zip(jobs[number].ensemble, states, strict=True):
                model.load_state_dict(state)
            yield jobs[number], history
            for path in kept:
                path.unlink(missing_ok=True)
    finally:
        for worker in running.values():
            worker.stop()


def _fit_side_by_side(
    jobs: Sequence[Job], report: Progress, checkpoint: Path | str | None, workers: int, ahead: Iterable[Job] = ()
) -> Iterator[tuple[Job, History]]:
    """Train on a GPU. One small ensemble leaves most of it idle, so all compiled ensembles train in turns.

    The error of one ensemble is raised after the others are done. If an ensemble ran out of memory, it gets a second
    try then, when nothing else uses memory.
    """
    active: dict[int, Parts] = {}
    left, postponed, second = len(jobs), list[int](), set[int]()
    errors: list[Exception] = []

    def failed(number: int, error: Exception) -> None:
        if is_out_of_memory(error) and number not in second:
            postponed.append(number)
        else:
            errors.append(error)

    with contextlib.closing(_compiled_ahead(jobs, workers, ahead)) as upcoming:
        while left or active or postponed:
            begun = next(upcoming, None)
            if begun is not None:
                left -= 1
            elif postponed and not left and not active:
                begun = postponed.pop(0)
                second.add(begun)
            if begun is not None:
                try:
                    # Meanwhile the GPU trains a block of epochs of each other ensemble.
                    active[begun] = Parts(jobs[begun], checkpoint)
                except Exception as error:
                    failed(begun, error)
            advanced = [number for number, one in active.items() if one.trainer.ready]
            for number in advanced:
                try:
                    done = active[number].advance()
                except Exception as error:
                    failed(number, error)
                    del active[number]
                    continue
                report(number, active[number].status(look=report.looks))
                if done:
                    parts = active.pop(number)
                    yield jobs[number], parts.history()
                    parts.forget()
                    del parts  # the next ensemble needs its memory
            if begun is None and not advanced:
                time.sleep(0.002)
    if errors:
        errors[0].add_note(f"{len(errors)} of {len(jobs)} ensembles could not be trained. The others were.")
        raise errors[0]


def _compiled_ahead(jobs: Sequence[Job], workers: int, ahead: Iterable[Job]) -> Generator[int | None]:
    """Compile jobs in processes and yield the number of each job when it is compiled, or None if none is yet.

    The compiled code comes back through torch's cache on disk, which takes seconds to read. Compiling takes as long as
    a short training and uses one core. If a process fails, its job is compiled later by this process. When no job is
    left to start, the jobs of a later call are compiled, and their numbers are not yielded.
    """
    if workers <= 1:
        yield from range(len(jobs))
        return
    waiting, running = list(range(len(jobs))), dict[int, Worker]()
    later, numbers = iter(ahead), itertools.count(len(jobs))
    if len(jobs) == 1:
        yield waiting.pop(0)  # this process would only wait
    try:
        while True:
            # One process per turn, because building a job takes time in which nothing is trained.
            if len(running) < workers and waiting:
                number = waiting.pop(0)
                running[number] = Worker("compile", outline(jobs[number]))
            elif len(running) < workers:
                with contextlib.suppress(Exception):  # no job is left, or an error that the later call will raise
                    running[next(numbers)] = Worker("compile", outline(next(later)))
            if not running:
                return
            ended = next((number for number, worker in running.items() if worker.process.poll() is not None), None)
            if ended is not None:
                running.pop(ended).stop()
            yield ended if ended is not None and ended < len(jobs) else None
    finally:
        for worker in running.values():
            worker.stop()
