"""Parts of figures that experiments share, with those of `harmax.figures`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from harmax.analysis import Interval
from harmax.figures import HEAD_STYLES, _line, class_color, draw_band, headline, new_figure
from harmax.figures import line_handle as line_handle
from harmax.figures import mark_handle as mark_handle
from harmax.figures import spaced as spaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

R = TypeVar("R")
K = TypeVar("K")


@dataclass(frozen=True)
class ModelStyle:
    """How one of the paper's four small models is drawn. The color shows its head, the line and marker its body."""

    label: str
    color: str
    line: str
    marker: str


# Keyed by body and head, in the order of legends and columns.
MODEL_STYLES: dict[tuple[str, str], ModelStyle] = {
    ("mlp", "linear"): ModelStyle("standard MLP", "#D55E00", "-", "o"),
    ("mlp", "harmonic"): ModelStyle("harmonic MLP", "#0072B2", "-", "o"),
    ("transformer", "linear"): ModelStyle("standard transformer", "#D55E00", "--", "^"),
    ("transformer", "harmonic"): ModelStyle("harmonic transformer", "#0072B2", "--", "^"),
}


def facets(
    rows: Mapping[R, str] | None = None,
    columns: Mapping[K, str] | None = None,
    *,
    size: tuple[float, float],
    xlabel: str = "",
    ylabel: str = "",
    font: float = 9.5,
    handles: Sequence["Line2D"] = (),
    title: str = "",
    **options: Any,
) -> tuple["Figure", dict[tuple[R, K], "Axes"]]:
    """Return a figure with a panel for every row and column, and its panels by their keys.

    Args:
        rows: by key, the label at the left of a row; None: one row, keyed by None.
        columns: by key, the title of a column; None: one column, keyed by None.
        size: of the figure, in inches.
        xlabel: below the last row.
        ylabel: at the left of each row, below its label.
        font: size of the titles, in points.
        handles: of the legend, which stands below all panels if there is a title, and else above them.
        title: of the figure: what it shows.
        options: as for `Figure.subplots`.
    """
    sides: Mapping[Any, str] = rows or {None: ""}
    tops: Mapping[Any, str] = columns or {None: ""}
    figure = new_figure(*size)
    grid = figure.subplots(len(sides), len(tops), squeeze=False, **options)
    panels = {
        (row, top): axes for row, line in zip(sides, grid, strict=True) for top, axes in zip(tops, line, strict=True)
    }
    for axes, words in zip(grid[0], tops.values(), strict=True):
        axes.set_title(words, fontsize=font)
    for axes, words in zip(grid[:, 0], sides.values(), strict=True):
        axes.set_ylabel("\n".join(filter(None, (words, ylabel))))
    for axes in grid[-1]:
        axes.set_xlabel(xlabel)
    if title:
        headline(figure, title, handles)
    elif handles:
        figure.legend(handles=list(handles), loc="outside upper center", ncols=len(handles))
    return figure, panels


def panels_in_a_row(titles: Mapping[K, str], **options: Any) -> tuple["Figure", dict[K, "Axes"]]:
    """Return a figure with one row of titled panels, by key; the options are those of `facets`."""
    figure, panels = facets(columns=titles, **options)
    return figure, {key: axes for (_, key), axes in panels.items()}


