"""Benchmarks: what a thing costs, measured beside what it replaces, in one run.

`BENCHMARKS` maps a name to a function that yields one row (a flat dict) at a time; `harmax bench NAME` prints the rows
and keeps them under benchmarks/results.
"""

from collections.abc import Callable, Iterator
from typing import Any

from harmax.bench import gpt2, imports, loss, vision
from harmax.bench.options import BenchOptions
from harmax.plugins import plugins

BENCHMARKS: dict[str, Callable[[BenchOptions], Iterator[dict[str, Any]]]] = {
    "loss": loss.rows,
    "import": imports.rows,
    "gpt2": gpt2.rows,
    "vision": vision.rows,
}

__all__ = ["BENCHMARKS", "BenchOptions", "all_benchmarks"]


def all_benchmarks() -> dict[str, Callable[[BenchOptions], Iterator[dict[str, Any]]]]:
    """Return the library's benchmarks and those that installed packages register under `harmax.benchmarks`."""
    return BENCHMARKS | plugins("benchmarks")
