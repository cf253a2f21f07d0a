"""Tables as lists of columns: a title, the things that rows are about, and one function per column."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any, TypeVar

R = TypeVar("R")


@dataclass(frozen=True)
class Table:
    """Rows of plain values under a title; every row has the same keys."""

    title: str
    rows: tuple[Mapping[str, Any], ...]


def tabulate(title: str, rows: Iterable[R], columns: Mapping[str, Callable[[R], Any]]) -> Table:
    """Make a table: each column is a heading and a function of what a row is about.

    >>> tabulate("Squares", [1, 2], {"n": lambda n: n, "n^2": lambda n: n * n}).rows[1]
    {'n': 2, 'n^2': 4}
    """
    return Table(title, tuple({heading: value(row) for heading, value in columns.items()} for row in rows))


def combinations(**fields: Iterable[Any]) -> list[SimpleNamespace]:
    """List every combination of some fields' values, the last field varying fastest, with a name for each value.

    >>> [(at.task, at.seed) for at in combinations(task=("a", "b"), seed=(0, 1))]
    [('a', 0), ('a', 1), ('b', 0), ('b', 1)]
    """
    return [SimpleNamespace(**dict(zip(fields, values, strict=True))) for values in product(*fields.values())]
