"""Benchmarks run on one thread, and change no variable of the environment for other tests."""

import os
from collections.abc import Iterator

import pytest

from threads import one_thread

__all__ = ["one_thread"]


@pytest.fixture(autouse=True)
def variables() -> Iterator[None]:
    """A variable silences the profiler."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
