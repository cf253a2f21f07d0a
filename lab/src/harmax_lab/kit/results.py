"""The finished cells of a run as a small table: choose rows by field, take one value per row, pair two arms.

>>> found = results.where(task="lattice", head="harmonic").metric("accuracy")   # doctest: +SKIP
>>> found.mean(), found.by("seed")   # doctest: +SKIP
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from harmax.analysis import Interval, PairedDifference, bootstrap_interval, mean_interval, paired_difference
from harmax_lab.kit.store import CellResult

S = TypeVar("S")
C = TypeVar("C")
Test = Callable[[Any], bool]
BOOTSTRAP_FROM = 10
"""Seeds. A bootstrap of fewer is too narrow."""


def where(*tests: Test, **fields: Any) -> Test:
    """Return a test of cells: all given tests hold, and each field has the given value, or one value of a tuple.

    >>> from types import SimpleNamespace
    >>> where(task=("lattice", "tree"), seed=0)(SimpleNamespace(task="tree", seed=0))
    True
    """

    def test(cell: Any) -> bool:
        for name, wanted in fields.items():
            value = getattr(cell, name)
            if value != wanted and not (isinstance(wanted, tuple) and value in wanted):
                return False
        return all(one(cell) for one in tests)

    return test


class Results(Mapping[C, CellResult], Generic[S, C]):
    """Finished cells with their results.

    Args:
        spec: the settings of the run.
        found: the finished cells.
        wanted: every cell of the spec, finished or not; None: the finished ones.
    """

    def __init__(self, spec: S, found: Mapping[C, CellResult], wanted: Sequence[C] | None = None) -> None:
        self.spec, self._found = spec, found
        self.wanted = tuple(found if wanted is None else wanted)

    def __getitem__(self, cell: C) -> CellResult:
        return self._found[cell]

    def __iter__(self) -> Iterator[C]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def complete(self) -> bool:
        """Whether every wanted cell is finished."""
        return all(cell in self._found for cell in self.wanted)

    def where(self, *tests: Test, **fields: Any) -> "Results[S, C]":
        """Keep the cells that pass a test, which is given as for the function `where`."""
        test = where(*tests, **fields)
        found = {cell: result for cell, result in self._found.items() if test(cell)}
        return Results(self.spec, found, [cell for cell in self.wanted if test(cell)])

    def having(self, test: Callable[[CellResult], bool]) -> "Results[S, C]":
        """Keep the finished cells whose result passes a test."""
        return Results(self.spec, {cell: result for cell, result in self._found.items() if test(result)})

    def distinct(self, field: str) -> list[Any]:
        """List the different values of a field of the finished cells, in the order of the cells."""
        return list(dict.fromkeys(map(attrgetter(field), self)))

    def groups(self, *fields: str) -> dict[Any, "Results[S, C]"]:
        """Split the finished cells by one field, or by several; then a key is a tuple."""
        key = attrgetter(*fields)
        found: dict[Any, dict[C, CellResult]] = {}
        for cell, result in self.items():
            found.setdefault(key(cell), {})[cell] = result
        wanted = {value: [cell for cell in self.wanted if key(cell) == value] for value in found}
        return {value: Results(self.spec, own, wanted[value]) for value, own in found.items()}

    def metric(self, name: str) -> "Column[C]":
        """Take one metric from every finished cell."""
        return self.take(lambda cell, result: result.metrics[name])

    def curve(self, name: str) -> "Column[C]":
        """Take one curve from every finished cell."""
        return self.take(lambda cell, result: result.curves[name])

    def array(self, name: str) -> "Column[C]":
        """Take one array from each finished cell that has it."""
        return self.take(lambda cell, result: result.arrays.get(name)).present

    def take(self, value: Callable[[C, CellResult], Any]) -> "Column[C]":
        """Compute one value for every finished cell."""
        return Column([(cell, value(cell, result)) for cell, result in self.items()])

    def pairs(
        self, metric: str, field: str, of: Any, over: Any, *, on: str | tuple[str, ...] = "seed"
    ) -> dict[Any, tuple[Any, Any]]:
        """Return the metric of two arms for each pair of cells in which both have a value.

        The arms differ in `field`. The cells of a pair have the same fields `on`, which are the keys.
        """
        keys = (on,) if isinstance(on, str) else on
        one, two = (self.where(**{field: arm}).metric(metric).present.by(*keys) for arm in (of, over))
        return {key: (one[key], two[key]) for key in one if key in two}

    def paired(
        self,
        metric: str,
        field: str,
        of: Any,
        over: Any,
        *,
        on: str | tuple[str, ...] = "seed",
        scale: float = 1.0,
        statistic: str = "mean",
        level: float = 0.95,
    ) -> PairedDifference | None:
        """Compare two arms pair by pair: how much larger is the metric of the first arm? None without a pair.

        Args:
            metric: to compare; a pair without both values is left out.
            field: of the cells, in which the arms differ.
            of: the value of the field for the first arm.
            over: the value for the second arm.
            on: the fields that the two cells of a pair have in common.
            scale: a factor, such as 100 for points.
            statistic: "mean" or "median" of the differences.
            level: of the interval.
        """
        found = self.pairs(metric, field, of, over, on=on).values()
        if not found:
            return None
        first, second = ([scale * value for value in arm] for arm in zip(*found, strict=True))
        return compare(first, second, statistic=statistic, level=level)


def interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return the mean of one value per seed with its interval: by the bootstrap from ten seeds on, Student's below.

    >>> print(interval([1.0, 2.0, 3.0]))
    2 [-0.484, 4.48]
    """
    if len(values) < BOOTSTRAP_FROM:
        return mean_interval(values, level=level)
    return bootstrap_interval(values, statistic="mean", level=level)