def wrapped(
    panels: Mapping[K, str],
    columns: int,
    *,
    size: tuple[float, float],
    ylabel: str = "",
    handles: Sequence["Line2D"] = (),
    title: str = "",
    **options: Any,
) -> tuple["Figure", dict[K, "Axes"], "Axes | None"]:
    """Return a figure with titled panels in rows of `columns`, its panels by their keys, and the first empty panel.

    The first panel of each row has the label. The empty panel, if there is one, holds the legend.
    """
    figure = new_figure(*size)
    rows = -(-len(panels) // columns)
    every = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axes, words in zip(every, panels.values(), strict=False):
        axes.set_title(words)
    for axes in every[: len(panels) : columns]:
        axes.set_ylabel(ylabel)
    spare = every[len(panels) :]
    for axes in spare:
        axes.axis("off")
    if spare and handles:
        spare[0].legend(handles=list(handles), loc="center", fontsize=10, title=title, title_fontsize=10)
    return figure, dict(zip(panels, every, strict=False)), spare[0] if spare else None


def draw_head_curves(axes: "Axes", head: str, step: np.ndarray, series: Sequence[np.ndarray]) -> None:
    """Draw one head's curves: the median over seeds as a line, their range as a band."""
    style = HEAD_STYLES[head]
    draw_band(axes, step, series, color=style.color, line=style.line, label=style.label)


def draw_ranges(axes: "Axes", x: Any, found: Any, *, color: str, **line: Any) -> None:
    """Draw intervals (K, 3) over K places: their estimates as a line, and a band between their ends."""
    middle, low, high = np.asarray(found).T
    axes.plot(x, middle, color=color, **line)
    axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)


def model_handle(model: str, head: str) -> "Line2D":
    """Return a legend entry for one of the four small models."""
    style = MODEL_STYLES[model, head]
    return _line(style.label, color=style.color, linestyle=style.line, marker=style.marker, markersize=6)


def draw_weights(axes: "Axes", weight: np.ndarray, points: np.ndarray) -> None:
    """Draw each class's weight (V, 2) as an arrow from the origin, and the data points as open rings."""
    reach = 1.22 * max(np.abs(weight).max(), np.abs(points).max())
    _frame(axes, reach)
    for index, (tip, point) in enumerate(zip(weight, points, strict=True)):
        color = class_color(index)
        # A center at the origin has no arrow, only a dot.
        if np.linalg.norm(tip) > 0.02 * reach:
            arrow: dict[str, Any] = {"arrowstyle": "-", "color": color, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", tip, (0, 0), arrowprops=arrow)
        axes.plot(*tip, marker="o", markersize=5, color=color, linestyle="none", zorder=4)
        axes.plot(*point, marker="o", markersize=10, markerfacecolor="none", color=color, linestyle="none", zorder=3)


def draw_regions(axes: "Axes", extent: np.ndarray, winner: np.ndarray, probability: np.ndarray) -> None:
    """Fill the square from extent[0] to extent[1] with the winning class's color, paler where it is less probable."""
    from matplotlib.colors import to_rgb

    colors = np.array([to_rgb(class_color(index)) for index in range(int(winner.max()) + 1)])
    strength = (0.12 + 0.68 * probability)[..., None]
    low, high = map(float, extent)
    _frame(axes, high)
    axes.grid(False)
    image = 1 - strength * (1 - colors[winner])
    axes.imshow(image, origin="lower", extent=(low, high, low, high), interpolation="bilinear", aspect="equal")


def draw_points(axes: "Axes", points: np.ndarray) -> None:
    """Mark the data points (P, 2) in their classes' colors, numbered from 1."""
    for index, point in enumerate(points):
        axes.plot(
            *point, marker="o", markersize=13, color=class_color(index), markeredgecolor="white", markeredgewidth=1.2
        )
        axes.text(
            point[0], point[1], str(index + 1), color="white", ha="center", va="center", fontsize=8, fontweight="bold"
        )


def _frame(axes: "Axes", reach: float) -> None:
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")


def beside(place: float, count: int, reach: float) -> np.ndarray:
    """Spread `count` dots around a place, in a fixed order, so that the same runs give the same picture."""
    return place + reach * np.linspace(-1, 1, max(count, 2))[:count]


def draw_interval(
    axes: "Axes", found: Interval, place: float, color: str, *, marker: str = "D", scale: float = 1.0, **mark: Any
) -> None:
    """Draw an interval as a bar at a height, and a mark at its estimate. An infinite interval has no bar."""
    if np.isfinite(found.low):
        ends = [scale * found.low, scale * found.high]
        axes.plot(ends, [place, place], color=color, linewidth=3, solid_capstyle="butt")
    axes.plot(scale * found.estimate, place, marker, color=color, **mark)
