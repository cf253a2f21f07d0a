"""Training ensembles: one, or several side by side."""

import contextlib
import itertools
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

from harmax_lab.ensemble.parts import Job, Parts, outline, train_parts
from harmax_lab.ensemble.plan import History, Plan, Rows
from harmax_lab.ensemble.progress import Progress, TellProgress
from harmax_lab.ensemble.stack import Ensemble
from harmax_lab.ensemble.worker import Worker, train_in_processes


def fit(
    ensemble: Ensemble,
    splits: Sequence[Rows],
    plan: Plan,
    *,
    progress: TellProgress | None = None,
    checkpoint: Path | str | None = None,
) -> History:
    """Train all runs of an ensemble as one; each ends where it would have ended alone.

    Args:
        ensemble: the models; their parameters are changed at the end.
        splits: the data of each run, as `harmax.data.make_split` gives it.
        plan: how to train.
        progress: called now and then with the fraction done and a few words.
        checkpoint: a folder for the state on the way; a later call with the same arguments goes on from there.

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
    progress: TellProgress | None = None,
    checkpoint: Path | str | None = None,
    workers: int = 1,
    ahead: Iterable[Job] = (),
) -> Iterator[tuple[Job, History]]:
    """Train several ensembles, side by side on a GPU or in several processes, and yield each as soon as it is done.

    Args:
        jobs: what to train; runs that can share an ensemble should, since side by side is second best.
        progress: called now and then with the fraction done and a few words.
        checkpoint: a folder for the states on the way; that of a job goes when the next one is asked for, so store
            what was yielded first, and give only what is left when you call again.
        workers: processes; on a CPU they train, on a GPU they compile ahead. Models and data must be picklable.
        ahead: what a later call will train: on a GPU, processes that have nothing else to do compile it meanwhile.
    """
    tell = Progress(jobs, progress)
    on_gpu = any(job.ensemble.device.type == "cuda" for job in jobs)
    if on_gpu:
        yield from _fit_side_by_side(jobs, tell, checkpoint, workers, ahead)
    elif workers > 1 and len(jobs) > 1:
        yield from _fit_in_processes(jobs, tell, checkpoint, min(workers, len(jobs)))
    else:
        for number, job in enumerate(jobs):
            for parts in train_parts(job, checkpoint):
                tell(number, parts.status())
            yield job, parts.history()
            parts.forget()


def _fit_in_processes(
    jobs: Sequence[Job], tell: Progress, checkpoint: Path | str | None, workers: int
) -> Iterator[tuple[Job, History]]:
    where = None if checkpoint is None else str(checkpoint)
    for number, (kind, content) in train_in_processes(jobs, workers, where):
        if kind == "progress":
            tell(number, content)
            continue
        history, states, kept = content
        for model, state in zip(jobs[number].ensemble, states, strict=True):
            model.load_state_dict(state)
        yield jobs[number], history
        for path in kept:
            path.unlink(missing_ok=True)


def _fit_side_by_side(
    jobs: Sequence[Job], tell: Progress, checkpoint: Path | str | None, workers: int, ahead: Iterable[Job] = ()
) -> Iterator[tuple[Job, History]]:
    """Train on a GPU: small ensembles leave most of it idle, so all that are compiled take their turns.

    One that fails does not take the others along: its error is raised when they are done. One that found no memory
    beside the others, or beside the compilers, has a second try then.
    """
    active: dict[int, Parts] = {}
    left, postponed, second = len(jobs), list[int](), set[int]()
    errors: list[Exception] = []

    def failed(number: int, error: Exception) -> None:
        if _is_want_of_memory(error) and number not in second:
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
                    # The others have a block of epochs to go on with meanwhile.
                    active[begun] = Parts(jobs[begun], checkpoint)
                except Exception as error:
                    failed(begun, error)
            advanced = [number for number, one in active.items() if one.ready]
            for number in advanced:
                try:
                    done = active[number].advance()
                except Exception as error:
                    failed(number, error)
                    del active[number]
                    continue
                tell(number, active[number].status())
                if done:
                    parts = active.pop(number)
                    yield jobs[number], parts.history()
                    parts.forget()
                    del parts  # its memory is for what begins next
            if begun is None and not advanced:
                time.sleep(0.002)
    if errors:
        errors[0].add_note(f"{len(errors)} of {len(jobs)} ensembles could not be trained; the others are.")
        raise errors[0]


def _is_want_of_memory(error: Exception) -> bool:
    # CUDA's own error, unlike that of torch's allocator, has no class of its own.
    return isinstance(error, MemoryError) or "out of memory" in str(error)


def _compiled_ahead(jobs: Sequence[Job], workers: int, ahead: Iterable[Job]) -> Generator[int | None]:
    """Compile jobs in processes, some at a time, into torch's cache on disk; yield their numbers, None in between.

    When all are on their way, those of a later call are next, without a word.

    Compilation keeps one core busy for as long as a small training takes; read from the cache it is a matter of
    seconds. A process that fails has only not helped.
    """
    if workers <= 1:
        yield from range(len(jobs))
        return
    waiting, running = list(range(len(jobs))), dict[int, Worker]()
    later, numbers = iter(ahead), itertools.count(len(jobs))
    if len(jobs) == 1:
        yield waiting.pop(0)  # nothing else to do meanwhile
    try:
        while True:
            # One a turn: what comes later may have to be built first, and others wait to be trained on.
            if len(running) < workers and waiting:
                number = waiting.pop(0)
                running[number] = Worker("compile", outline(jobs[number]))
            elif len(running) < workers:
                with contextlib.suppress(Exception):  # the end, or an error that its own call will meet again
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
