"""Tokenizing in worker processes, with the results in order.

A worker process runs this file by its path. The file imports nothing of harmax, so a worker starts fast and needs
little memory. Unlike with `multiprocessing`, the caller's script is not imported a second time.
Messages are pickles between two processes of one program. They are never written to a file.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from tiktoken import Encoding

BATCH_CHARACTERS = 2**18  # about 20 ms of work: long compared with a message, short for a user who waits


class HasText(Protocol):
    """An object with a text to encode."""

    @property
    def text(self) -> str:
        """The text."""
        ...


Item = TypeVar("Item", bound=HasText)


def encode_in_order(
    encoding: "Encoding", items: Iterable[Item], *, workers: int
) -> Generator[tuple[Item, np.ndarray], None, None]:
    """Yield every item with its tokens (uint16, separator last), in order, for any number of workers."""
    if workers == 1:
        for batch in _batches(items):
            yield from zip(batch, encode(encoding, [item.text for item in batch]), strict=True)
        return
    with ExitStack() as stack:
        idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        for _ in range(workers):
            idle.put(stack.enter_context(_Process(encoding)))
        threads = ThreadPoolExecutor(workers)
        stack.callback(threads.shutdown, cancel_futures=True)

        def ask(texts: list[str]) -> list[np.ndarray]:
            process = idle.get()
            try:
                return process.encode(texts)
            finally:
                idle.put(process)

        running: deque[tuple[list[Item], Future[list[np.ndarray]]]] = deque()
        for batch in _batches(items):
            running.append((batch, threads.submit(ask, [item.text for item in batch])))
            if len(running) > 3 * workers:  # enough to keep all workers busy, without holding more in memory
                batch, tokens = running.popleft()
                yield from zip(batch, tokens.result(), strict=True)
        for batch, tokens in running:
            yield from zip(batch, tokens.result(), strict=True)


def encode(encoding: "Encoding", texts: Sequence[str]) -> list[np.ndarray]:
    """Encode documents, with the separator after each. Special tokens inside a text are encoded as plain text."""
    return [np.array([*encoding.encode_ordinary(text), encoding.eot_token], np.uint16) for text in texts]


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    characters = 0
    for item in items:
        batch.append(item)
        characters += len(item.text) + 64  # limits the number of tiny documents per batch
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _Process:
    def __init__(self, encoding: "Encoding") -> None:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        # -P: the folder of this file must not hide standard modules.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._send(encoding)

    def __enter__(self) -> "_Process":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(BrokenPipeError):
            self._input.close()  # the worker exits at the end of its input
        self._output.close()
        self._process.wait()

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        self._send(texts)
        try:
            lengths, data = pickle.load(self._output)
        except EOFError:
            self._fail()
        return np.split(np.frombuffer(data, np.uint16), np.cumsum(lengths)[:-1])

    def _send(self, message: object) -> None:
        try:
            pickle.dump(message, self._input)
            self._input.flush()
        except BrokenPipeError:
            self._fail()

    def _fail(self) -> NoReturn:
        raise RuntimeError(
            f"a tokenizing process must answer, but it ended with status {self._process.wait()}; read its output above "
            "(-9 means killed, often for lack of memory), and run the same command with fewer workers."
        ) from None


def main() -> None:
    """Read an encoding, then answer lists of texts until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, and the end of the parent ends this process
    try:
        encoding = pickle.load(sys.stdin.buffer)
        while True:
            tokens = encode(encoding, pickle.load(sys.stdin.buffer))
            answer = [len(some) for some in tokens], b"".join(some.tobytes() for some in tokens)
            pickle.dump(answer, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    except (EOFError, pickle.UnpicklingError, BrokenPipeError):
        os._exit(0)  # the parent has finished or died, so nobody would read an error


if __name__ == "__main__":
    main()
