"""Where pages and results lie, and the few pieces of Markdown that every page needs."""

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
RESULTS = ROOT / "lab/results"
MEASURED = ROOT / "benchmarks/results"
FIGURES = ROOT / "benchmarks/figures"
NO_PARAGRAPH = ("#", "|", "<", "`", "    ")
WIDTH = 120
REPOSITORY = "https://github.com/harmax/harmax"


def address(path: str) -> str:
    """Return the full address of a file or folder: pages that a package index shows cannot use relative links.

    >>> address("docs/guide.md")
    'https://github.com/harmax/harmax/blob/main/docs/guide.md'
    """
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{path}"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(str(entry) for entry in row) + " |" for row in rows]
    return "\n".join([f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *lines])


def filled(text: str, made: dict[str, str]) -> str:
    """Return a page with what is made put between its markers, `<!-- name: ... -->` and `<!-- /name -->`."""
    for name, content in made.items():
        found = list(re.finditer(rf"<!-- {name}:[^\n]*-->\n(.*?)<!-- /{name} -->", text, flags=re.DOTALL))
        if len(found) != 1:
            raise ValueError(
                f"a page must have the markers of {name!r} once, got them {len(found)} times; add or remove some."
            )
        start, end = found[0].span(1)
        text = text[:start] + (f"\n{content}\n\n" if content else "") + text[end:]
    return text


def measured(name: str) -> list[dict[str, Any]]:
    """Return the rows of one file of `benchmarks/results`; none where nothing was measured."""
    path = MEASURED / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wrap(text: str) -> str:
    """Break the lines of paragraphs and lists anew, since fields are longer than what they become.

    >>> print(wrap("one\\ntwo\\n\\n- a\\n  b\\n- c"))
    one two
    <BLANKLINE>
    - a b
    - c
    """
    return "\n\n".join(map(_wrap_block, text.strip("\n").split("\n\n")))


def _wrap_block(block: str) -> str:
    if block.startswith(NO_PARAGRAPH):
        return block
    items = re.split(r"\n(?=\d+\. |- )", block)
    marks = [match[0] if (match := re.match(r"\d+\. |- ", item)) else "" for item in items]
    return "\n".join(
        textwrap.fill(
            " ".join(item.removeprefix(mark).split()),
            WIDTH,
            initial_indent=mark,
            subsequent_indent=" " * len(mark),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for item, mark in zip(items, marks, strict=True)
    )
