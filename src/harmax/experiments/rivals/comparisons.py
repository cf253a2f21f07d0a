"""Comparisons of many at once: every loss against a reference, one arm against all others, and two switches crossed.

Effect sizes come first, then p-values, corrected by Holm's rule for how many there are. Wherever a level is shared out
among several intervals, the corrected p-value must agree: at such levels a bootstrap of 20 values is too short.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis import PairedDifference, bootstrap_interval, holm, paired_difference
from harmax.experiments.algorithmic.measures import shared_level
from harmax.experiments.algorithmic.runs import TITLES
from harmax.experiments.rivals.arms import ARMS
from harmax.experiments.rivals.outcomes import (
    BODIES,
    MARGIN,
    SCORES,
    Outcomes,
    Place,
    above_zero,
    contrast,
    epochs_versus,
    per_seed,
    versus,
    with_p,
    written,
)
from harmax.experiments.spec import Finding, Table

SIGNIFICANT = 0.05
EPOCHS = "epochs"
MEASURES = {**SCORES, EPOCHS: "epochs until it generalises"}
ELSEWHERE = (
    "Structure elsewhere: of the head's own weight where it is not tied, of vectors at their own length where they are "
    "judged at length one; mean over seeds [95 %]"
)
PASSING = "Structure of runs that pass the test, late accuracy of 0.9 or more, and of those that fail it: means"
PASS = 0.9
WITHOUT = "Structure without one task: what the means over tasks rest on; mean over seeds [95 %]"
BETTER, WORSE, UNDECIDED = OUTCOMES = ("better", "worse", "undecided")


def reference_of(loss: str, base: str, protocol: str) -> str:
    """Return what an arm is held against: the reference, or its untied variant where the arm is untied too.

    A variant of the reference itself is held against the reference: the difference is what tying or bias do. Under the
    authors' protocol there are no variants, and the reference is tied or not as their code has it.

    >>> reference_of("arcface", "harmonic", "matched"), reference_of("supcon", "harmonic", "matched")
    ('harmonic', 'harmonic_untied')
    >>> reference_of("harmonic_untied", "harmonic", "matched"), reference_of("supcon", "harmonic", "authors")
    ('harmonic', 'harmonic')
    """
    arm = ARMS[loss]
    alike = arm.tied or arm.head == ARMS[base].head
    return base if alike or protocol == "authors" else f"{base}_untied"


class Compared(NamedTuple):
    """One loss against its reference on one task with one model."""

    loss: str
    against: str
    place: Place
    found: PairedDifference
    """Loss minus reference."""
    p: float
    """Of Wilcoxon's signed-rank test, corrected by Holm's rule for the whole family."""
    outcome: str
    """Better or worse than the reference where both the interval and the corrected p-value say so."""


def compare_all(
    outcomes: Outcomes, places: Sequence[Place], losses: Sequence[str], base: str, measure: str
) -> list[Compared]:
    """Compare losses with what each is held against, by one measure; the family of tests is all that is returned.

    Args:
        outcomes: by loss.
        places: one task each.
        losses: to compare.
        base: to be held against, tied or untied as `reference_of` says; it is left out of the losses.
        measure: a key of `MEASURES`; of epochs the median difference is taken, of scores the mean.
    """
    compare: Callable[..., PairedDifference | None] = epochs_versus if measure == EPOCHS else _by_score(measure)
    pairs = [(loss, reference_of(loss, base, at.protocol), at) for loss in losses if loss != base for at in places]
    tried = [(loss, against, place, compare(outcomes, place, loss, against)) for loss, against, place in pairs]
    found = [(loss, against, place, one) for loss, against, place, one in tried if one is not None]
    corrected = holm([one.rank_p for *_, one in found])
    sign = -1 if measure == EPOCHS else 1
    return [
        Compared(loss, against, place, one, p, _outcome(one, p, sign))
        for (loss, against, place, one), p in zip(found, corrected, strict=True)
    ]


def _by_score(score: str) -> Callable[..., PairedDifference | None]:
    return lambda outcomes, place, ours, theirs: versus(outcomes, place, ours, theirs, score)


def _outcome(found: PairedDifference, p: float, sign: int) -> str:
    above = found.difference.above(0)
    if above is None or p >= SIGNIFICANT:
        return UNDECIDED
    return BETTER if above == (sign > 0) else WORSE


class AllBelow(NamedTuple):
    """Whether no arm passes what it is held against by more than a limit, and every difference."""

    holds: bool | None
    found: dict[str, PairedDifference]
    """Arm minus what it is held against."""
    strict: dict[str, tuple[PairedDifference, float]]
    """The same minus the limit, at the level shared among all, and the corrected p-value: what must break it."""
    limit: float

    @property
    def in_doubt(self) -> str:
        """Say why the best arm does not break a claim although its own interval lies above the limit; else nothing."""
        if self.holds is not None or not self.found or not self.found[self.best].difference.above(self.limit):
            return ""
        one, p = self.strict[self.best]
        low, high = (value + self.limit for value in one.difference[1:])
        count = len(self.strict)
        return f" Corrected for {count}: [{low:+.3f}, {high:+.3f}], p against {self.limit:g} {p:.2g}: not decided."

    @property
    def breaking(self) -> list[str]:
        """The arms that break the claim."""
        return [arm for arm, (one, p) in self.strict.items() if one.difference.above(0) and p < SIGNIFICANT]

    @property
    def best(self) -> str:
        """The arm that comes out best."""
        return max(self.found, key=lambda arm: self.found[arm].difference.estimate)

    @property
    def numbers(self) -> dict[str, dict[str, float]]:
        """Every difference with its interval, for a verdict."""
        return {f"difference_{arm}": one.difference._asdict() for arm, one in self.found.items()}


RULE = "broken where one lies above, by an interval and a signed-rank test that are corrected for their number"
"""How `all_below` breaks, for the texts of claims."""
ABOVE = "Holds where the 95 % interval of the mean over the tasks lies above 0; broken: below"
"""How `judge_contrast` does."""
ALIKE = f"Holds where the 95 % interval of the mean over the tasks lies within {MARGIN} of 0; broken: outside"
"""How it does with `alike`."""


def judge_contrast(
    outcomes: Outcomes,
    place: Place,
    weights: Mapping[str, float],
    score: str,
    words: str,
    rule: Callable[[PairedDifference], bool | None] = above_zero,
) -> Finding:
    """Judge by a weighted sum of arms' scores; `words` say what it is."""
    found = contrast(outcomes, place, weights, score)
    return Finding(
        rule(found) if found else None,
        f"{words}: {with_p(found)}, mean of {len(place.tasks)} tasks.",
        {"difference": found.difference._asdict() if found else None},
    )


