"""Tables from columns: a title, one item per row, and one function per column, which gets the item."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any, TypeVar

from harmax.analysis import Interval, PairedDifference
from harmax_lab.kit.results import Results

R = TypeVar("R")
Column = Callable[[Any], Any]


@dataclass(frozen=True)
class Table:
    """Rows of plain values under a title. Every row has the same keys."""

    title: str
    rows: tuple[Mapping[str, Any], ...]


def tabulate(title: str, rows: Iterable[R], columns: Mapping[str, Callable[[R], Any]]) -> Table:
    """Make a table. Each column is a heading and a function of a row's item.

    >>> tabulate("Squares", [1, 2], {"n": lambda n: n, "n^2": lambda n: n * n}).rows[1]
    {'n': 2, 'n^2': 4}
    """
    return Table(title, tuple(entries(row, columns) for row in rows))


def entries(row: R, columns: Mapping[str, Callable[[R], Any]]) -> dict[str, Any]:
    """Make one row, or a part of it. Each column is a heading and a function of the row's item."""
    return {heading: value(row) for heading, value in columns.items()}


def combinations(**fields: Iterable[Any]) -> list[SimpleNamespace]:
    """List all combinations of the fields' values as objects with these fields. The last field varies fastest.

    >>> [(at.task, at.seed) for at in combinations(task=("a", "b"), seed=(0, 1))]
    [('a', 0), ('a', 1), ('b', 0), ('b', 1)]
    """
    return [SimpleNamespace(**dict(zip(fields, values, strict=True))) for values in product(*fields.values())]


def in_epochs(found: Interval | None) -> str:
    """Write an interval of epochs, which may be halves or infinite.

    >>> in_epochs(Interval(1032.0, 870.5, float("inf")))
    '1032 [870.5, inf]'
    """
    return "none" if found is None else f"{found.estimate:g} [{found.low:g}, {found.high:g}]"


def yes_or_no(answer: bool) -> str:
    """Write an answer as "yes" or "no"."""
    return "yes" if answer else "no"


def paired_columns(
    found: Callable[[Any], PairedDifference | None],
    difference: str = "mean [95 %]",
    greater: str = "higher on",
    less: str = "lower on",
    form: Callable[[Any], str] = str,
    *,
    less_first: bool = False,
) -> dict[str, Column]:
    """Return five columns for a comparison over pairs: the difference, two numbers of pairs, and two p-values.

    Args:
        found: returns the comparison of a row; None if there is no pair.
        difference: heading of the difference with its interval.
        greater: heading of the number of pairs in which the first arm is greater.
        less: heading of the number of pairs in which it is less.
        form: writes the interval.
        less_first: whether the column `less` comes before `greater`.
    """

    def value(get: Callable[[PairedDifference], Any]) -> Column:
        return lambda row: get(one) if (one := found(row)) is not None else None

    counts = {greater: value(lambda one: one.greater), less: value(lambda one: one.less)}
    return {
        difference: value(lambda one: form(one.difference)),
        **(dict(reversed(counts.items())) if less_first else counts),
        "p, sign test": value(lambda one: one.sign_p),
        "p, signed ranks": value(lambda one: one.rank_p),
    }


def places(results: Results[Any, Any], **fields: Iterable[Any]) -> list[Any]:
    """List all combinations of the fields' values, as `combinations` does; `own` has the results with these values."""
    listed = combinations(**fields)
    for at in listed:
        at.own = results.where(**vars(at))
    return listed


def mean_of(metric: str) -> Callable[[Any], Interval | None]:
    """Return a function of a place: the mean of a metric with its bootstrap interval; None without a result."""
    return lambda at: at.own.metric(metric).mean()


def estimate(found: Callable[[Any], Interval | None]) -> Column:
    """Return a column with the estimate of an interval."""
    return lambda row: None if (one := found(row)) is None else one.estimate


def median_of(metric: str) -> Column:
    """Return a column with the median of a metric over a place's runs; None where nothing is there."""
    return estimate(lambda at: at.own.metric(metric).median())


def interval_columns(heading: str, found: Callable[[Any], Interval | None]) -> dict[str, Column]:
    """Return three columns for an interval: the estimate and both ends. Infinite ends are left empty."""

    def end(name: str) -> Column:
        return lambda row: getattr(one, name) if (one := found(row)) and math.isfinite(one.low) else None

    return {heading: estimate(found), **{f"{heading} {name}": end(name) for name in ("low", "high")}}
