"""What comes back of a training, and what is said on the way."""

import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from ensemble.twins import (
    CURVES,
    MIXED,
    TASKS,
    Run,
    assert_identical,
    assert_same_curves,
    assert_same_parameters,
    copies,
    ensemble_of,
    plan_of,
    train_alone,
)
from harmax_lab.ensemble import History, Job, Plan, fit, fit_all
from harmax_lab.ensemble.fit import _fit_side_by_side
from harmax_lab.ensemble.parts import Parts, outline
from harmax_lab.ensemble.progress import Progress
from harmax_lab.ensemble.trace import Traced
from harmax_lab.ensemble.trainer import BLOCK, Trainer
from harmax_lab.ensemble.worker import NICER, Worker


@pytest.mark.parametrize("rate", [1e200, 1e30])
def test_a_run_that_diverges_is_told_and_leaves_the_others_alone(rate: float) -> None:
    runs = [Run(seed=0), Run(seed=1, learning_rate=rate), Run(TASKS["sums"], seed=2)]
    ensemble = ensemble_of(runs, head="linear")
    alone = copies(ensemble)
    plan = plan_of(runs, exponent=False)
    history = fit(ensemble, [run.split for run in runs], plan)
    first = history.diverged_at[1]
    assert first is not None
    assert np.isfinite(history.train_loss[1, :first]).all()
    assert not np.isfinite([history.train_loss[1, first], history.test_loss[1, first]]).all()
    assert [history.diverged_at[run] for run in (0, 2)] == [None, None]
    for run in (0, 2):
        assert_same_curves(history, run, train_alone(alone[run], runs[run], plan))
        assert_same_parameters([ensemble[run]], [alone[run]])


def test_curves_have_a_value_an_epoch_and_none_after_a_runs_last() -> None:
    runs = [Run(seed=0, epochs=5), Run(seed=1, epochs=2)]
    history = fit(ensemble_of(runs), [run.split for run in runs], plan_of(runs))
    np.testing.assert_array_equal(history.epochs, [5, 2])
    for name in CURVES:
        curve = getattr(history, name)
        assert (curve.shape, curve.dtype) == ((2, 5), np.float32)
        np.testing.assert_array_equal(np.isfinite(curve), [[True] * 5, [True] * 2 + [False] * 3])
    assert history.diverged_at == [None, None]


def test_waste_is_the_share_of_steps_a_run_waits() -> None:
    alike = fit(ensemble_of([Run(seed=0), Run(seed=1)]), [Run().split] * 2, Plan(epochs=2))
    assert alike.waste == 0
    # 20 and 5 training rows in batches of 5: three epochs of four steps, two epochs of one.
    runs = [Run(), Run(train_fraction=0.2)]
    unlike = fit(ensemble_of(runs), [run.split for run in runs], Plan(epochs=[3, 2], batch_size=5))
    assert unlike.waste == pytest.approx(1 - (3 * 4 + 2 * 1) / (2 * 3 * 4))


def test_training_learns() -> None:
    runs = [Run(seed=seed) for seed in range(3)]
    plan = Plan(epochs=60, batch_size=8, learning_rate=2e-2)
    history = fit(ensemble_of(runs, head="linear", dtype=torch.float32), [run.split for run in runs], plan)
    assert (history.train_accuracy[:, -1] == 1).all()
    assert (history.train_loss[:, -1] < 0.1 * history.train_loss[:, 0]).all()


def test_snapshots_begin_with_the_initial_and_end_with_the_final_embedding() -> None:
    ensemble = ensemble_of(MIXED, dtype=torch.float32)
    before = copies(ensemble)
    history = fit(ensemble, [run.split for run in MIXED], plan_of(MIXED, snapshots=[4, 0, 2, 2]))
    assert history.snapshot_epochs.tolist() == [0, 2, 4]
    widest = max(run.task.vocabulary for run in MIXED)
    assert history.snapshots.shape == (len(MIXED), 3, widest, 16)
    for number, run in enumerate(MIXED):
        own, beyond = np.split(history.snapshots[number], [run.task.vocabulary], axis=1)
        np.testing.assert_array_equal(own[0], before[number].embedding.detach().numpy())
        np.testing.assert_array_equal(own[-1], ensemble[number].embedding.detach().numpy())
        assert not beyond.any()
        assert (own[1] != own[0]).any()
    # Run 1 has two epochs, run 0 goes on.
    np.testing.assert_array_equal(history.snapshots[1, 1], history.snapshots[1, 2])
    assert (history.snapshots[0, 1] != history.snapshots[0, 2]).any()


def test_a_snapshot_shows_where_a_shorter_training_ends() -> None:
    plan = Plan(epochs=BLOCK + 3, snapshots=[BLOCK, BLOCK + 1])
    history = fit(ensemble_of([Run()], dtype=torch.float32), [Run().split], plan)
    shorter = ensemble_of([Run()], dtype=torch.float32)
    fit(shorter, [Run().split], Plan(epochs=BLOCK + 1))
    np.testing.assert_array_equal(history.snapshots[0, 1], shorter[0].embedding.detach().numpy())


