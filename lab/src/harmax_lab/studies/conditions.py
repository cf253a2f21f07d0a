"""The conditions under which harmonic loss is held against cross-entropy, and what it gains under each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.outcomes import Outcomes, collect

HEADS = {"linear": "cross-entropy", "harmonic": "harmonic"}
MATCHED = "matched"


@dataclass(frozen=True)
class Condition:
    """What is changed for both losses."""

    label: str
    protocol: str = "matched"
    """Whose way of drawing data."""
    weight_decay: float | None = None
    """In place of the protocol's."""
    tied: bool = True


CONDITIONS: dict[str, Condition] = {
    MATCHED: Condition("as matched"),
    "drawn": Condition("data drawn as by the authors", protocol="authors"),
    "no_decay": Condition("no weight decay", weight_decay=0.0),
    "strong_decay": Condition("weight decay 0.3", weight_decay=0.3),
    "untied": Condition("untied", tied=False),
}


@dataclass(frozen=True)
class ConfoundCell(RunCell):
    """One model trained under one condition, a key of `CONDITIONS`; its protocol says how its data are drawn."""

    condition: str


def arm_name(head: str, condition: str) -> str:
    """Name a head under a condition."""
    return f"{head}, {condition}"


def gain_in(condition: str) -> dict[str, float]:
    """Return the weights of two arms in the gain under a condition."""
    return {arm_name("harmonic", condition): 1.0, arm_name("linear", condition): -1.0}


def outcomes_of(results: Mapping[ConfoundCell, CellResult]) -> Outcomes:
    """Sort results by arm, all in one place whatever their data."""
    placed = {replace(cell, protocol="matched"): result for cell, result in results.items()}
    return collect(placed, lambda cell: arm_name(cell.head, cell.condition))