def all_below(
    outcomes: Outcomes, place: Place, pairs: Mapping[str, str], score: str, *, limit: float = 0.0
) -> AllBelow:
    """Judge a claim about all of some arms: that none passes its reference by more than a limit.

    It holds where every difference lies below the limit with its 95 % interval: if it is wrong somewhere, that one
    rarely comes out right, whatever the others do. It is broken where one lies above the limit, because one of many
    does so by chance, at the level shared among them *and* by the signed-rank test against the limit, corrected by
    Holm's rule for all of them.

    Args:
        outcomes: by arm.
        place: where.
        pairs: by arm, what it is held against.
        score: a key of `SCORES`.
        limit: of the difference.
    """
    values = {
        arm: list(per_seed(outcomes, place, {arm: 1.0, against: -1.0}, score).values())
        for arm, against in pairs.items()
    }
    values = {arm: own for arm, own in values.items() if own}
    found = {arm: _against(own, 0.0, 0.95) for arm, own in values.items()}
    above = [_against(own, limit, shared_level(len(pairs))) for own in values.values()]
    corrected = holm([one.rank_p for one in above])
    strict = dict(zip(values, zip(above, corrected, strict=True), strict=True))
    below = len(found) == len(pairs) and all(one.difference.above(limit) is False for one in found.values())
    answer = AllBelow(True if below and found else None, found, strict, limit)
    return answer._replace(holds=False) if answer.breaking else answer


def _against(values: Sequence[float], limit: float, level: float) -> PairedDifference:
    return paired_difference(values, [limit] * len(values), statistic="mean", level=level)


def switches(dot_harmax: str) -> dict[str, dict[str, float]]:
    """Return the weights of four arms in the two main effects and the interaction.

    Args:
        dot_harmax: the arm that stands for the inner product under HarMax.
    """
    return {
        "distance": {"l2": 0.5, "harmonic": 0.5, "linear": -0.5, dot_harmax: -0.5},
        "HarMax": {dot_harmax: 0.5, "harmonic": 0.5, "linear": -0.5, "l2": -0.5},
        "interaction": {"harmonic": 1.0, "l2": -1.0, dot_harmax: -1.0, "linear": 1.0},
    }


