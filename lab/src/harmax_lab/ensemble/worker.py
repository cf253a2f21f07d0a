"""A process beside this one that trains or compiles one job: its own interpreter, its own core.

It reads a task on standard input and answers on standard output.
Not `multiprocessing`: that would import the caller's script again, and scripts without a guard would start over.
Messages are pickles between two processes of one program; nothing of them is written to a file.
"""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from harmax_lab.ensemble.parts import Job


BEHIND = 10  # steps of nice


class Worker:
    """One process with one task.

    Args:
        task: "train" or "compile".
        job: what to work on; it must be picklable.
        checkpoint: where its state is kept.
        sharers: how many such processes share the free memory.
    """

    def __init__(self, task: str, job: "Job", checkpoint: str | None = None, sharers: int = 1) -> None:
        # The job by itself, so that one that cannot be read there can be told from everything else.
        message = pickle.dumps((task, checkpoint, sharers, torch.get_default_dtype(), pickle.dumps(tuple(job))))
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        # -P: the folder it is started from must not hide standard modules.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from harmax_lab.ensemble.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if task == "compile" else None,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )
        if task == "compile" and hasattr(os, "setpriority"):
            # The process that feeds the GPU must not wait for a core that compiles what comes later.
            kind, pid = os.PRIO_PROCESS, self.process.pid
            os.setpriority(kind, pid, os.getpriority(kind, 0) + BEHIND)
        # A pipe holds little, and the process reads only once it has imported torch: others can be started meanwhile.
        self._feeding = threading.Thread(target=self._feed, args=(message,), daemon=True)
        self._feeding.start()

    def _feed(self, message: bytes) -> None:
        assert self.process.stdin is not None
        # A pipe that breaks: it was stopped, or died, which its exit status tells.
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(message)

    def messages(self) -> Iterator[Any]:
        """Yield what the process says, until it ends; raise where it ends without having said the last word."""
        assert self.process.stdout is not None
        said: tuple[Any, ...] = ("nothing",)
        while True:
            try:
                said = pickle.load(self.process.stdout)
            except EOFError:
                break
            yield said
        self.process.stdout.close()
        if self.process.wait() or said[0] not in ("done", "failed"):
            raise RuntimeError(
                f"a training process must end with a result, got exit status {self.process.returncode} and none; see "
                "its words above, if any (-9: killed, perhaps for want of memory), and try again."
            )

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait()
        self._feeding.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


def train_in_processes(
    jobs: "Sequence[Job]", workers: int, checkpoint: str | None
) -> Iterator[tuple[int, tuple[str, Any]]]:
    """Train each job in a process, some at a time; yield (number, message) as messages come."""
    said: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    waiting, running = list(range(len(jobs))), dict[int, Worker]()

    def listen(number: int, worker: Worker) -> None:
        try:
            for message in worker.messages():
                said.put((number, message))
        except Exception as error:
            said.put((number, ("failed", error)))

    try:
        while waiting or running:
            while waiting and len(running) < workers:
                number = waiting.pop(0)
                running[number] = Worker("train", jobs[number], checkpoint, workers)
                threading.Thread(target=listen, args=(number, running[number]), daemon=True).start()
            number, message = said.get()
            if message[0] == "failed":
                raise message[1]
            if message[0] == "done":
                running.pop(number).process.wait()
            yield number, message
    finally:
        for worker in running.values():
            worker.stop()


def main() -> None:
    """Do the one task."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Whatever prints must not get between the messages.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    task, checkpoint, sharers, dtype, job = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)

    def say(*message: Any) -> None:
        pickle.dump(message, answer)
        answer.flush()

    try:
        if task == "compile":
            _compile(pickle.loads(job))
        else:
            _train(_read(job), checkpoint, sharers, say)
    except Exception as error:
        say("failed", _portable(error))
    except KeyboardInterrupt:
        pass


def _portable(error: Exception) -> Exception:
    """Return an error that survives the trip to the other process, with the place where it was raised."""
    words = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"a training process failed:\n{words}")
    error.add_note(f"in a training process:\n{words}")
    return error


def _read(job: bytes) -> Any:
    try:
        return pickle.loads(job)
    except (AttributeError, ImportError) as error:
        raise RuntimeError(
            "models and data must come from modules that another process can import, got "
            f"one that cannot be found ({error}); move its class into a file of its own, or take workers=1."
        ) from None


def _compile(job: Any) -> None:
    from harmax_lab.ensemble.trainer import Trainer

    Trainer(*job).start()


def _train(job: Any, checkpoint: str | None, sharers: int, say: Callable[..., None]) -> None:
    from harmax_lab.ensemble.parts import Job, train_parts

    job = Job(*job)
    for parts in train_parts(job, checkpoint, sharers):
        say("progress", parts.status())
    kept = [checkpoint.path for checkpoint in parts.checkpoints]
    say("done", (parts.history(), [model.state_dict() for model in job.ensemble], kept))
