"""Pictures of `grokking`: training against test epochs run by run, and how both are distributed."""

# S runs

from typing import TYPE_CHECKING

import numpy as np

from harmax.figures import Picture
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.epochs import times_of
from harmax_lab.algorithmic.protocols import HEADS
from harmax_lab.algorithmic.runs import ARMS, TITLES, AlgorithmicSpec, Results, seeds_in_words
from harmax_lab.kit import drawing
from harmax_lab.kit.drawing import MODEL_STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BODIES = {"mlp": "MLPs", "transformer": "transformers"}
MARGIN, BAND = "#f1f1f1", "#999999"
FIRST = "first of 20 epochs above 0.9"


def figures(spec: AlgorithmicSpec, results: Results) -> dict[str, Picture]:
    """Draw two figures a protocol, from whatever is finished."""
    drawn = {}
    for protocol in spec.protocols:
        if not any(cell.protocol == protocol for cell in results):
            continue
        theirs = (
            " Diamonds: the authors' medians, which are over the runs that reach both." if protocol == "authors" else ""
        )
        seeds = seeds_in_words(spec, results, protocol=protocol)
        drawn[f"grokking_pairs_{protocol}"] = Picture(
            draw_pairs(spec, protocol, results),
            f"A mark is a run ({protocol} protocol, {seeds}): the first of 20 epochs in a row with a training accuracy "
            "above 0.9, against the same of its test accuracy. On the dotted line there is no gap. Runs that never "
            "get there lie in the gray margin; the numbers count those whose test accuracy never "
            f"does, in the color of their head.{theirs}",
        )
        drawn[f"grokking_epochs_{protocol}"] = Picture(
            draw_epochs(spec, protocol, results),
            f"The same epochs, one dot a run: hollow for the training accuracy, filled for the test accuracy below it. "
            "Upright strokes are medians over all runs; in the gray margin stands how many never get there, bold where "
            f"the median run does not.{theirs}",
        )
    return drawn


