"""How a figure becomes a piece of a web page."""

import io
import re
from typing import TYPE_CHECKING

from harmax.errors import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def to_svg(figure: "Figure", name: str) -> str:
    """Return a figure as an `<svg>` element that can stand inside a page: same figure, same text, to the byte.

    `name` keeps the ids of one figure apart from those of another on the same page.
    """
    with needs("figures"):
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
