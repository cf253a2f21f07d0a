"""What the language experiments share: names of arms, claims that compare some of them, and how losses are drawn."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import Interval, PairedDifference
from harmax.figures import HEAD_STYLES
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.judges import Judge, pairs_of, signed
from harmax_lab.kit.results import Results, compare, where
from harmax_lab.kit.store import CellResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STANDARD, HARMONIC = "standard", "harmonic"
PAPERS = HARMONIC
"""The arm that stands for the paper's harmonic GPT-2. Claims compare it with the arm `STANDARD` of the same seed."""
STYLES = {STANDARD: HEAD_STYLES["cross_entropy"], HARMONIC: HEAD_STYLES["harmonic"]}
SMOOTHED = 5  # logged steps, or a fiftieth of them where that is more

Value = str | Callable[[CellResult], float | None]
"""A metric by its name, or a function that computes a number from a run."""


def compares(id: str, statement: str, judge: Judge, arms: tuple[str, ...] = (STANDARD, PAPERS), **own: Any) -> Claim:
    """Return a claim about some arms, which is not decided where a profile leaves one of them out.

    Args:
        id, statement, judge: as in `Claim`.
        arms: that it needs.
        own: its other fields.
    """

    def judge_all(results: Results) -> Finding:
        if set(arms) - set(results.distinct("arm")):
            return Finding(None, "This profile leaves out an arm of this claim.", {})
        return judge(results)

    return Claim(id, statement, needs=where(arm=arms), judge=judge_all, **own)


def apart(results: Results, value: Value, *, level: float = 0.95) -> PairedDifference | None:
    """Return how much larger a number is for the paper's arm than for the standard one, seed by seed."""

    def by_seed(arm: str) -> dict[int, float]:
        found = results.where(arm=arm).take(lambda cell, run: number(run, value)).present.by("seed")
        return {seed: float(one) for seed, one in found.items()}

    harmonic, standard = by_seed(PAPERS), by_seed(STANDARD)
    seeds = sorted(harmonic.keys() & standard.keys())
    if not seeds:
        return None
    first, second = ([arm[seed] for seed in seeds] for arm in (harmonic, standard))
    return compare(first, second, statistic="mean", level=level)


def number(run: CellResult, value: Value) -> float | None:
    """Return a number of a run; None where it is not known."""
    return run.metrics.get(value) if isinstance(value, str) else value(run)


def over_seeds(difference: Interval, seeds: int, digits: int = 3) -> str:
    """Write a mean difference; its interval says nothing where there is one seed."""
    if seeds > 1:
        return f"{signed(difference, digits)} over {seeds} seeds"
    return f"{difference.estimate:+.{digits}f} (one model per arm)"


def written(found: PairedDifference | None, digits: int = 3) -> str:
    """Write a comparison of the arms."""
    return "unknown" if found is None else over_seeds(found.difference, pairs_of(found), digits)


def draw_runs(
    axes: "Axes", runs: Sequence[CellResult], color: str, line: str, *, marker: str = "o", scale: float = 1.0
) -> None:
    """Draw medians over runs: the loss of training batches, smoothed, as a thin line, evaluations as marks."""
    curves = [run.curves for run in runs]
    step = scale * curves[0]["step"]
    if len(step) >= 2 * SMOOTHED:
        size = max(SMOOTHED, len(step) // 50) | 1
        smooth = [np.convolve(one["loss"], np.ones(size) / size, mode="valid") for one in curves]
        middle = step[size // 2 : -(size // 2)]
        axes.plot(middle, np.median(smooth, 0), color=color, linestyle=line, linewidth=1)
    val = np.median([one["val_loss"] for one in curves], 0)
    axes.plot(scale * curves[0]["val_step"], val, marker, color=color, **MARK)


MARK: dict[str, Any] = {"markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.5, "linestyle": "none"}
