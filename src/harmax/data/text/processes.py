"""Tokenizing in processes beside this one, in order.

This file is also what such a process runs, by its path: it imports nothing of harmax, so that a process starts at once
and small, and a caller's script is not imported a second time as `multiprocessing` would.
Messages are pickles between two processes of one program; nothing of them is written to a file.
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

BATCH_CHARACTERS = 2**18  # about 20 ms of work: long beside a message, short beside a user's patience


class HasText(Protocol):
    """Something with a text to encode."""

    @property
    def text(self) -> str:
        """The text."""
        ...


Item = TypeVar("Item", bound=HasText)


def encode_in_order(
    encoding: "Encoding", items: Iterable[Item], *, workers: int
) -> Generator[tuple[Item, np.ndarray], None, None]:
    """Yield every item with its tokens (uint16, separator last), in the items' order whatever the number of workers."""
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
            if len(running) > 3 * workers:  # enough that none waits for the next, and no more held in memory
                batch, tokens = running.popleft()
                yield from zip(batch, tokens.result(), strict=True)
        for batch, tokens in running:
            yield from zip(batch, tokens.result(), strict=True)


def encode(encoding: "Encoding", texts: Sequence[str]) -> list[np.ndarray]:
    """Encode documents, each with the separator behind it; what looks like a special token in a text is plain text."""
    return [np.array([*encoding.encode_ordinary(text), encoding.eot_token], np.uint16) for text in texts]


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    characters = 0
    for item in items:
        batch.append(item)
        characters += len(item.text) + 64  # so that tiny documents do not make endless batches
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
            self._input.close()  # it ends at the end of its input
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
            f"a tokenizing process must answer, got its end with status {self._process.wait()}; see its words above, "
            "if any (-9: killed, perhaps for want of memory), and run the same again with fewer workers."
        ) from None


def main() -> None:
    """Read an encoding, then answer lists of texts until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end is this process's end
    try:
        encoding = pickle.load(sys.stdin.buffer)
        while True:
            tokens = encode(encoding, pickle.load(sys.stdin.buffer))
            answer = [len(some) for some in tokens], b"".join(some.tobytes() for some in tokens)
            pickle.dump(answer, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    except (EOFError, pickle.UnpicklingError, BrokenPipeError):
        os._exit(0)  # the parent is done, or gone: no word about it, nor about an answer that nobody reads


if __name__ == "__main__":
    main()
