"""What the language experiments share: names of arms, claims that compare some of them, and how losses are drawn."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import Interval
from harmax.figures import HEAD_STYLES
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.judges import Judge, signed
from harmax_lab.kit.results import Results, where
from harmax_lab.kit.store import CellResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STANDARD, HARMONIC, NANOGPT = "standard", "harmonic", "nanogpt"
STYLES = {STANDARD: HEAD_STYLES["cross_entropy"], HARMONIC: HEAD_STYLES["harmonic"]}
SMOOTHED = 5  # logged steps


def compares(
    id: str,
    statement: str,
    judge: Judge,
    arms: tuple[str, ...] = (STANDARD, HARMONIC),
    *,
    enough: Callable[[Results], str],
    paper: str = "",
    control: bool = False,
) -> Claim:
    """Return a claim about some arms, which is not decided where a profile leaves one of them out.

    It is a control where the paper says nothing about it.
    """

    def judge_all(results: Results) -> Finding:
        if set(arms) - set(results.distinct("arm")):
            return Finding(None, "This profile leaves out an arm of this claim.", {})
        return judge(results)

    text, needs = paper or "Not reported.", where(arm=arms)
    return Claim(id, statement, text, control or not paper, needs=needs, judge=judge_all, enough=enough)


def enough_text(*, tokens: int, seeds: int = 3) -> Callable[[Results], str]:
    """Return a test for `enough`: so many tokens of real text in a run, and so many seeds."""

    def test(results: Results) -> str:
        spec = results.spec
        if spec.embedded:
            return "Generated tokens say nothing about text."
        if spec.tokens < tokens:
            return f"Only {spec.tokens / 1e6:.3g}M of at least {tokens / 1e6:.0f}M tokens were trained on."
        if len(spec.seeds) < seeds:
            return f"{len(spec.seeds)} of at least {seeds} seeds were run, and the difference of one may be chance."
        return ""

    return test


def unless_embedded(words: str) -> Callable[[Results], str]:
    """Return a test for `enough`: what is embedded or made up decides nothing, and the words say why."""
    return lambda results: words if results.spec.embedded else ""


def over_seeds(difference: Interval, seeds: int) -> str:
    """Write a mean difference; its interval says nothing where there is one seed."""
    return (
        f"{signed(difference, 3)} over {seeds} seeds"
        if seeds > 1
        else f"{difference.estimate:+.3f} (one model per arm)"
    )


def draw_runs(
    axes: "Axes", runs: Sequence[CellResult], color: str, line: str, *, marker: str = "o", scale: float = 1.0
) -> None:
    """Draw medians over runs: the loss of training batches, smoothed, as a thin line, evaluations as marks."""
    curves = [run.curves for run in runs]
    step = scale * curves[0]["step"]
    if len(step) >= 2 * SMOOTHED:
        smooth = [np.convolve(one["loss"], np.ones(SMOOTHED) / SMOOTHED, mode="valid") for one in curves]
        middle = step[SMOOTHED // 2 : -(SMOOTHED // 2)]
        axes.plot(middle, np.median(smooth, 0), color=color, linestyle=line, linewidth=1)
    val = np.median([one["val_loss"] for one in curves], 0)
    axes.plot(scale * curves[0]["val_step"], val, marker, color=color, **MARK)


MARK: dict[str, Any] = {"markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.5, "linestyle": "none"}
