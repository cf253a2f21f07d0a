"""House style of the figures, and how one becomes a piece of a web page."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harmax.extras import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine draws the same
    "font.size": 9.5,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "path",  # text as outlines: no font has to be found by the reader's browser
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw inside this context to get the house's look, whatever the user's matplotlib settings are."""
    with needs("report"):
        import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def to_png(figure: "Figure") -> bytes:
    """Return a figure as a PNG, sharp enough for a page; of 256 colours, which makes it a third of the size."""
    with needs("report"):
        from PIL import Image  # matplotlib's own dependency

    drawn, small = io.BytesIO(), io.BytesIO()
    with house_style():
        figure.savefig(drawn, format="png", dpi=110)
    picture = Image.open(drawn).convert("RGB")
    few = picture.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(small, format="png", optimize=True)
    return small.getvalue()


def to_svg(figure: "Figure", name: str) -> str:
    """Return a figure as an `<svg>` element that can stand inside a page: same figure, same text, to the byte.

    `name` keeps the ids of one figure apart from those of another on the same page.
    """
    with needs("report"):
        import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    svg = text[text.index("<svg") :]
    # The metadata block only names the format, through addresses that a strict reader would take for requests.
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # A width in points would overflow a phone; the viewBox keeps the shape.
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return _round_paths(_rename_ids(svg, name))


def _round_paths(svg: str) -> str:
    # A hundredth of a point is finer than any printer; the digits beyond it are a third of the file.
    def rounded(path: re.Match[str]) -> str:
        return re.sub(r"(\.\d\d)\d+", r"\1", path[0])

    return re.sub(r' d="[^"]*"', rounded, svg)


def _rename_ids(svg: str, name: str) -> str:
    svg = re.sub(r'\bid="([^"]+)"', lambda m: f'id="{name}-{m[1]}"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{name}-{m[1]})", svg)
    return re.sub(r'xlink:href="#([^"]+)"', lambda m: f'xlink:href="#{name}-{m[1]}"', svg)
