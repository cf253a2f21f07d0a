"""Comparisons of many at once: every loss against a reference, one arm against all others, and two switches crossed.

Effect sizes come first, then p-values, corrected by Holm's rule for how many there are. Wherever a level is shared out
among several intervals, the corrected p-value must agree: at such levels a bootstrap of 20 values is too short.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from harmax.analysis import PairedDifference, holm, paired_difference
from harmax_lab.algorithmic.measures import shared_level
from harmax_lab.kit.claims import Finding
from harmax_lab.studies.arms import ARMS
from harmax_lab.studies.outcomes import (
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

SIGNIFICANT = 0.05
EPOCHS = "epochs"
MEASURES = {**SCORES, EPOCHS: "epochs until it generalizes"}
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
