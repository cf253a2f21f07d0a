"""Figures of the sweep: losses against the learning rate and over the training, a color an arm."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harmax.figures import HEAD_STYLES
from harmax_lab.kit import drawing
from harmax_lab.kit.store import CellResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class ArmStyle(NamedTuple):
    """How an arm is drawn: marks and dashes differ as well as colors."""

    label: str
    color: str
    line: str
    marker: str


_PLAIN, _HARMONIC = HEAD_STYLES["cross_entropy"].color, HEAD_STYLES["harmonic"].color
ARM_STYLES: dict[str, ArmStyle] = {
    "standard": ArmStyle("cross-entropy", _PLAIN, "--", "s"),
    "scaled_2": ArmStyle("cross-entropy, logits x 2", "#E69F00", "-.", "D"),
    "gaussian_2": ArmStyle("Gaussian limit, x 2", "#009E73", ":", "^"),
    "harmonic_28": ArmStyle("harmonic, exponent 28", "#CC79A7", ":", "v"),
    "harmonic_56": ArmStyle("harmonic, exponent 56", "#56B4E9", "-.", "<"),
    "harmonic_768": ArmStyle("harmonic, exponent 768", _HARMONIC, "-", "o"),
    "harmonic_1536": ArmStyle("harmonic, exponent 1536", "#332288", "--", ">"),
    "harmonic_learnable": ArmStyle("harmonic, exponent learned", "#444444", "-", "P"),
}
PANELS = {
    "The scale of the logits": ("standard", "scaled_2", "gaussian_2", "harmonic_768"),
    "The exponent": ("standard", "harmonic_28", "harmonic_56", "harmonic_768", "harmonic_1536", "harmonic_learnable"),
}
WIDE, LEAST_SPAN = 6.0, 0.5  # an axis holds the lower half of the losses this many times, and this many nats
SMOOTHED = 5  # logged steps


def label(arm: str) -> str:
    """Return an arm's name for a reader."""
    return ARM_STYLES[arm].label


def _panels(arms: Sequence[str]) -> dict[str, list[str]]:
    own = {title: [arm for arm in members if arm in arms] for title, members in PANELS.items()}
    # With cross-entropy alone there is nothing to compare.
    return {title: members for title, members in own.items() if len(members) > 1} or {"": list(arms)}


def draw_lrs(arms: Sequence[str], losses: Mapping[tuple[str, float, int], float]) -> "Figure":
    """Draw a panel a question; `losses` has validation losses by arm, learning rate and seed."""
    panels = _panels(arms)
    figure = drawing.new_figure(5.2 * len(panels), 4.2)
    shown = {key: loss for key, loss in losses.items() if np.isfinite(loss)}
    for axes, (title, members) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        own = {key: loss for key, loss in shown.items() if key[0] in members}
        rates = sorted({lr for _, lr, _ in own})
        first = min((seed for _, _, seed in own), default=0)
        for place, arm in enumerate(members):
            style = ARM_STYLES[arm]
            line = sorted((lr, loss) for (name, lr, seed), loss in own.items() if (name, seed) == (arm, first))
            # Side by side, as several seeds at one rate would hide one another.
            nudge = 1 + 0.035 * (place - (len(members) - 1) / 2)
            look = {"color": style.color, "linestyle": style.line, "linewidth": 1.4}
            axes.plot([lr * nudge for lr, _ in line], [loss for _, loss in line], **look)
            marks = [(lr * nudge, loss) for (name, lr, _), loss in own.items() if name == arm]
            x, y = zip(*marks, strict=True) if marks else ((), ())
            dots = {"markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.5, "linestyle": "none"}
            axes.plot(x, y, style.marker, color=style.color, **dots)
        axes.set(xscale="log", xlabel="learning rate", ylabel="validation loss", title=title)
        axes.set_xticks(rates, labels=[f"{rate:g}" for rate in rates])
        axes.set_xticks([], minor=True)
        beyond = _cut(axes, [*own.values()])
        if beyond:
            axes.set_title(f"{len(beyond)} beyond the edge, up to {max(beyond):.3g}", loc="right", fontsize=8.5)
        _legend(axes, members)
    return figure


def draw_curves(runs: Mapping[str, Sequence[CellResult]]) -> "Figure":
    """Draw a panel a question: each arm's training batches as a line, its evaluations as marks."""
    panels = _panels([arm for arm, found in runs.items() if found] or list(runs))
    figure = drawing.new_figure(5.2 * len(panels), 4.2)
    for axes, (title, members) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for arm in members:
            _draw_runs(axes, arm, runs[arm])
        axes.set(xlabel="step", ylabel="loss", title=title)
        found = [result.curves for arm in members for result in runs[arm]]
        # Of the training batches only the later half: the first ones fall from log V, whatever the arm.
        late = [loss for one in found for loss in one["loss"][len(one["loss"]) // 2 :]]
        _cut(axes, [*late, *(loss for one in found for loss in one["val_loss"][1:])])
        _legend(axes, members)
    return figure


def _draw_runs(axes: "Axes", arm: str, found: Sequence[CellResult]) -> None:
    style = ARM_STYLES[arm]
    whole = [result for result in found if result.metrics["diverged_at"] is None]
    if not whole:
        return
    step, smooth = whole[0].curves["step"], np.ones(SMOOTHED) / SMOOTHED
    if len(step) >= 2 * SMOOTHED:
        curves = [np.convolve(result.curves["loss"], smooth, mode="valid") for result in whole]
        middle = step[SMOOTHED // 2 : -(SMOOTHED // 2)]
        axes.plot(middle, np.median(curves, 0), color=style.color, linestyle=style.line, linewidth=1)
    val = np.median([result.curves["val_loss"] for result in whole], 0)
    look = {"markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.5, "linestyle": "none"}
    axes.plot(whole[0].curves["val_step"], val, style.marker, color=style.color, **look)  # type: ignore[arg-type]


def _cut(axes: "Axes", losses: Sequence[float]) -> list[float]:
    """Keep an axis to where most losses are, and return those that lie above it.

    One arm that learns nothing would flatten all others.
    """
    finite = [loss for loss in losses if np.isfinite(loss)]
    if len(finite) < 4:
        return []
    low, middle = np.quantile(finite, [0, 0.5])
    top = low + max(WIDE * (middle - low), LEAST_SPAN)
    if max(finite) > top:
        axes.set_ylim(low - 0.08 * (top - low), top)
    return [loss for loss in finite if loss > top]


def _legend(axes: "Axes", members: Sequence[str]) -> None:
    handles = []
    for arm in members:
        handle = drawing.mark_handle(ARM_STYLES[arm].label, ARM_STYLES[arm].marker, ARM_STYLES[arm].color)
        handle.set(linestyle=ARM_STYLES[arm].line)
        handles.append(handle)
    # Below the axes: no corner is free of lines whatever the losses are.
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8.5)
