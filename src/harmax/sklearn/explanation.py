"""Why a row belongs to its class: distances to the two nearest centers, and the columns that decide between them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reason:
    """One column's part in the decision between the winner and the runner-up."""

    column: str
    value: Any
    """Of the row, in the units of the table."""
    winner: Any
    """The value of the winner's center; for a category the share that it has at the center."""
    runner_up: Any
    """The same of the runner-up's center."""
    part: float
    """Its part of `Explanation.difference`; above 0 it speaks for the winner."""


@dataclass(frozen=True)
class NearRow:
    """A training row that is near."""

    row: Any
    """Its label in the DataFrame, or its place from 0."""
    label: Any
    """Its class."""
    distance: float


@dataclass(frozen=True)
class Explanation:
    """The decision about one row. `print` it, or read the fields.

    Distances are in standard deviations: each column of the training rows has variance 1.
    """

    predicted: Any
    runner_up: Any
    probability: float
    runner_up_probability: float
    distance: float
    """To the center of the predicted class."""
    runner_up_distance: float
    difference: float
    """Squared distance to the runner-up minus squared distance to the winner: the sum of all parts."""
    reasons: tuple[Reason, ...]
    """One per column, those with the largest part first; empty behind a hidden layer."""
    nearest: tuple[NearRow, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.predicted} ({self.probability:.1%}), then {self.runner_up} ({self.runner_up_probability:.1%})",
            f"distance {self.distance:.3g} to the center of {self.predicted}, {self.runner_up_distance:.3g} to that of "
            f"{self.runner_up}",
        ]
        if self.reasons:
            lines += [f"squared distances differ by {self.difference:.3g}, of which:", *self._table()]
        lines += ["nearest training rows:", *(f"  {n.row}: {n.label}, distance {n.distance:.3g}" for n in self.nearest)]
        return "\n".join(lines)

    def _table(self, most: int = 5) -> list[str]:
        shown = self.reasons[:most]
        cells = [["", "this row", str(self.predicted), str(self.runner_up), "part"]]
        cells += [_cells(one) for one in shown]
        if len(self.reasons) > most:
            rest = sum(one.part for one in self.reasons[most:])
            cells.append([f"all others ({len(self.reasons) - most})", "", "", "", f"{rest:+.3g}"])
        widths = [max(len(row[place]) for row in cells) for place in range(5)]
        return [
            "  " + "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in cells
        ]


def _cells(reason: Reason) -> list[str]:
    show = short if isinstance(reason.value, float) else _share
    value = short(reason.value) if isinstance(reason.value, float) else str(reason.value)
    return [reason.column, value, show(reason.winner), show(reason.runner_up), f"{reason.part:+.3g}"]


def _share(value: float) -> str:
    return f"{value + 0.0:.0%}".replace("-0%", "0%")


def short(value: float, spread: float = 0.0) -> str:
    """Return a number in few digits, 0 where it is nothing beside the spread of its column.

    >>> short(3771.2), short(0.04568), short(-7e-5, spread=0.5)
    ('3,771', '0.0457', '0')
    """
    if abs(value) < 1e-3 * spread:
        return "0"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"
