"""Every loss against a reference, task by task: effect sizes first, then p-values corrected for how many there are."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from harmax.analysis import PairedDifference, holm
from harmax.experiments.rivals.outcomes import SCORES, Outcomes, Place, epochs_versus, versus

SIGNIFICANT = 0.05
EPOCHS = "epochs"
MEASURES = {**SCORES, EPOCHS: "epochs until it generalises"}
BETTER, WORSE, UNDECIDED = OUTCOMES = ("better", "worse", "undecided")


class Compared(NamedTuple):
    """One loss against the reference on one task with one model."""

    loss: str
    place: Place
    found: PairedDifference
    """Loss minus reference."""
    p: float
    """Of Wilcoxon's signed-rank test, corrected by Holm's rule for the whole family."""
    outcome: str
    """Better or worse than the reference where both the interval and the corrected p-value say so."""


def compare_all(
    outcomes: Outcomes, places: Sequence[Place], losses: Sequence[str], reference: str, measure: str
) -> list[Compared]:
    """Compare losses with a reference by one measure; the family of tests is all that is returned.

    Args:
        outcomes: by loss.
        places: one task each.
        losses: to compare.
        reference: to be held against; it is left out of the losses.
        measure: a key of `MEASURES`; of epochs the median difference is taken, of scores the mean.
    """
    compare: Callable[..., PairedDifference | None] = epochs_versus if measure == EPOCHS else _by_score(measure)
    pairs = [(loss, place) for loss in losses if loss != reference for place in places]
    tried = [(loss, place, compare(outcomes, place, loss, reference)) for loss, place in pairs]
    found = [(loss, place, one) for loss, place, one in tried if one is not None]
    corrected = holm([one.rank_p for *_, one in found])
    sign = -1 if measure == EPOCHS else 1
    return [
        Compared(loss, place, one, p, _outcome(one, p, sign))
        for (loss, place, one), p in zip(found, corrected, strict=True)
    ]


def _by_score(score: str) -> Callable[..., PairedDifference | None]:
    return lambda outcomes, place, ours, theirs: versus(outcomes, place, ours, theirs, score)


def _outcome(found: PairedDifference, p: float, sign: int) -> str:
    above = found.difference.above(0)
    if above is None or p >= SIGNIFICANT:
        return UNDECIDED
    return BETTER if above == (sign > 0) else WORSE
