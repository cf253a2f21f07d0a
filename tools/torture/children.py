"""Work in forked processes, which need not import anything again: killed at a random file operation or moment."""

import contextlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "shutil.rmtree"}
MOST_SECONDS = 600.0


class Ended(NamedTuple):
    """How a process ended."""

    killed: bool
    words: str
    """Its traceback, if it failed."""


def start(work: Callable[[], None], said: Path) -> int:
    """Start a process that does some work and writes down why it failed; return its number."""
    said.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    number = os.fork()
    if number:
        return number
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silent, stream)
        work()
        status = 0
    except BaseException as error:
        status = 1
        with contextlib.suppress(OSError):
            said.write_text("".join(traceback.format_exception(error)))
    finally:
        os._exit(status)


def end(number: int, said: Path) -> Ended:
    """Wait for a process; one that hangs is killed, which counts as a failure."""
    until = time.monotonic() + MOST_SECONDS
    while not (found := os.waitpid(number, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
            return Ended(False, f"it hung for {MOST_SECONDS:.0f} s")
        time.sleep(0.005)
    status = os.waitstatus_to_exitcode(found[1])
    if status == -signal.SIGKILL:
        return Ended(True, "")
    words = said.read_text() if said.exists() else ""
    return Ended(False, words or ("" if status == 0 else f"exit status {status} without a word"))


def run(work: Callable[[], None], said: Path) -> Ended:
    """Do some work in a process of its own."""
    return end(start(work, said), said)


def watching(root: Path, work: Callable[[], None], at: Callable[[int], None]) -> Callable[[], None]:
    """Return the work with a call before each file operation below a folder: `at` gets its number, from 1."""

    def watched() -> None:
        count = 0

        def look(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if event in EVENTS and arguments and isinstance(arguments[0], str | os.PathLike):
                writes = event != "open" or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
                if writes and str(arguments[0]).startswith(str(root)):
                    count += 1
                    at(count)

        sys.addaudithook(look)
        work()

    return watched


def count_operations(root: Path, work: Callable[[], None], said: Path) -> tuple[int, float]:
    """Do the work; return its file operations and its seconds."""
    note = said.with_suffix(".count")
    begun = time.monotonic()
    ended = run(watching(root, work, lambda count: note.write_text(str(count))), said)
    assert not ended.words, ended.words
    return int(note.read_text()), time.monotonic() - begun


def killed(root: Path, work: Callable[[], None], said: Path, chosen: random.Random, size: tuple[int, float]) -> str:
    """Do the work until a kill, at a file operation or at a moment; return why it failed before, if it did."""
    operations, seconds = size
    if chosen.random() < 0.5:
        last = chosen.randint(1, operations)

        def kill(count: int) -> None:
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)

        ended = run(watching(root, work, kill), said)
        return ended.words
    number = start(work, said)
    time.sleep(chosen.uniform(0, seconds))
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    return end(number, said).words
