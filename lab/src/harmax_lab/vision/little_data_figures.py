"""Picture of learning from few labeled images: accuracy against images a class, and the difference below."""

from typing import TYPE_CHECKING

import numpy as np

from harmax.analysis import Interval, bootstrap_interval
from harmax.figures import HEAD_STYLES, Picture
from harmax_lab.kit import drawing
from harmax_lab.vision.little_data_claims import BOTH, Results, choose, difference, means_of
from harmax_lab.vision.little_data_spec import SOURCES, LittleDataSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEANS_COLOR = "#777777"
TICKS = (1, 10, 100, 1000)  # with a number; the sizes between have a mark alone


def figures(spec: LittleDataSpec, results: Results) -> dict[str, Picture]:
    """Draw a column a data set that has finished cells."""
    datasets = [name for name in spec.datasets if any(cell.dataset == name for cell in results)]
    if not datasets:
        return {}
    return {
        "little_data": Picture(
            draw_accuracy(spec, results, datasets),
            "Top: test accuracy against labeled images a class, mean over seeds, bands 95 % bootstrap intervals. Each "
            "head with the variant and learning rate that validation images chose for that size; gray: nearest class "
            "mean of the same images. Bottom: harmonic less cross-entropy in points, paired by seed: the same images, "
            "order and initial weights.",
        )
    }


def draw_accuracy(spec: LittleDataSpec, results: Results, datasets: list[str]) -> "Figure":
    """Draw accuracies above, paired differences below."""
    figure = drawing.new_figure(3.3 * len(datasets) + 1.2, 5.4)
    grid = figure.subplots(2, len(datasets), squeeze=False, sharex="col", height_ratios=(1.7, 1))
    for (top, bottom), dataset in zip(grid.T, datasets, strict=True):
        sizes = [images for images in spec.sizes(dataset) if means_of(results, dataset, images)]
        for head in BOTH:
            chosen = [choose(spec, results, dataset, images, head) for images in sizes]
            style = HEAD_STYLES[head]
            _draw(top, sizes, [one.interval for one in chosen if one is not None], style.color, style.line)
        means = [bootstrap_interval(means_of(results, dataset, images), statistic="mean") for images in sizes]
        top.plot(sizes, [100 * one.estimate for one in means], color=MEANS_COLOR, linestyle=":", linewidth=1.4)
        apart = [difference(spec, results, dataset, images) for images in sizes]
        spreads = [bootstrap_interval(one, statistic="mean") for one in apart if one is not None]
        bottom.axhline(0, color="#444444", linewidth=0.9)
        _draw(bottom, sizes, spreads, HEAD_STYLES[BOTH[0]].color, "-")
        top.set_title(SOURCES[dataset].title.replace(", features", ",\nfeatures"))
        shown = [tick for tick in TICKS if sizes[0] <= tick <= sizes[-1]]
        bottom.set(xscale="log", xlabel="labeled images a class")
        bottom.set_xticks(shown, [str(tick) for tick in shown])
        bottom.set_xticks(sizes, [""] * len(sizes), minor=True)
    grid[0][0].set_ylabel("test accuracy, %")
    grid[1][0].set_ylabel("difference, points")
    handles = [drawing.line_handle(HEAD_STYLES[h].label, HEAD_STYLES[h].color, HEAD_STYLES[h].line) for h in BOTH]
    handles.append(drawing.line_handle("nearest class mean", MEANS_COLOR, ":"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _draw(axes: "Axes", sizes: list[int], found: list[Interval], color: str, line: str) -> None:
    estimate, low, high = 100 * np.array(found).T
    axes.plot(sizes, estimate, color=color, linestyle=line, marker="o", markersize=3.5)
    axes.fill_between(sizes, low, high, color=color, alpha=0.18, linewidth=0)
