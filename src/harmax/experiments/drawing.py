"""Parts of figures that several experiments share; matplotlib is met only through the axes they are given."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.experiments.palette import CLASS_COLORS, HEAD_STYLES, MODEL_STYLES
from harmax.extras import needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure (inches) whose parts keep clear of one another, outside pyplot's global state."""
    with needs("report"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", h_pad=0.08)
    return figure


def class_color(index: int) -> str:
    """Return the colour of a class."""
    return CLASS_COLORS[index % len(CLASS_COLORS)]


def draw_head_curves(axes: "Axes", head: str, step: np.ndarray, series: Sequence[np.ndarray]) -> None:
    """Draw one head's curves: the median over seeds as a line, their range as a band."""
    style = HEAD_STYLES[head]
    draw_band(axes, step, series, color=style.color, line=style.line, label=style.label)


def draw_band(
    axes: "Axes", x: np.ndarray, series: Sequence[np.ndarray], *, color: str, line: str = "-", label: str = ""
) -> None:
    """Draw the median of some curves as a line, their range as a band."""
    stacked = np.stack(series)
    axes.plot(x, np.median(stacked, 0), color=color, linestyle=line, label=label)
    if len(stacked) > 1:
        axes.fill_between(x, stacked.min(0), stacked.max(0), color=color, alpha=0.18, linewidth=0)


def spaced(count: int, most: int = 160) -> np.ndarray:
    """Return indices below `count` that are evenly spaced on a logarithmic axis: a long curve in few points.

    >>> spaced(1000, 5)
    array([  0,   5,  31, 177, 999])
    """
    steps = np.rint(np.geomspace(1, count, min(count, most))).astype(int)
    return np.unique(steps) - 1


def model_handle(model: str, head: str) -> "Line2D":
    """Return a legend's entry for one of the four small models."""
    style = MODEL_STYLES[model, head]
    return _line(style.label, color=style.color, linestyle=style.line, marker=style.marker, markersize=6)


def line_handle(label: str, color: str, line: str = "-") -> "Line2D":
    """Return a legend's entry for a line."""
    return _line(label, color=color, linestyle=line)


def mark_handle(label: str, marker: str, color: str, *, face: str | None = None, size: float = 6) -> "Line2D":
    """Return a legend's entry for a mark."""
    return _line(label, color=color, linestyle="none", marker=marker, markersize=size, markerfacecolor=face or color)


def _line(label: str, **style: Any) -> "Line2D":
    with needs("report"):
        from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)


def draw_weights(axes: "Axes", weight: np.ndarray, points: np.ndarray) -> None:
    """Draw each class's weight (V, 2) as an arrow from the origin, and the data points as open rings."""
    reach = 1.22 * max(np.abs(weight).max(), np.abs(points).max())
    _frame(axes, reach)
    for index, (tip, point) in enumerate(zip(weight, points, strict=True)):
        color = class_color(index)
        # A centre at the origin has no arrow to draw; its dot still shows it.
        if np.linalg.norm(tip) > 0.02 * reach:
            arrow: dict[str, Any] = {"arrowstyle": "-", "color": color, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", tip, (0, 0), arrowprops=arrow)
        axes.plot(*tip, marker="o", markersize=5, color=color, linestyle="none", zorder=4)
        axes.plot(*point, marker="o", markersize=10, markerfacecolor="none", color=color, linestyle="none", zorder=3)


def draw_regions(axes: "Axes", extent: np.ndarray, winner: np.ndarray, probability: np.ndarray) -> None:
    """Fill the square from extent[0] to extent[1] with the winning class's colour, paler where it is less probable."""
    colors = np.array([_rgb(class_color(index)) for index in range(int(winner.max()) + 1)])
    strength = (0.12 + 0.68 * probability)[..., None]
    low, high = map(float, extent)
    _frame(axes, high)
    axes.grid(False)
    image = 1 - strength * (1 - colors[winner])
    axes.imshow(image, origin="lower", extent=(low, high, low, high), interpolation="bilinear", aspect="equal")


def draw_points(axes: "Axes", points: np.ndarray) -> None:
    """Mark the data points (P, 2) in their classes' colours, numbered from 1."""
    for index, point in enumerate(points):
        axes.plot(
            *point, marker="o", markersize=13, color=class_color(index), markeredgecolor="white", markeredgewidth=1.2
        )
        axes.text(
            point[0], point[1], str(index + 1), color="white", ha="center", va="center", fontsize=8, fontweight="bold"
        )


def _frame(axes: "Axes", reach: float) -> None:
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")


def _rgb(color: str) -> tuple[float, ...]:
    return tuple(int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
