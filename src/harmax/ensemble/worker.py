"""A process beside this one that trains or compiles one job: its own interpreter, its own core.

It reads a task on standard input and answers on standard output.
Not `multiprocessing`: that would import the caller's script again, and scripts without a guard would start over.
Messages are pickles between two processes of one program; nothing of them is written to a file.
"""

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

if TYPE_CHECKING:
    from harmax.ensemble.parts import Job


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """One process with one task.

    Args:
        task: "train" or "compile".
        job: what to work on; it must be picklable.
        checkpoint: where its state is kept.
    """

    def __init__(self, task: str, job: "Job", checkpoint: str | None = None) -> None:
        message = pickle.dumps((task, tuple(job), checkpoint))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from harmax.ensemble.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if task == "compile" else None,
            env=environment,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(message)
        self.process.stdin.close()

    def messages(self) -> Iterator[Any]:
        """Yield what the process says, until it ends."""
        assert self.process.stdout is not None
        while True:
            try:
                yield pickle.load(self.process.stdout)
            except EOFError:
                break
        self.process.stdout.close()
        if self.process.wait():
            raise RuntimeError(f"a training process must end well, got exit status {self.process.returncode}.")

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait()
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
                running[number] = Worker("train", jobs[number], checkpoint)
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
    task, job, checkpoint = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    if task == "compile":
        from harmax.ensemble.trainer import Trainer

        Trainer(*job).start()
        return
    _train(job, checkpoint, answer)


def _train(job: Any, checkpoint: str | None, answer: BinaryIO) -> None:
    from harmax.ensemble.parts import Job, train_parts

    def say(*message: Any) -> None:
        pickle.dump(message, answer)
        answer.flush()

    job = Job(*job)
    try:
        for parts in train_parts(job, checkpoint):
            say("progress", parts.status())
        say("done", (parts.history(), [model.state_dict() for model in job.ensemble]))
    except Exception as error:
        say("failed", error)
    except KeyboardInterrupt:
        pass
