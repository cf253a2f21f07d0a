"""A part of figures that the studies share: effects with their intervals, one under the other."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harmax.analysis import PairedDifference
from harmax.experiments.palette import MODEL_STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ZERO, CLEAR, UNCLEAR = "#777777", "#0072B2", "#999999"


def draw_effects(
    axes: "Axes", labels: Sequence[str], effects: Mapping[str, Sequence[PairedDifference | None]], *, sign: int = 1
) -> None:
    """Draw a row a label from the top down: of each model the mean and its interval, grey where it spans 0."""
    axes.axvline(0, color=ZERO, linewidth=0.9, zorder=1)
    step = 0.36 if len(effects) > 1 else 0.0
    for place, (model, found) in enumerate(effects.items()):
        for row, one in enumerate(found):
            if one is None:
                continue
            middle, *ends = (sign * value for value in one.difference)
            height = row + step * (place - (len(effects) - 1) / 2)
            color = UNCLEAR if one.difference.above(0) is None else CLEAR
            axes.plot(ends, [height, height], color=color, linewidth=1.4, zorder=2)
            marker = MODEL_STYLES[model, "linear"].marker
            axes.plot(middle, height, marker=marker, color=color, markersize=4.5, markeredgewidth=0, zorder=3)
    axes.set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.5, -0.5))
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="both", labelsize=8)