def effect_rows(
    outcomes: Outcomes, places: Iterable[Place], effects: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Tabulate effects by place and score; p-values are corrected for all of one protocol and score."""
    rows: list[dict[str, Any]] = []
    families: dict[tuple[str, str], list[tuple[dict[str, Any], str, float]]] = {}
    everyone = {arm: 1.0 for weights in effects.values() for arm in weights}
    for place in places:
        for score, words in SCORES.items():
            found = {name: contrast(outcomes, place, weights, score) for name, weights in effects.items()}
            row: dict[str, Any] = {
                **place.columns,
                "score": words,
                "seeds": len(per_seed(outcomes, place, everyone, score)),
                **{name: written(one) for name, one in found.items()},
                **{f"p, Holm, {name}": None for name in found},
            }
            rows.append(row)
            family = families.setdefault((place.protocol, score), [])
            family += [(row, f"p, Holm, {name}", one.rank_p) for name, one in found.items() if one]
    for family in families.values():
        for (row, column, _), p in zip(family, holm([p for *_, p in family]), strict=True):
            row[column] = p
    return rows


def without_one(outcomes: Outcomes, places: Iterable[Place], effects: Mapping[str, Mapping[str, float]]) -> Table:
    """Tabulate effects in structure once more with each task left out: what a mean over the tasks rests on.

    Args:
        outcomes: by arm.
        places: those with a mean over more than two tasks are shown.
        effects: by name, the weights of arms.
    """

    def mean_without(whole: Place, left_out: str, weights: Mapping[str, float]) -> str | None:
        rest = whole._replace(tasks=tuple(task for task in whole.tasks if task != left_out))
        return written(contrast(outcomes, rest, weights, "structure"))

    rows = [
        {
            "protocol": whole.protocol,
            "models": BODIES[whole.model],
            "of": name,
            "all tasks": written(contrast(outcomes, whole, weights, "structure")),
            **{f"without {TITLES[task]}": mean_without(whole, task, weights) for task in whole.tasks},
        }
        for whole in places
        if len(whole.tasks) > 2
        for name, weights in effects.items()
    ]
    return Table(WITHOUT, tuple(rows))


def structure_tables(outcomes: Outcomes, places: Iterable[Place], arms: Mapping[str, str]) -> tuple[Table, ...]:
    """Tabulate what a mean structure does not tell: whose it is, and what there is elsewhere than in the rows judged.

    Runs that pass the test and runs that fail it are told apart, since the ones' structure need not be the others'.
    Elsewhere is the head's own weight where it is not the embedding, and the rows as they are where they are judged at
    length one; nothing where no run has any. A diverged run counts as 0.

    Args:
        outcomes: by arm.
        places: every task of each is looked at alone.
        arms: the label of each arm.
    """
    passing, elsewhere = [], []
    for place in [whole._replace(tasks=(task,)) for whole in places for task in whole.tasks]:
        for arm, label in arms.items():
            there = outcomes.get((place.protocol, place.model, place.tasks[0], arm), {})
            found = [one.metrics for one in there.values()]
            row = {**place.columns, "arm": label, "runs": len(found)}
            if found:
                passing.append({**row, **_by_passing(found)})
            untied = any(one.get("centre_structure") is not None for one in found)
            scaled = any(one.get("structure_raw", one["structure"]) != one["structure"] for one in found)
            if untied or scaled:
                columns = {
                    "as judged": _mean_of(found, "structure"),
                    "at their own length": _mean_of(found, "structure_raw") if scaled else "",
                    "of the head's own weight": _mean_of(found, "centre_structure") if untied else "",
                }
                elsewhere.append({**row, **columns})
    used = [name for name in (elsewhere[0] if elsewhere else ()) if any(row[name] != "" for row in elsewhere)]
    tables = (
        Table(PASSING, tuple(passing)),
        Table(ELSEWHERE, tuple({name: row[name] for name in used} for row in elsewhere)),
    )
    return tuple(table for table in tables if table.rows)


def _by_passing(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    passed, failed = (
        [one["structure"] for one in found if (one["accuracy"] >= PASS) == side] for side in (True, False)
    )
    means = [float(np.mean(values)) if values else None for values in (passed, failed)]
    return {"pass": len(passed), "structure where they pass": means[0], "where they fail": means[1]}


def _mean_of(found: Sequence[Mapping[str, Any]], name: str) -> str:
    return str(bootstrap_interval([one.get(name) or 0.0 for one in found], statistic="mean"))
