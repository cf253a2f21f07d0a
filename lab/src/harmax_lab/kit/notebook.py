"""Progress in the cell of a notebook, where nobody has asked for another kind."""

import html
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harmax_lab.kit.engine import Event

Show = Callable[[Event], None]


@contextmanager
def showing_progress(given: Show | None) -> Iterator[Show | None]:
    """Yield what shows progress: what is given, else in a notebook a bar below the cell, else nothing."""
    if given is not None or not in_notebook():
        yield given
        return
    from IPython.display import HTML, display  # type: ignore[import-not-found]  # a notebook brings it

    handle: Any = display(HTML(""), display_id=True)
    yield lambda event: handle.update(HTML(as_html(event)))


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook; IPython in a terminal is none."""
    module: Any = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and hasattr(shell, "kernel")


def as_html(event: Event) -> str:
    """Return a bar and the words for one event.

    >>> as_html(Event("toy_cases", 1, 0, 4, 0.25, "case 1 < 2"))
    '<progress value="0.25" max="1"></progress> toy_cases: 1 of 4 cells, case 1 &lt; 2'
    """
    words = f"{event.experiment}: {event.done} of {event.total} cells"
    words += f", {event.failed} failed" * bool(event.failed) + f", {event.message}" * bool(event.message)
    return f'<progress value="{event.fraction:.4g}" max="1"></progress> {html.escape(words)}'
