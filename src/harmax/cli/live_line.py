"""One line about work of unknown shape, on standard error: live on a terminal, now and then a new one elsewhere."""

import sys
import time

from rich.console import Console
from rich.text import Text

LINE_EVERY = 10.0  # seconds, where there is no terminal
LIVE_EVERY = 0.1


class LiveLine:
    """A context manager that is given words as often as one likes, and shows some of them.

    >>> with LiveLine("starting") as line:
    ...     line("half of it is done")
    """

    def __init__(self, first: str) -> None:
        console = Console(stderr=True)
        self._status = console.status(first) if console.is_terminal else None
        self._spoken = time.monotonic()

    def __enter__(self) -> "LiveLine":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, words: str, *, important: bool = False) -> None:
        """Show a line, unless the last one was a moment ago and this one is not important."""
        now = time.monotonic()
        if not important and now - self._spoken < (LINE_EVERY if self._status is None else LIVE_EVERY):
            return
        self._spoken = now
        if self._status is None:
            print(words, file=sys.stderr, flush=True)
        else:
            self._status.update(Text(words))