def test_without_snapshots_there_are_none() -> None:
    history = fit(ensemble_of([Run()]), [Run().split], Plan(epochs=1))
    assert history.snapshots.shape[:2] == (1, 0)
    assert history.snapshot_epochs.shape == (0,)


def jobs() -> list[Job]:
    def job(runs: list[Run], head: str, epochs: int) -> Job:
        return Job(ensemble_of(runs, head=head), [run.split for run in runs], Plan(epochs=epochs))

    three, two = [Run(seed=seed) for seed in range(3)], [Run(TASKS["sums"], seed=seed) for seed in range(2)]
    return [job(three, "harmonic", BLOCK + 1), job(two, "linear", 1)]


Told = list[tuple[float, str]]


@pytest.fixture(scope="module")
def alone() -> list[tuple[Job, History]]:
    return [(job, fit(*job)) for job in jobs()]


def train_all(alone: list[tuple[Job, History]], **options: Any) -> tuple[Told, list[tuple[int, int]]]:
    """Train all jobs and see that each is yielded once, as it is alone; return what was told, and when each came."""
    told: Told = []
    asked, came = jobs(), []
    for job, history in fit_all(asked, progress=lambda *said: told.append(said), **options):
        came.append((asked.index(job), len(told)))
        twin, want = alone[asked.index(job)]
        assert_identical(history, want)
        assert_same_parameters(job.ensemble, twin.ensemble, tolerance=0.0)
    assert sorted(number for number, _ in came) == list(range(len(asked)))
    fractions = [fraction for fraction, _ in told]
    assert 0 <= fractions[0] < fractions[-1] == 1
    assert all(before <= after for before, after in pairwise(fractions))
    return told, came


def test_several_ensembles_give_what_each_gives_alone_and_progress_shows_a_bar_a_run(
    alone: list[tuple[Job, History]],
) -> None:
    told, came = train_all(alone)
    for _, words in told:
        assert re.match(r"epoch \d+ of \d+, test accuracy [▁▂▃▄▅▆▇█]+ median [01]\.\d\d", words), words
    # What is said last before an ensemble is handed over is about that ensemble.
    for number, count in came:
        bars = re.search("accuracy ([▁-█]+)", told[count - 1][1])[1]
        assert len(bars) == len(alone[number][0].ensemble)


@pytest.mark.slow
def test_processes_give_what_one_gives(alone: list[tuple[Job, History]]) -> None:
    looked: list[int] = []
    train_all(alone, workers=2, look=lambda number, status: looked.append(number))
    assert set(looked) == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_taking_turns_gives_the_same(alone: list[tuple[Job, History]], workers: int) -> None:
    """How ensembles share a GPU, on a CPU: compiled ahead by processes, then advanced block by block in turns."""
    asked = jobs()
    done = list(_fit_side_by_side(asked, Progress(asked, None), None, workers))
    assert sorted(asked.index(job) for job, _ in done) == [0, 1]
    for job, history in done:
        twin, want = alone[asked.index(job)]
        assert_identical(history, want)
        assert_same_parameters(job.ensemble, twin.ensemble, tolerance=0.0)


@pytest.mark.slow
def test_what_comes_next_is_compiled_meanwhile_after_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def start(task: str, job: Job) -> Worker:
        started.append(len(job.ensemble))
        return Worker(task, job)

    def following() -> Iterator[Job]:
        for runs in (5, 6, 7, 8):
            yield Job(ensemble_of([Run()] * runs), [Run().split] * runs, Plan(epochs=1, compile=False))

    monkeypatch.setattr(sys.modules[_fit_side_by_side.__module__], "Worker", start)
    asked = jobs()
    done = list(_fit_side_by_side(asked, Progress(asked, None), None, 3, following()))
    assert len(done) == len(asked)
    own = [len(job.ensemble) for job in asked]
    assert started[: len(own) + 1] == [*own, 5]
    assert started == [*own, 5, 6, 7, 8][: len(started)]


@pytest.mark.slow
def test_what_comes_next_cannot_break_what_is_trained(alone: list[tuple[Job, History]]) -> None:
    def broken() -> Iterator[Job]:
        yield Job(ensemble_of([Run()]), [Quits()], Plan(epochs=1))  # has no sizes
        raise RuntimeError("on purpose")

    asked = jobs()
    assert len(list(_fit_side_by_side(asked, Progress(asked, None), None, 3, broken()))) == len(alone)


