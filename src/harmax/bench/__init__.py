"""Benchmarks: the cost of each part of harmax and of the standard part that it replaces, measured in one run.

`BENCHMARKS` maps a name to a function that yields one row (a flat dict) at a time. The first line of its docstring is
its description in `harmax bench --help`. `harmax bench NAME` prints the rows and stores them in benchmarks/results.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from harmax.bench import gpt2, imports, loss, ranks, tabular, vision
from harmax.bench.options import BenchOptions
from harmax.plugins import plugins

BENCHMARKS: dict[str, Callable[[BenchOptions], Iterator[dict[str, Any]]]] = {
    "loss": loss.rows,
    "ranks": ranks.rows,
    "import": imports.rows,
    "gpt2": gpt2.rows,
    "vision": vision.rows,
    "tabular": tabular.rows,
}

__all__ = ["BENCHMARKS", "BenchOptions", "all_benchmarks", "describe_benchmarks"]


def all_benchmarks() -> dict[str, Callable[[BenchOptions], Iterator[dict[str, Any]]]]:
    """Return the benchmarks of the library and of installed packages, which register under `harmax.benchmarks`."""
    return BENCHMARKS | plugins("benchmarks")


def describe_benchmarks() -> dict[str, str]:
    """Return one line about each benchmark, by its name.

    >>> describe_benchmarks()["import"]
    'Time that `import harmax` adds to `import torch`.'
    """
    return {name: (inspect.getdoc(rows) or "").partition("\n")[0] for name, rows in all_benchmarks().items()}
