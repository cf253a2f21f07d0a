"""Palette, style and parts of figures that every figure of harmax shares.

A head has the same color, line and name in every figure. matplotlib is imported on first use.
"""

import base64
import html
import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.errors import needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


@dataclass(frozen=True)
class HeadStyle:
    """How one head is drawn. Lines differ in dashes and in color, so a gray print stays readable."""

    label: str
    color: str
    line: str


# Colors of Okabe and Ito, which people with any common color blindness can tell apart.
HEAD_STYLES: dict[str, HeadStyle] = {
    "harmonic": HeadStyle("harmonic", "#0072B2", "-"),
    "harmonic_2": HeadStyle("harmonic, exponent 2", "#CC79A7", ":"),
    "harmonic_amsgrad": HeadStyle("harmonic, AMSGrad", "#56B4E9", ":"),
    "cross_entropy": HeadStyle("cross-entropy", "#D55E00", "--"),
    "cross_entropy_bias": HeadStyle("cross-entropy with bias", "#009E73", "-."),
}

# Tol's muted scheme. Color-blind readers can tell these apart, also from the colors of the heads.
CLASS_COLORS = ("#332288", "#CC6677", "#44AA99", "#999933", "#AA4499", "#88CCEE", "#882255")

# Training data is gray, behind test data in color.
TRAIN_COLOR = "#777777"

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "figure.facecolor": "white",
    "figure.titlesize": 13,
    "figure.titleweight": "bold",
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine draws the same picture
    "font.size": 9.5,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "path",  # text as outlines, so the reader's browser needs no font
}


@dataclass(frozen=True)
class Picture:
    """A figure and its caption, which explains lines, marks and colors."""

    figure: "Figure"
    caption: str

    def _repr_png_(self) -> bytes:
        """Show the figure in a notebook."""
        return to_png(self.figure)

    def _repr_html_(self) -> str:
        """Show the figure and its caption in a notebook."""
        picture, caption = base64.b64encode(to_png(self.figure)).decode(), html.escape(self.caption)
        return f'<img style="max-width:100%" alt="{caption}" src="data:image/png;base64,{picture}">\n<p>{caption}</p>'


@contextmanager
def house_style() -> Iterator[None]:
    """Draw inside this context to get the style of harmax, independent of the user's matplotlib settings."""
    with needs("figures"):
        import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def to_png(figure: "Figure") -> bytes:
    """Return a figure as a PNG for a page. It has 256 colors, which cuts the size to a third."""
    with needs("figures"):
        from PIL import Image  # matplotlib's own dependency

    drawn, small = io.BytesIO(), io.BytesIO()
    with house_style():
        figure.savefig(drawn, format="png", dpi=110)
    picture = Image.open(drawn).convert("RGB")
    few = picture.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(small, format="png", optimize=True)
    return small.getvalue()


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, in inches, whose parts do not overlap. It does not touch pyplot's global state."""
    with needs("figures"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", h_pad=0.08)
    return figure


def headline(figure: "Figure", title: str, handles: Sequence["Line2D"] = ()) -> None:
    """Write above all panels what a figure shows. A legend goes below them, where it cannot cover the title."""
    figure.suptitle(textwrap.fill(title, int(8.5 * figure.get_figwidth())))  # letters per inch, about
    if handles:
        letters = sum(len(str(handle.get_label())) for handle in handles)
        fits = 0.55 * len(handles) + 0.075 * letters < figure.get_figwidth()  # inches, about
        columns = len(handles) if fits and len(handles) <= 5 else -(-len(handles) // 2)
        figure.legend(handles=list(handles), loc="outside lower center", ncols=columns)


def class_color(index: int) -> str:
    """Return the color of a class."""
    return CLASS_COLORS[index % len(CLASS_COLORS)]


def draw_band(
    axes: "Axes", x: np.ndarray, series: Sequence[np.ndarray], *, color: str, line: str = "-", label: str = ""
) -> None:
    """Draw the median of some curves as a line and their range as a band."""
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


def line_handle(label: str, color: str, line: str = "-") -> "Line2D":
    """Return a legend entry for a line."""
    return _line(label, color=color, linestyle=line)


def mark_handle(label: str, marker: str, color: str, *, face: str | None = None, size: float = 6) -> "Line2D":
    """Return a legend entry for a mark."""
    return _line(label, color=color, linestyle="none", marker=marker, markersize=size, markerfacecolor=face or color)


def _line(label: str, **style: Any) -> "Line2D":
    with needs("figures"):
        from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)