def compare(
    first: Sequence[float | None], second: Sequence[float | None], *, statistic: str = "mean", level: float = 0.95
) -> PairedDifference:
    """Compare two arms seed by seed, with the interval of the rule book: Student's where there are few seeds."""
    found = paired_difference(first, second, statistic=statistic, level=level)
    if len(first) >= BOOTSTRAP_FROM:
        return found
    endless = math.inf  # of a run that never reaches its goal, which None stands for
    values = ([endless if value is None else value for value in arm] for arm in (first, second))
    differences = [0.0 if one == other else one - other for one, other in zip(*values, strict=True)]
    few = interval if statistic == "mean" else few_median
    return found._replace(difference=few(differences, level=level))


def few_median(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return the median of few values with its exact interval, between two of the values; infinite below six.

    >>> print(few_median([5.0, 1.0, 2.0, 4.0, 3.0, 6.0]))
    3.5 [1, 6]
    """
    from scipy.stats import binom  # slow to import

    ordered = [-math.inf, *sorted(values), math.inf]
    inside = int(binom.ppf((1 - level) / 2, len(values), 0.5))
    return Interval(float(np.median(values)), ordered[inside], ordered[-1 - inside])


class Column(Generic[C]):
    """One value per cell."""

    def __init__(self, pairs: Sequence[tuple[C, Any]]) -> None:
        self._pairs = pairs

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def values(self) -> list[Any]:
        """The values, in the order of the cells."""
        return list(self)

    @property
    def present(self) -> "Column[C]":
        """Leave out cells without a value."""
        return Column([(cell, value) for cell, value in self._pairs if value is not None])

    def by(self, *fields: str) -> dict[Any, Any]:
        """Key the values by one field of their cells, or by several; then a key is a tuple. Keys must differ."""
        found: dict[Any, Any] = {}
        for cell, value in self._pairs:
            key = attrgetter(*fields)(cell)
            if key in found:
                raise ValueError(f"`by` needs fields that tell all cells apart, but two cells have {fields} = {key}.")
            found[key] = value
        return found

    def mean(self, *, scale: float = 1.0, level: float = 0.95) -> Interval | None:
        """Return the mean of the present values with the interval of the rule book; None without any."""
        scaled = [scale * value for value in self.present]
        return interval(scaled, level=level) if scaled else None

    def median(self, *, scale: float = 1.0, level: float = 0.95) -> Interval | None:
        """Return the median with the interval of the rule book; None without a value. None counts as infinity."""
        scaled = [None if value is None else scale * value for value in self]
        if len(scaled) >= BOOTSTRAP_FROM:
            return bootstrap_interval(scaled, statistic="median", level=level)
        return few_median([math.inf if value is None else value for value in scaled], level=level) if scaled else None
