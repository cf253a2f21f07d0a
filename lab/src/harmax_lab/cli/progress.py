"""Progress on standard error: a bar with the time left on a terminal, now and then a line elsewhere."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from harmax_lab.kit.engine import Event

LINE_EVERY = 10.0  # seconds between lines where nothing has finished


class ShowProgress:
    """A context manager that is called with events.

    >>> with ShowProgress() as show:
    ...     pass
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._spoken, self._heard = -1.0, ("", 0)

    def __enter__(self) -> "ShowProgress":
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        words = f"{event.experiment}: {event.done} of {event.total} cells"
        words += f", {event.failed} failed" if event.failed else ""
        if self._bar is not None:
            task = next((t.id for t in self._bar.tasks if t.fields.get("name") == event.experiment), None)
            if task is None:
                task = self._bar.add_task("", total=1.0, name=event.experiment)
            description = f"{words}  {event.message}".rstrip()
            self._bar.update(task, completed=event.fraction, description=description)
            return
        now, news = time.monotonic(), (event.experiment, event.done + event.failed)
        if news != self._heard or now - self._spoken >= LINE_EVERY:
            print(f"{words} ({event.fraction:.0%}) {event.message}".rstrip(), file=sys.stderr, flush=True)
            self._spoken, self._heard = now, news
