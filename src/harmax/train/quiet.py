"""Transformers without its progress bars, which would break into the line of a run's own progress."""

from collections.abc import Iterator
from contextlib import contextmanager

from harmax.errors import needs

with needs("hf"):
    from transformers.utils import logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Surround saving or loading of a model."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
