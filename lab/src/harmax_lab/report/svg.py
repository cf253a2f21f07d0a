"""Figures as parts of a web page."""

import io
import re
from typing import TYPE_CHECKING

from harmax.errors import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def to_svg(figure: "Figure", name: str) -> str:
    """Return a figure as an SVG picture for a page. The same figure and name always give the same bytes."""
    with needs("figures"):
        import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    svg = text[text.index("<svg") :]
    # The metadata only names the format, by addresses that look like requests.
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # A fixed width would be too wide for a phone. The viewBox keeps the shape.
    for size in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    # Two decimals of a point are finer than any printer. More would make up a third of the file.
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
