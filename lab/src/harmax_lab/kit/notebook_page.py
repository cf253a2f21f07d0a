"""How a run looks in the cell of a notebook: what is done, the verdicts, and the figures of its folder."""

import base64
from html import escape
from typing import TYPE_CHECKING

from harmax.files import read_json, read_whole

if TYPE_CHECKING:
    from harmax_lab.kit.store import Run

COLUMNS = ("verdict", "claim", "sentence")


def run_as_html(run: "Run") -> str:
    """Return a run as a part of a web page, which needs no other files."""
    counts = f"{len(run.done)} of {len(run.cells)} cells done, {len(run.failed)} failed"
    title, folder = f"<b>{escape(run.experiment)}</b> ({escape(run.profile)})", escape(str(run.folder))
    parts = [f"<p>{title}: {counts}. <code>{folder}</code></p>"]
    if verdicts := (run.summary or {}).get("verdicts", []):
        rows = [[escape(str(one[name])) for name in COLUMNS] for one in verdicts]
        lines = [_line(COLUMNS, "th"), *(_line(row, "td") for row in rows)]
        parts.append(f"<table>{''.join(lines)}</table>")
    known = run.figures / "captions.json"
    captions = read_json(known) if known.is_file() else {}
    for path in sorted(run.figures.glob("*.png")):
        picture, caption = base64.b64encode(read_whole(path)).decode(), escape(str(captions.get(path.stem, "")))
        source = f"data:image/png;base64,{picture}"
        parts.append(f'<img style="max-width:100%" alt="{caption}" src="{source}">\n<p>{caption}</p>')
    return "\n".join(parts)


def _line(words: list[str] | tuple[str, ...], tag: str) -> str:
    return "<tr>" + "".join(f'<{tag} style="text-align:left">{word}</{tag}>' for word in words) + "</tr>"
