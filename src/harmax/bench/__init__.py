"""Benchmarks: what a thing costs, measured beside what it replaces, in one run.

`BENCHMARKS` maps a name to a function that yields one row (a flat dict) at a time; `harmax bench NAME` prints the rows
and keeps them under benchmarks/results.
"""

from collections.abc import Callable, Iterator
from typing import Any

from harmax.bench import ensemble, gpt2, imports, loss, vision
from harmax.bench.options import BenchOptions

BENCHMARKS: dict[str, Callable[[BenchOptions], Iterator[dict[str, Any]]]] = {
    "loss": loss.rows,
    "import": imports.rows,
    "ensemble": ensemble.rows,
    "gpt2": gpt2.rows,
    "vision": vision.rows,
}

__all__ = ["BENCHMARKS", "BenchOptions"]
