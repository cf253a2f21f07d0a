"""The picture of `probes`: F1 of every probe by layer, both arms, beside the paper's and the majority's."""

# S probes

from typing import TYPE_CHECKING

import numpy as np

from harmax.figures import CLASS_COLORS, HEAD_STYLES, Picture
from harmax_lab.kit import drawing
from harmax_lab.language.arms import HARMONIC, STANDARD
from harmax_lab.language.gpt2 import LanguageSpec
from harmax_lab.language.probe_results import (
    PAPER,
    READOUT_WORDS,
    Results,
    Spot,
    majority_of,
    mean_of,
    probes_of,
    tasks_of,
    title,
)
from harmax_lab.language.probing import READOUTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {STANDARD: HEAD_STYLES["cross_entropy"].color, HARMONIC: HEAD_STYLES["harmonic"].color}
MARKERS = {STANDARD: "s", HARMONIC: "o"}
GREY = "#555555"
WIDTH = 0.7  # of the arms of one layer together, where layers are 1 apart


def figures(spec: LanguageSpec, results: Results) -> dict[str, Picture]:
    """Draw one figure, from whatever is finished."""
    if not any(key.startswith("probes/") for result in results.values() for key in result.arrays):
        return {}
    models = len({cell.seed for cell in results})
    caption = (
        "F1 of probes on the dev side, by the layer and the vector they look at. Small dots: single probes; marks with "
        "bars: their mean and its 95 % interval, which is over probes of "
        f"{'one model' if models == 1 else f'{models} models'} an arm, not over models. Dashed: always giving the more "
        "frequent label."
    )
    theirs = (
        " Hollow diamonds: the paper's, with its deviations, in both rows, because it does not say which vector it "
        "reads and which F1 it means."
    )
    return {"probes": Picture(draw(spec, results), caption + (theirs if _has_paper(spec, results) else ""))}


def draw(spec: LanguageSpec, results: Results) -> "Figure":
    """Draw a column a data set, a row a read-out."""
    tasks = tasks_of(results)
    figure = drawing.new_figure(2.2 + 3.7 * len(tasks), 6.6)
    grid = figure.subplots(len(READOUTS), len(tasks), squeeze=False, sharey="col", sharex="col")
    for axes_row, readout in zip(grid, READOUTS, strict=True):
        for axes, task in zip(axes_row, tasks, strict=True):
            _draw_panel(axes, spec, results, task, readout)
            axes.set_title(f"{title(task)}, {READOUT_WORDS[readout]}")
        axes_row[0].set_ylabel("F1, points")
    for axes in grid[-1]:
        axes.set_xticks(range(len(spec.probe_layers)), labels=[f"layer {layer}" for layer in spec.probe_layers])
    arms = [arm for arm in spec.arms if any(cell.arm == arm for cell in results)]
    handles = [drawing.mark_handle(arm, MARKERS.get(arm, "v"), _color(spec, arm), size=7) for arm in arms]
    handles.append(drawing.mark_handle("a probe", "o", GREY, size=3))
    if _has_paper(spec, results):
        handles.append(drawing.mark_handle("paper", "D", GREY, face="white"))
    handles.append(drawing.line_handle("always the majority", "black", "--"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _draw_panel(axes: "Axes", spec: LanguageSpec, results: Results, task: str, readout: str) -> None:
    limit = majority_of(results, task)
    if limit is not None:
        axes.axhline(limit, color="black", linestyle="--", linewidth=1.2, zorder=1)
    lane = WIDTH / len(spec.arms)
    for column, layer in enumerate(spec.probe_layers):
        for place, arm in enumerate(spec.arms):
            x = column + lane * (place - (len(spec.arms) - 1) / 2)
            _draw_arm(axes, x, lane, results, arm, Spot(task, layer, readout), _color(spec, arm))
    axes.set_xlim(-0.6, len(spec.probe_layers) - 0.4)
    axes.grid(False, axis="x")


def _draw_arm(axes: "Axes", x: float, lane: float, results: Results, arm: str, spot: Spot, color: str) -> None:
    values, mean = probes_of(results, arm, spot, "f1"), mean_of(results, arm, spot)
    if values is None or mean is None:
        return
    # Dots, mark and diamond side by side: an interval over probes is often narrower than a mark.
    beside = x + lane * np.linspace(-0.42, -0.18, max(len(values), 2))[: len(values)]
    axes.plot(beside, 100 * values, "o", color=color, markersize=3, alpha=0.6, linestyle="none")
    _draw_bar(axes, x, mean.estimate, mean.low, mean.high, MARKERS.get(arm, "v"), color, color)
    theirs = PAPER.get((spot.task, spot.layer, arm))
    if theirs:
        middle, deviation = theirs
        _draw_bar(axes, x + 0.3 * lane, middle, middle - deviation, middle + deviation, "D", color, "white")


def _draw_bar(
    axes: "Axes", x: float, middle: float, low: float, high: float, marker: str, color: str, face: str
) -> None:
    axes.plot([x, x], [low, high], color=color, linewidth=1.6, zorder=3)
    axes.plot(x, middle, marker, color=color, markersize=5.5, markerfacecolor=face, zorder=4)


def _has_paper(spec: LanguageSpec, results: Results) -> bool:
    return any(task in tasks_of(results) and layer in spec.probe_layers for task, layer, _ in PAPER)


def _color(spec: LanguageSpec, arm: str) -> str:
    return COLORS.get(arm, CLASS_COLORS[spec.arms.index(arm) % len(CLASS_COLORS)])
