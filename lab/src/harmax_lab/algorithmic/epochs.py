"""When runs learn and when they generalize: the numbers behind `grokking`."""

from typing import NamedTuple

import numpy as np

from harmax.analysis import (
    Interval,
    PairedDifference,
    bootstrap_interval,
    grokking_epochs,
    grokking_gaps,
    paired_difference,
)
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.measures import pairs_of
from harmax_lab.algorithmic.protocols import HEADS
from harmax_lab.algorithmic.runs import LEAST_SEEDS, Results, by_seed

WINDOW = 20  # epochs; a gap below it cannot be told from none


class Times(NamedTuple):
    """When one model's runs learn and generalize, seed by seed; infinity is never."""

    seeds: tuple[int, ...]
    train: np.ndarray
    test: np.ndarray
    gap: np.ndarray
    """From learning to generalizing; NaN where a run generalizes before it learns, which dropout can cause."""

    @property
    def reached(self) -> np.ndarray:
        """Whether a run reaches both."""
        return np.isfinite(self.train) & np.isfinite(self.test)


def times_of(results: Results, protocol: str, task: str, arm: tuple[str, str]) -> Times | None:
    """Return when one model's runs learn and generalize; None without a run."""
    found = by_seed(results, protocol, task, arm)
    if not found:
        return None
    train, test = (
        np.stack([result.curves[name] for result in found.values()]) for name in ("train_accuracy", "test_accuracy")
    )
    return Times(tuple(found), grokking_epochs(train), grokking_epochs(test), grokking_gaps(train, test))


class Modes(NamedTuple):
    """The widest empty stretch between sorted epochs, as a ratio, and what lies on its two sides."""

    early: np.ndarray
    late: np.ndarray
    ratio: float
    p: float
    """How often as many epochs, spread evenly between the first and the last on a logarithmic scale, leave one as
    wide: (1 + times) / (1 + draws)."""


def two_modes(epochs: np.ndarray, *, least: int, draws: int = 1999, seed: int = 0) -> Modes:
    """Split epochs at the widest empty stretch with at least `least` of them on either side.

    Args:
        epochs: finite, at least twice `least` of them.
        least: on either side.
        draws: of the null, which keeps the first and the last epoch.
        seed: of the null.
    """
    # One more than the epoch, which may be 0.
    logs = np.log(np.sort(epochs) + 1.0)
    inner = np.random.default_rng(seed).uniform(logs[0], logs[-1], size=(draws, len(logs) - 2))
    ends = np.broadcast_to(logs[[0, -1]], (draws, 2))
    null = np.sort(np.concatenate([inner, ends], axis=1), axis=1)
    cuts = np.arange(least, len(logs) - least + 1)
    widths = logs[cuts] - logs[cuts - 1]
    as_wide = int(((null[:, cuts] - null[:, cuts - 1]).max(1) >= widths.max() - 1e-12).sum())
    cut = int(cuts[widths.argmax()])
    ordered = np.sort(epochs)
    return Modes(ordered[:cut], ordered[cut:], float(np.exp(widths.max())), (1 + as_wide) / (1 + draws))


class Comparison(NamedTuple):
    """How two heads' gaps differ on one task."""

    standard: float
    """Median gap."""
    harmonic: float
    paired: PairedDifference
    """Harmonic minus standard."""
    reaching: PairedDifference | None
    """The same on the seeds on which both heads reach both accuracies: a run that fails is slow or stuck, which is
    not the same as a gap."""

    @property
    def outcome(self) -> str:
        """Say which of the two waits longer."""
        if max(self.standard, self.harmonic) < WINDOW:
            return "no gap in either"
        low, high = self.paired.difference[1:]
        if pairs_of(self.paired) < LEAST_SEEDS:
            return "undecided"
        return "smaller" if high < 0 else "larger" if low > 0 else "undecided"


def compare(results: Results, protocol: str, task: str, model: str, *, level: float = 0.95) -> Comparison | None:
    """Compare the gaps of two heads on the seeds on which both have one; None without any."""
    standard, harmonic = (times_of(results, protocol, task, (model, head)) for head in HEADS)
    if standard is None or harmonic is None:
        return None
    one, two = (dict(zip(times.seeds, times.gap, strict=True)) for times in (harmonic, standard))
    both = [seed for seed in one if seed in two and not np.isnan(one[seed] + two[seed])]
    if not both:
        return None
    gaps = [[by_seed_[seed] for seed in both] for by_seed_ in (one, two)]
    finite = [pair for pair in zip(*gaps, strict=True) if np.isfinite(pair).all()]
    reaching = paired_difference(*zip(*finite, strict=True), level=level) if finite else None
    harmonic_median, standard_median = (float(np.median(found)) for found in gaps)
    return Comparison(standard_median, harmonic_median, paired_difference(*gaps, level=level), reaching)


def authors_medians(results: Results) -> dict[tuple[str, tuple[str, str], str], tuple[Interval | None, float]]:
    """Return our medians over the runs that reach both, and the authors' likewise, by task, model and side."""
    found: dict[tuple[str, tuple[str, str], str], tuple[Interval | None, float]] = {}
    for (task, arm), theirs in anchors.GROKKING.items():
        times = times_of(results, "authors", task, arm)
        for side in ("train", "test"):
            reached = getattr(times, side)[times.reached] if times is not None else []
            found[task, arm, side] = (bootstrap_interval(reached) if len(reached) else None, getattr(theirs, side))
    return found


def is_inside(ours: Interval | None, theirs: float) -> bool:
    """Whether the authors' median lies in our interval."""
    return ours is not None and ours.low <= theirs <= ours.high


def in_epochs(found: Interval | None) -> str:
    """Write an interval of epochs: whole and half ones, and infinity.

    >>> in_epochs(Interval(1032.0, 870.5, float("inf")))
    '1032 [870.5, inf]'
    """
    return "none" if found is None else f"{found.estimate:g} [{found.low:g}, {found.high:g}]"