def test_one_that_fails_side_by_side_does_not_take_the_others_along() -> None:
    bad = Job(ensemble_of([Run()], head="linear"), [Run().split], Plan(epochs=1, exponent=2.0))
    asked = [bad, *jobs()]
    came: list[int] = []
    with pytest.raises(ValueError, match="`exponent` must be None") as raised:
        came.extend(asked.index(job) for job, _ in _fit_side_by_side(asked, Progress(asked, None), None, 1))
    assert sorted(came) == [1, 2]
    assert raised.value.__notes__ == ["1 of 3 ensembles could not be trained. The others were."]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        torch.AcceleratorError("CUDA error: out of memory"),
        MemoryError("the memory must hold 2 runs"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("tries", [1, 2])
def test_one_that_finds_no_memory_has_a_second_try_when_the_others_are_done(
    alone: list[tuple[Job, History]], monkeypatch: pytest.MonkeyPatch, error: Exception, tries: int
) -> None:
    asked, refused = jobs(), list[Job]()

    def start(job: Job, checkpoint: Path | None) -> Parts:
        if job is asked[0] and len(refused) < tries:
            refused.append(job)
            raise error
        return Parts(job, checkpoint)

    monkeypatch.setattr(sys.modules[_fit_side_by_side.__module__], "Parts", start)
    came: list[int] = []
    outcome = pytest.raises(type(error)) if tries == 2 else contextlib.nullcontext()
    with outcome:
        for job, history in _fit_side_by_side(asked, Progress(asked, None), None, 1):
            came.append(asked.index(job))
            assert_identical(history, alone[came[-1]][1])
    assert came == ([1] if tries == 2 else [1, 0])
    assert len(refused) == tries


def test_what_failed_or_is_done_has_left_the_memory_when_the_second_try_begins(
    alone: list[tuple[Job, History]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, begun, alive = jobs(), list[weakref.ref[Parts]](), list[int]()

    class Fails(Parts):
        def advance(self) -> bool:
            if self.job is asked[0] and len(begun) == len(asked):
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().advance()

    def start(job: Job, checkpoint: Path | None) -> Parts:
        alive.append(sum(one() is not None for one in begun))
        parts = Fails(job, checkpoint)
        begun.append(weakref.ref(parts))
        return parts

    monkeypatch.setattr(sys.modules[_fit_side_by_side.__module__], "Parts", start)
    came = []
    for job, history in _fit_side_by_side(asked, Progress(asked, None), None, 1):
        came.append(asked.index(job))
        assert_identical(history, alone[came[-1]][1])
    assert came == [1, 0]
    assert alive == [0, 1, 0]


def test_what_was_compiled_once_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    counters.clear()
    x = torch.arange(7.0)
    for _ in range(2):
        traced = Traced(lambda given: [given[0].sin() + 1], torch.device("cpu"), [torch.empty(7, device="meta")])
        traced.compile()
        torch.testing.assert_close(traced([x])[0], x.sin() + 1)
    assert (counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"]) == (1, 1)
    written = [path.read_text() for path in tmp_path.rglob("*.py")]
    assert written
    assert not any("ks0" in code for code in written)  # a size that is a variable, and slow


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="needs a system with priorities")
def test_compilers_stand_behind_those_who_train() -> None:
    job = Job(ensemble_of([Run()]), [Run().split], Plan(epochs=1))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for task, behind in (("compile", NICER), ("train", 0)):
        worker = Worker(task, job)
        try:
            assert os.getpriority(os.PRIO_PROCESS, worker.process.pid) == min(own + behind, 19)
        finally:
            worker.stop()


def test_an_outline_has_the_shapes_of_its_job_and_is_quickly_sent() -> None:
    runs = [Run(TASKS[task], seed=seed) for task in ("small", "sums") for seed in range(60)]
    job = Job(ensemble_of(runs), [run.split for run in runs], Plan(epochs=3))
    twin = outline(job)
    assert twin.ensemble.shapes() == job.ensemble.shapes()
    assert Trainer(*twin).peak_bytes() == Trainer(*job).peak_bytes()
    assert len(pickle.dumps(tuple(twin))) < len(pickle.dumps(tuple(job))) / 20
    assert len({id(model) for model in job.ensemble}) == 120  # which it leaves alone


def test_an_error_in_a_process_is_raised_here() -> None:
    bad = Job(ensemble_of([Run()], head="linear"), [Run().split], Plan(epochs=1, exponent=2.0))
    with pytest.raises(ValueError, match="`exponent` must be None"):
        list(fit_all([bad, bad], workers=2))


class Quits:
    """Data that ends the process which reads it, without an error."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (0,)


def test_a_process_that_ends_without_a_word_is_an_error() -> None:
    quits = Job(ensemble_of([Run()]), Quits(), Plan(epochs=1))
    with pytest.raises(RuntimeError, match="must end with a result, got exit status 0"):
        list(fit_all([quits, quits], workers=2))


def test_nothing_asked_for_nothing_done() -> None:
    assert list(fit_all([])) == []


def test_of_many_runs_only_some_bars_are_shown() -> None:
    told = []
    runs = [Run(seed=seed) for seed in range(100)]
    fit(ensemble_of(runs), [run.split for run in runs], Plan(epochs=1), progress=lambda _, words: told.append(words))
    assert len(re.search("accuracy ([▁-█]+)", told[-1])[1]) == 40


KILLED = """
import os, signal, time
from harmax_lab.ensemble.worker import Worker

class Long:
    def __reduce__(self):
        return time.sleep, (3600,)

workers = [Worker("train", Long()) for _ in range(2)]
for worker in workers:
    worker._feeding.join()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_that_train_end_with_the_one_that_started_them() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stderr=subprocess.PIPE) as killed:
        killed.communicate(timeout=300)  # standard error, which they share, ends with the last of them
    assert killed.returncode == -signal.SIGKILL
