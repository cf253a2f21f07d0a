"""One line of progress on standard error. A terminal updates it in place; elsewhere a new line is printed at times."""

import sys
import time

from rich.console import Console
from rich.text import Text

LINE_EVERY = 10.0  # seconds between lines without a terminal
LIVE_EVERY = 0.1  # seconds between updates on a terminal


class LiveLine:
    """A context manager that takes progress texts at any rate and shows some of them.

    >>> with LiveLine("starting") as line:
    ...     line("half of it is done")
    """

    def __init__(self, first: str) -> None:
        console = Console(stderr=True)
        self._status = console.status(first) if console.is_terminal else None
        self._shown = time.monotonic()

    def __enter__(self) -> "LiveLine":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, words: str, *, important: bool = False) -> None:
        """Show a text, unless the last one is recent; an important one is always shown."""
        now = time.monotonic()
        if not important and now - self._shown < (LINE_EVERY if self._status is None else LIVE_EVERY):
            return
        self._shown = now
        if self._status is None:
            print(words, file=sys.stderr, flush=True)
        else:
            self._status.update(Text(words))
