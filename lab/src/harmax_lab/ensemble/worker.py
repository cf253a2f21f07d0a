"""Another process that trains or compiles one job.

It reads its task from standard input and writes messages to standard output, as pickles that are never stored.
`multiprocessing` would import the user's script again, which would start over if it has no `__main__` guard.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from harmax_lab.ensemble.parts import Job, train_parts
from harmax_lab.ensemble.trainer import Trainer

NICER = 10  # how much lower the priority of processes that compile is, in steps of nice


class Worker:
    """One process with one task.

    Args:
        task: "train" or "compile".
        job: what to work on; it must be picklable.
        checkpoint: a folder for its state.
        sharers: number of such processes, which share the free memory.
        look: whether its progress messages contain the embeddings.
    """

    def __init__(
        self, task: str, job: Job, checkpoint: Path | str | None = None, sharers: int = 1, *, look: bool = False
    ) -> None:
        # The job is a pickle of its own, so that an error in reading it can be recognized.
        message = pickle.dumps((task, checkpoint, sharers, look, torch.get_default_dtype(), pickle.dumps(job)))
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        # -P: files in the current folder must not hide standard modules.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from harmax_lab.ensemble.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if task == "compile" else None,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )
        if task == "compile" and hasattr(os, "setpriority"):
            # The process that feeds the GPU must not wait for processes that compile.
            kind, pid = os.PRIO_PROCESS, self.process.pid
            os.setpriority(kind, pid, os.getpriority(kind, 0) + NICER)
        # The process reads only after it has imported torch. A thread writes, so that this process need not wait.
        self._feeding = threading.Thread(target=self._feed, args=(message,), daemon=True)
        self._feeding.start()

    def _feed(self, message: bytes) -> None:
        assert self.process.stdin is not None
        # The pipe breaks if the process ends early. Its exit status then shows whether it failed.
        # It stays open, because its end tells the process that this one is gone.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(message)
            self.process.stdin.flush()

    def messages(self) -> Iterator[tuple[str, Any]]:
        """Yield the messages of the process, as (kind, content); raise RuntimeError if it ends without a last one."""
        assert self.process.stdout is not None
        kind = ""
        with contextlib.suppress(EOFError):
            while True:
                kind, content = pickle.load(self.process.stdout)
                yield kind, content
        self.process.stdout.close()
        status = self.process.wait()
        self._let_go()
        if status or kind not in ("done", "failed"):
            raise RuntimeError(
                f"a training process must end with a result, got exit status {status} and no result; read its error "
                "message above and try again (-9: killed, perhaps because memory ran out)."
            )

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait()
        self._let_go()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _let_go(self) -> None:
        self._feeding.join()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


def main() -> None:
    """Do the task."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # What other code prints must not get between the messages.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    task, checkpoint, sharers, look, dtype, job = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)

    def send(kind: str, content: Any) -> None:
        pickle.dump((kind, content), answer)
        answer.flush()

    try:
        if task == "compile":
            Trainer(*pickle.loads(job)).start()
        else:
            _train(_read(job), checkpoint, sharers, look, send)
    except Exception as error:
        send("failed", _portable(error))
    except KeyboardInterrupt:
        pass


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, however that happened: nobody wants the result."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """Return an error that can be pickled, with the place where it was raised."""
    words = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"a training process failed:\n{words}")
    error.add_note(f"in a training process:\n{words}")
    return error


def _read(job: bytes) -> Job:
    try:
        return pickle.loads(job)
    except (AttributeError, ImportError) as error:
        raise RuntimeError(
            "models and data must come from modules that another process can import, got "
            f"one that cannot be found ({error}); move its class into a file of its own, or use workers=1."
        ) from None


def _train(job: Job, checkpoint: Path | str | None, sharers: int, look: bool, send: Callable[[str, Any], None]) -> None:
    for parts in train_parts(job, checkpoint, sharers):
        send("progress", parts.status(look=look))
    kept = [checkpoint.path for checkpoint in parts.checkpoints]
    send("done", (parts.history(), [model.state_dict() for model in job.ensemble], kept))
