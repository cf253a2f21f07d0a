"""The rule book: when a claim is not decided. It is the same for all experiments, and `conclude` applies it.

The rules are asked in the order of `RULES`. The first one that has a reason leaves the claim undecided. What was found
so far is reported all the same.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from harmax_lab.kit.results import Results

if TYPE_CHECKING:
    from harmax_lab.kit.claims import Claim, Finding

LEAST_SEEDS = 3
"""Trainings per arm. Below, no interval over trainings can be given; with one, a difference may be chance."""
LEAST_RUNS = 10
"""Trainings per arm for a claim about a share of the runs, such as "in almost all runs"."""


class Choice(NamedTuple):
    """A setting that a search has chosen for an arm, among those that it tried."""

    arm: str
    name: str
    value: float
    tried: Sequence[float]
    natural: Sequence[float] = ()
    """Ends beyond which there is nothing, such as a weight decay of 0."""

    @property
    def at_end(self) -> bool:
        """Whether a better value may lie beyond those that were tried.

        >>> Choice("harmonic", "lr", 0.1, (0.01, 0.1)).at_end
        True
        >>> Choice("harmonic", "decay", 0.0, (0.0, 0.1), natural=(0.0,)).at_end
        False
        """
        ends = (min(self.tried), max(self.tried)) if self.tried else ()
        return any(math.isclose(self.value, end) for end in ends) and self.value not in self.natural

    def __str__(self) -> str:
        return f"{self.arm}, {self.name} {self.value:g}"


@dataclass(frozen=True)
class Rule:
    """A reason not to decide a claim."""

    name: str
    text: str
    """For readers: when the rule applies."""
    reason: "Callable[[Claim, Results[Any, Any]], str]"
    """Returns why the claim is undecided, given the cells that it needs; empty if this rule does not apply."""


def _absent(claim: "Claim", results: Results[Any, Any]) -> str:
    if results.wanted:
        return "" if results.complete else "Some cells that this claim needs are not finished."
    absent = ", ".join(getattr(results.spec, "absent", ()))
    why = f" Left out, because the files were not there: {absent}." if absent else ""
    return f"This profile has no cell for this claim.{why}"


def _stand_in(claim: "Claim", results: Results[Any, Any]) -> str:
    return str(results.spec.stand_in())


def _short(claim: "Claim", results: Results[Any, Any]) -> str:
    return str(results.spec.short_of(results.wanted))


def _few_seeds(claim: "Claim", results: Results[Any, Any]) -> str:
    arms = results.groups("arm").values() if all(hasattr(cell, "arm") for cell in results) else [results]
    seeds = min(len(own.distinct("seed")) for own in arms)
    return f"Only {seeds} of at least {claim.seeds} seeds were run." if seeds < claim.seeds else ""


def _ends_of_grids(claim: "Claim", results: Results[Any, Any]) -> str:
    ends = [str(choice) for choice in claim.choices(results) if choice.at_end]
    return f"Better settings may lie beyond those that were tried: {'; '.join(ends)}." if ends else ""


def _particular(claim: "Claim", results: Results[Any, Any]) -> str:
    return claim.enough(results)


RULES: tuple[Rule, ...] = (
    Rule("unfinished runs", "A run that the claim needs is missing, failed or unfinished.", _absent),
    Rule("stand-in data", "Generated or embedded data stood in for the real data.", _stand_in),
    Rule("short runs", "The runs are shorter or smaller than the paper's, or than the full profile's.", _short),
    Rule(
        "few seeds",
        f"An arm has fewer than {LEAST_SEEDS} trainings, or fewer than {LEAST_RUNS} where the claim is about a share "
        "of the runs. One model per arm decides nothing.",
        _few_seeds,
    ),
    Rule(
        "ends of grids",
        "The claim rests on a tuned arm, and the search chose a setting at an end of what it tried. An end beyond "
        "which there is nothing, such as a weight decay of 0, does not count.",
        _ends_of_grids,
    ),
    Rule("what the claim needs besides", "A condition of the claim itself, which the verdict names.", _particular),
)

FAILING = Rule(
    "runs that fail the test",
    "The claim is about what a trained model looks like, and the runs that pass the test alone say the opposite. A run "
    "passes with a test accuracy of 0.9.",
    lambda claim, results: "",
)
DIVERGED = (
    "A run that diverged counts as a failure: it has learned nothing, recovers no structure and never generalizes. It "
    "is never left out."
)
EXACT = "A statement of mathematics that can be computed, such as a number of cosets, is judged without any run."
INTERVALS = (
    "Intervals are 95 % intervals over seeds, paired where the arms share them. From ten pairs on they are bootstrap "
    "intervals. Below ten, a mean has Student's interval and a median the exact one between two of the values. A rule "
    "about several things (five tasks, thirteen losses) holds if each of them holds with its own interval. It is "
    "broken if one of them goes the other way with an interval that is corrected for their number."
)


def undecided(claim: "Claim", results: Results[Any, Any]) -> str:
    """Return the first reason not to decide a claim, given the cells that it needs; empty if there is none."""
    return next((reason for rule in RULES if (reason := rule.reason(claim, results))), "")


def contradicted(whole: "Finding", passing: "Finding") -> bool:
    """Return whether the runs that pass the test say the opposite of all runs together."""
    return None not in (whole.holds, passing.holds) and whole.holds != passing.holds


def rule_book() -> Iterable[tuple[str, str]]:
    """Return all rules as a name and a text each."""
    yield from ((rule.name, rule.text) for rule in (*RULES, FAILING))
    yield "diverged runs", DIVERGED
    yield "exact statements", EXACT
    yield "intervals", INTERVALS
