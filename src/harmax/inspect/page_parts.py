"""Parts of a self-contained page: style, escaped text, thumbnails, and small plots that follow light and dark."""

# H rows, W columns

import base64
import html
import io
import os
from collections.abc import Sequence

import numpy as np

from harmax.errors import needs

THUMBNAIL = 112
"""Largest side of a thumbnail, in pixels."""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 340, 240, 46, 40, 16, 18
"""Of a plot, and its margins."""
TICKS = (0.25, 0.5, 0.75, 1.0)

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c1c1c;--faint:#5a5a5a;--line:#dcdcdc;--card:#f6f6f6;--blue:#0072b2;
--orange:#b84a00;--gray:#8a8a8a;--heat:0,114,178}
@media(prefers-color-scheme:dark){:root{--paper:#151618;--ink:#ececec;--faint:#a9a9a9;--line:#3a3b3e;--card:#1f2023;
--blue:#62b5e5;--orange:#ff9c5a;--gray:#8d8d8d;--heat:98,181,229}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:1rem;background:var(--paper);color:var(--ink);
font:16px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.2rem;margin:2rem 0 .3rem}h3{font-size:1rem;margin:0 0 .5rem}
p{margin:.3rem 0 .8rem;max-width:46rem}small,.faint{color:var(--faint);font-size:.85rem}
nav{margin-top:.8rem}nav a{display:inline-block;margin:0 1rem .3rem 0}a{color:var(--blue)}
.facts,.cards{display:grid;gap:.8rem;margin:0;padding:0}
.facts{grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}
.cards{grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr))}
.facts>div,.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.7rem}
.facts b{display:block;font-size:1.25rem}
.row{display:flex;gap:.6rem;flex-wrap:wrap}
figure{margin:0;width:92px;font-size:.78rem;line-height:1.25}
figure img{display:block;width:92px;height:92px;object-fit:cover;border:3px solid var(--line);border-radius:4px;
image-rendering:auto}
figure img.small{image-rendering:pixelated}
figure.other img,figure.wrong img{border-color:var(--orange)}figure.won img{border-color:var(--blue)}
.other figcaption b,.wrong figcaption b{color:var(--orange)}
.bar{display:flex;align-items:center;gap:.5rem;font-size:.82rem;margin:.15rem 0}
.bar span{flex:0 0 auto}.bar i{flex:0 0 auto;height:.6rem;border-radius:2px;background:var(--gray)}
.bar.winner i{background:var(--blue)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem}th,td{border:1px solid var(--line);padding:.3rem .5rem;text-align:right}
th{font-weight:600;background:var(--card);text-align:left}td.zero{color:var(--faint)}
.plots{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr))}
svg{display:block;width:100%;max-width:460px;height:auto;font:12px system-ui,sans-serif;fill:var(--ink)}
svg .axis{stroke:var(--gray);fill:none}svg .grid{stroke:var(--line)}svg .a{stroke:var(--blue);fill:none;stroke-width:2}
svg .b{stroke:var(--orange);fill:none;stroke-width:2;stroke-dasharray:5 4}svg .dot{fill:var(--blue)}
svg .ideal{stroke:var(--gray);stroke-dasharray:3 4}
.key{display:inline-block;width:1.6rem;border-top:2px solid var(--blue);vertical-align:middle;margin-right:.3rem}
.key.b{border-top:2px dashed var(--orange);margin-left:1rem}
"""


def text(value: object) -> str:
    """Return a text for a page: everything that HTML could read as its own is escaped.

    >>> text("<b>'&'")
    '&lt;b&gt;&#x27;&amp;&#x27;'
    """
    plain = os.fsencode(str(value)).decode("utf-8", "replace")  # a file name may hold bytes that are no text
    return html.escape(plain, quote=True)


def page(title: str, body: str) -> str:
    """Return a whole page that needs no network."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def thumbnail(picture: np.ndarray, words: str) -> str:
    """Return a picture, (H, W) or (3, H, W) with values from 0 to 1, as an image element that holds its data."""
    with needs("figures"):
        from PIL import Image  # matplotlib's own dependency

    levels = np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)
    image = Image.fromarray(levels if levels.ndim == 2 else levels.transpose(1, 2, 0))
    small = max(image.size) <= 48
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, **({"format": "PNG"} if small else {"format": "JPEG", "quality": 82}))
    kind, data = "png" if small else "jpeg", base64.b64encode(buffer.getvalue()).decode()
    mark = ' class="small"' if small else ""
    return f'<img{mark} alt="{text(words)}" title="{text(words)}" src="data:image/{kind};base64,{data}">'


def plot_reliability(confidence: np.ndarray, accuracy: np.ndarray, counts: np.ndarray) -> str:
    """Draw accuracy against confidence. A dot's area grows with its number of images."""
    axes = _Axes((0, 1), (0, 1), "confidence, %", "accuracy, %")
    marks = [f'<line class="ideal" x1="{axes.x(0)}" y1="{axes.y(0)}" x2="{axes.x(1)}" y2="{axes.y(1)}"/>']
    for place, level, count in zip(confidence, accuracy, counts, strict=True):
        if count:
            radius = 3 + 9 * float(np.sqrt(count / counts.max()))
            words = f"{count} images: confidence {place:.1%}, accuracy {level:.1%}"
            marks.append(
                f'<circle class="dot" fill-opacity=".75" cx="{axes.x(place)}" cy="{axes.y(level)}" r="{radius:.1f}">'
                f"<title>{text(words)}</title></circle>"
            )
    return axes.draw("Accuracy against confidence", marks)


def plot_coverage(curves: Sequence[tuple[np.ndarray, np.ndarray]], least: float = 0.1) -> str:
    """Draw accuracy against coverage, the first curve solid and the second dashed.

    Args:
        curves: coverage and accuracy of each.
        least: the smallest coverage to draw.
    """
    kept = [(share[share >= least], level[share >= least]) for share, level in curves]
    low = min(float(level.min()) for _, level in kept)
    axes = _Axes((least, 1), (max(0.0, np.floor(10 * low - 0.5) / 10), 1), "answered, %", "accuracy, %")
    marks = []
    for name, (share, level) in zip("ab", kept, strict=False):
        at = np.unique(np.linspace(0, len(share) - 1, min(len(share), 300)).round().astype(int))
        points = " ".join(f"{axes.x(share[place])},{axes.y(level[place])}" for place in at)
        marks.append(f'<polyline class="{name}" points="{points}"/>')
    return axes.draw("Accuracy against the share of images that are answered", marks)


class _Axes:
    def __init__(self, across: tuple[float, float], up: tuple[float, float], label: str, side: str) -> None:
        self._across, self._up, self._label, self._side = across, up, label, side

    def x(self, value: float) -> float:
        low, high = self._across
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (float(value) - low) / (high - low), 1)

    def y(self, value: float) -> float:
        low, high = self._up
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (float(value) - low) / (high - low), 1)

    def draw(self, title: str, marks: list[str]) -> str:
        parts = []
        for value in np.linspace(*self._up, 5):
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{100 * value:.3g}</text>')
        for value in (self._across[0], *TICKS):
            parts.append(
                f'<text x="{self.x(value)}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{100 * value:.3g}</text>'
            )
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
        middle = (TOP + bottom) / 2
        parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{self._label}</text>')
        parts.append(f'<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{self._side}</text>')
        inner = "".join([*parts, *marks])
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">{inner}</svg>'