def draw_pairs(spec: AlgorithmicSpec, protocol: str, results: Results) -> "Figure":
    """Draw a row for MLPs and one for transformers, a column a task."""
    figure = drawing.new_figure(11, 5.3)
    grid = figure.subplots(len(BODIES), len(spec.tasks), sharex=True, sharey=True, squeeze=False)
    longest = max(spec.epochs(task, model) for task in spec.tasks for model in BODIES)
    for row, (model, words) in zip(grid, BODIES.items(), strict=True):
        for axes, task in zip(row, spec.tasks, strict=True):
            never = _log_axis(axes, longest, "xy")
            axes.plot([1, never], [1, never], ":", color=BAND, linewidth=1.2, zorder=1)
            for place, head in enumerate(HEADS):
                _draw_runs(axes, protocol, task, (model, head), results, never, place)
            axes.set_box_aspect(1)
        row[0].set_ylabel(f"{words}\ntest epoch")
    for axes, task in zip(grid[0], spec.tasks, strict=True):
        axes.set_title(TITLES[task], fontsize=9.5)
    for axes in grid[-1]:
        axes.set_xlabel("training epoch")
    handles = [
        drawing.mark_handle(MODEL_STYLES[arm].label, MODEL_STYLES[arm].marker, MODEL_STYLES[arm].color) for arm in ARMS
    ]
    if protocol == "authors":
        handles.append(drawing.mark_handle("authors' medians, MLPs", "D", "black", face="white"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _draw_runs(
    axes: "Axes", protocol: str, task: str, arm: tuple[str, str], results: Results, never: float, place: int
) -> None:
    times, style = times_of(results, protocol, task, arm), MODEL_STYLES[arm]
    if times is None:
        return
    x, y = (_shown(found, never) for found in (times.train, times.test))
    look = {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.4, "alpha": 0.8}
    axes.plot(x, y, style.marker, color=style.color, linestyle="none", **look)  # type: ignore[arg-type]
    missing = int(np.isinf(times.test).sum())
    if missing:
        # Below the dotted line, where the test would come first, there is room.
        words, low = f"never: {missing}", 0.15 - 0.1 * place
        axes.text(0.82, low, words, transform=axes.transAxes, color=style.color, fontsize=8.5, ha="right")
    theirs = anchors.GROKKING.get((task, arm)) if protocol == "authors" else None
    if theirs:
        # Hollow, so that the runs below it can be seen.
        for color, width in (("black", 2.6), (style.color, 1.2)):
            edge = {"markerfacecolor": "none", "markeredgecolor": color, "markeredgewidth": width}
            axes.plot(theirs.train, theirs.test, "D", markersize=8, zorder=5, **edge)  # type: ignore[arg-type]


def draw_epochs(spec: AlgorithmicSpec, protocol: str, results: Results) -> "Figure":
    """Draw a panel a task, with a row a model."""
    figure = drawing.new_figure(11, 6.6)
    panels = list(figure.subplots(2, 3, sharey=True).flat)
    for axes, task in zip(panels, spec.tasks, strict=False):
        never = _log_axis(axes, max(spec.epochs(task, model) for model in BODIES), "x")
        for row, arm in enumerate(ARMS):
            _draw_strips(axes, protocol, task, arm, results, never, row)
        axes.set(title=TITLES[task], ylim=(len(ARMS) - 0.5, -0.5), xlabel=FIRST)
        axes.set_yticks(range(len(ARMS)), labels=[MODEL_STYLES[arm].label.replace(" ", "\n") for arm in ARMS])
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        for row in range(1, len(ARMS)):
            axes.axhline(row - 0.5, color="#e4e4e4", linewidth=0.7, zorder=0)
    for axes in panels[len(spec.tasks) :]:
        axes.axis("off")
    gray = "#555555"
    handles = [
        drawing.mark_handle("a run, training accuracy", "o", gray, face="white"),
        drawing.mark_handle("a run, test accuracy", "o", gray),
        drawing.mark_handle("median of our runs", "|", gray, size=12),
    ]
    if protocol == "authors":
        handles.append(drawing.mark_handle("authors' median, MLPs", "D", "black"))
    panels[-1].legend(handles=handles, loc="center", fontsize=10, title=f"{protocol} protocol", title_fontsize=10)
    return figure


def _draw_strips(
    axes: "Axes", protocol: str, task: str, arm: tuple[str, str], results: Results, never: float, row: int
) -> None:
    times, style = times_of(results, protocol, task, arm), MODEL_STYLES[arm]
    if times is None:
        return
    theirs = anchors.GROKKING.get((task, arm)) if protocol == "authors" else None
    for side, found, shift in (("train", times.train, -0.2), ("test", times.test, 0.2)):
        finite = np.sort(found[np.isfinite(found)])
        y = row + shift + 0.07 * (np.arange(len(finite)) % 3 - 1)
        face = "white" if side == "train" else style.color
        dots = {"color": style.color, "markerfacecolor": face, "markersize": 3.6, "markeredgewidth": 0.8, "alpha": 0.8}
        axes.plot(_shown(finite, never), y, "o", **dots)  # type: ignore[arg-type]
        middle = np.median(found)
        if np.isfinite(middle):
            axes.plot(max(middle, 1), row + shift, "|", color=style.color, markersize=15, markeredgewidth=2, zorder=4)
        if len(finite) < len(found):
            missing, weight = str(len(found) - len(finite)), "normal" if np.isfinite(middle) else "bold"
            place = {"ha": "center", "va": "center", "fontsize": 8.5, "fontweight": weight}
            axes.text(never, row + shift, missing, color=style.color, **place)  # type: ignore[arg-type]
        if theirs:
            face = "white" if side == "train" else "black"
            edge = {"markerfacecolor": face, "markeredgecolor": "black"}
            axes.plot(getattr(theirs, side), row + shift, "D", markersize=4.5, zorder=5, **edge)  # type: ignore[arg-type]


def _log_axis(axes: "Axes", epochs: int, which: str) -> float:
    """Give an axis logarithmic epochs and a margin for runs that never get there; return where these stand."""
    decades = [10**power for power in range(8) if 10**power <= max(epochs / 2, 1)]
    edge, never = epochs * 1.25, epochs * 2.2
    for axis, span in (("x", axes.axvspan), ("y", axes.axhspan)):
        if axis not in which:
            continue
        span(edge, edge * 10, color=MARGIN, zorder=0, linewidth=0)
        scale, limits, ticks = f"{axis}scale", f"{axis}lim", getattr(axes, f"set_{axis}ticks")
        axes.set(**{scale: "log"})
        ticks([*decades, never], labels=[*(f"$10^{len(str(d)) - 1}$" for d in decades), "never"])
        ticks([], minor=True)
        axes.set(**{limits: (0.8, epochs * 3.8)})
    return never


def _shown(epochs: np.ndarray, never: float) -> np.ndarray:
    """Return epochs as drawn on a logarithmic axis, which has no 0."""
    return np.where(np.isfinite(epochs), np.maximum(epochs, 1), never)
