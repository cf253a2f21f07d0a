"""When to give no answer: a threshold of the largest probability, from rows that the head was not fitted to."""

# N rows, V classes

from typing import NamedTuple

import numpy as np

from harmax.analysis import Interval, share_interval
from harmax.analysis.outliers import abstention_curve


class AbstainRule(NamedTuple):
    """Answer a row if its largest probability is at least `threshold`."""

    threshold: float
    accuracy: Interval
    """Of the answered rows that the rule was found on, with a 95 % interval. Choosing the rule on the same rows makes
    it slightly too high."""
    coverage: float
    """Share of these rows that are answered."""
    rows: int
    """Their number; equal rows of one class count once if they are from `fit`."""

    def __str__(self) -> str:
        right = " to ".join(f"{limit:.1%}" for limit in self.accuracy[1:])
        return (
            f"answer from probability {self.threshold:.3f} on: {self.coverage:.1%} of {self.rows} rows are answered, "
            f"{self.accuracy.estimate:.1%} of them right (95 % interval {right})"
        )


def find_rule(
    log_p_NV: np.ndarray, labels_N: np.ndarray, *, accuracy: float | None, coverage: float | None
) -> AbstainRule:
    """Return the rule that answers most at a wanted accuracy, or is most often right at a wanted coverage."""
    name, wanted = ("accuracy", accuracy) if coverage is None else ("coverage", coverage)
    if wanted is None or (accuracy is not None and coverage is not None):
        raise TypeError("give `accuracy` or `coverage`, one of them; the other one follows from the rows.")
    if not 0 < wanted <= 1:
        raise ValueError(f"`{name}` must be above 0 and at most 1, got {wanted}; 0.95 means 95 %.")
    scores_N, right_N = np.exp(log_p_NV.max(axis=1)), log_p_NV.argmax(axis=1) == labels_N
    curve = abstention_curve(right_N, scores_N)
    enough = (curve.accuracy if coverage is None else curve.coverage) >= wanted - 1e-12
    if not enough.any():
        raise ValueError(
            f"`accuracy` must be reachable, got {accuracy} where the clearest rows reach {curve.accuracy.max():.3f}; "
            "ask for less, or give the model more rows or columns."
        )
    # For an accuracy the last place answers most rows, for a coverage the first place answers the clearest ones.
    place = int(np.flatnonzero(enough)[-1 if coverage is None else 0])
    answered = scores_N >= curve.thresholds[place]
    found = share_interval(int(right_N[answered].sum()), int(answered.sum()))
    return AbstainRule(float(curve.thresholds[place]), found, float(answered.mean()), len(scores_N))
