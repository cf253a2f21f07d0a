"""Parts of figures that the studies share: effects with their intervals, one under the other, and their legend."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from harmax.analysis import PairedDifference
from harmax_lab.kit import drawing
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.studies.outcomes import BODIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ZERO, CLEAR, UNCLEAR = "#777777", "#0072B2", "#999999"


def draw_effects(axes: "Axes", labels: Sequence[str], effects: Mapping[str, Sequence[PairedDifference | None]]) -> None:
    """Draw a row a label from the top down: of each model the mean and its interval, gray where it spans 0."""
    axes.axvline(0, color=ZERO, linewidth=0.9, zorder=1)
    step = 0.36 if len(effects) > 1 else 0.0
    for place, (model, found) in enumerate(effects.items()):
        for row, one in enumerate(found):
            if one is None:
                continue
            middle, *ends = one.difference
            height = row + step * (place - (len(effects) - 1) / 2)
            color = UNCLEAR if one.difference.above(0) is None else CLEAR
            axes.plot(ends, [height, height], color=color, linewidth=1.4, zorder=2)
            marker = MODEL_STYLES[model, "linear"].marker
            axes.plot(middle, height, marker=marker, color=color, markersize=4.5, markeredgewidth=0, zorder=3)
    axes.set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.5, -0.5))
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="both", labelsize=8)


def add_legend(figure: "Figure", models: Iterable[str]) -> None:
    """Say above all which marks are which models'."""
    handles = [drawing.mark_handle(BODIES[model], MODEL_STYLES[model, "linear"].marker, "#444444") for model in models]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
