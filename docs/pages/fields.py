"""Numbers in hand-written text: fields, which are filled from published results when the pages are built.

A field names a study, that is, a folder of lab/results, then what to look up there, and how to write the number.

    {rivals_mlp: Scores; matched; harmonic; mean of 5; structure | .2f}

looks into the table whose title begins with "Scores", takes the row with the entries that stand between, and of it the
column "structure".

    {rivals_mlp: structure_over_linear_mlp; difference | .2fi}

takes the number "difference" of the verdict on a claim.

    {parallelograms: Median; harmonic is = higher; rows | w}

counts the rows with these entries. An entry stands alone, or behind the name of its column where it alone fits several
rows. The format is one of Python's, "w" for a small number in words, or for example ".1p" for a share in percent
without its sign. An "i" behind it writes the interval too: 0.19 [0.16, 0.23]; an "r" writes the interval alone: 0.16 to
0.23. A minus before the study turns the sign: {-rivals_mlp: ...}. Neither line breaks nor capitals matter.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pages.site import DOCS, wrap

TEMPLATES = DOCS / "templates"
FIELD = re.compile(r"\{(-?)(\w+):\s([^{}|]+)\|\s*([^{}|]+?)\s*\}")
END = r"[+-]?(?:[\d.]+(?:e[+-]?\d+)?|inf)"
INTERVAL = re.compile(rf"({END}) \[({END}), ({END})\](?: \([^)]*\))?")  # what is in brackets is of the paper
COUNT = re.compile(r"(\d+) of \d+")
WORDS = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
NOT_PROSE = (
    re.compile(r"```.*?```", re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"`[^`]*`"),
    re.compile(r"\]\([^)]*\)"),
    FIELD,
)
NUMBER = re.compile(r"\d(?:[\d.,]*\d)?")
ROWS = "rows"
AROUND = 25  # characters that are shown on either side of a bare number

Summary = Mapping[str, Any]


class Value(NamedTuple):
    """A number of a result, with its interval where there is one."""

    estimate: float
    low: float | None = None
    high: float | None = None

    def __neg__(self) -> "Value":
        """Turn the sign; the ends of the interval change places."""
        if self.low is None or self.high is None:
            return Value(-self.estimate)
        return Value(-self.estimate, -self.high, -self.low)


def summaries(results: Path) -> dict[str, Summary]:
    """Return what is published of every study: its summary.json, by the name of its folder."""
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(results.glob("*/summary.json"))}


def page(name: str, studies: Mapping[str, Summary]) -> str:
    """Return a template with its fields filled and its lines broken anew."""
    return wrap(fill((TEMPLATES / f"{name}.md").read_text(), studies))


def fill(text: str, studies: Mapping[str, Summary]) -> str:
    """Put numbers in the place of fields.

    >>> studies = {"toy": {"verdicts": [], "tables": [
    ...     {"title": "Scores: means", "rows": [{"task": "lattice", "score": "0.912 [0.9, 0.925]"}]}]}}
    >>> fill("It has {toy: Scores; lattice; score | .2fi}.", studies)
    'It has 0.91 [0.90, 0.93].'
    """

    def number(match: re.Match[str]) -> str:
        sign, study, path, form = match.groups()
        try:
            found = look_up(studies, study, [" ".join(part.split()) for part in path.split(";")])
            return write(-found if sign else found, form)
        except ValueError as error:
            raise ValueError(f"{' '.join(match[0].split())}: {error}") from None

    return FIELD.sub(number, text)


def look_up(studies: Mapping[str, Summary], study: str, parts: list[str]) -> Value:
    """Return the number that a field names.

    Args:
        studies: summaries by name.
        study: one of these names.
        parts: a claim and a number of its verdict; or the beginning of a table's title, entries of a row, and a column.
    """
    if study not in studies:
        raise ValueError(f"nothing is published of {study!r}; publish it, or leave the sentence out.")
    first, *rest = parts
    if not rest:
        raise ValueError("a field must name a number or a column behind the claim or the table; add it after a ';'.")
    for verdict in studies[study]["verdicts"]:
        if verdict["claim"] == first:
            return value_of(_entry(verdict["numbers"], rest[0], "a number of this verdict"))
    tables = [table for table in studies[study]["tables"] if _same(table["title"]).startswith(_same(first))]
    if len(tables) != 1:
        raise ValueError(f"{first!r} must be a claim, or begin the title of one table, got {len(tables)} tables.")
    *entries, column = rest
    rows = [row for row in tables[0]["rows"] if all(_has(row, entry) for entry in entries)]
    if column == ROWS:
        return Value(len(rows))
    if len(rows) != 1:
        raise ValueError(f"the entries must be those of one row of {tables[0]['title']!r}, got {len(rows)} rows.")
    value, (row,) = value_of(_entry(rows[0], column, "a column of this table")), rows
    for low, high in ((f"{column} low", f"{column} high"), ("low", "high")):
        if value.low is None and low in row and high in row:
            return Value(value.estimate, row[low], row[high])
    return value


def _has(row: Mapping[str, Any], entry: str) -> bool:
    column, equals, value = entry.rpartition(" = ")
    if equals and (found := [value for name, value in row.items() if _same(name) == _same(column)]):
        return _same(found[0]) == _same(value)
    return _same(entry) in map(_same, row.values())


def _same(words: Any) -> str:
    return str(words).casefold()


def _entry(entries: Mapping[str, Any], name: str, what: str) -> Any:
    found = {_same(key): value for key, value in entries.items()}
    if _same(name) not in found:
        raise ValueError(f"{name!r} must be {what}, which are {', '.join(map(repr, entries))}.")
    return found[_same(name)]


def value_of(entry: Any) -> Value:
    """Read a number as results hold it.

    >>> value_of("+0.250 [+0.200, +0.300]")
    Value(estimate=0.25, low=0.2, high=0.3)
    >>> value_of({"estimate": 1.0, "low": 0.0, "high": 2.0}) == Value(1.0, 0.0, 2.0)
    True
    """
    if isinstance(entry, Mapping) and "estimate" in entry:
        return Value(entry["estimate"], entry["low"], entry["high"])
    if isinstance(entry, str) and (match := INTERVAL.fullmatch(entry) or COUNT.fullmatch(entry)):
        return Value(*map(float, match.groups()))
    if isinstance(entry, list) and len(entry) == 3:
        return Value(*entry)
    if isinstance(entry, int | float) and not isinstance(entry, bool):
        return Value(entry)
    raise ValueError(f"the entry must be a number, got {entry!r}; name another column.")


def write(value: Value, form: str) -> str:
    """Write a number by one of Python's formats or one of ours.

    >>> write(Value(0.25, 0.2, 0.3), ".2f"), write(Value(0.25, 0.2, 0.3), ".1fi"), write(Value(7), "d")
    ('0.25', '0.2 [0.2, 0.3]', '7')
    >>> write(Value(0.9488), ".1p"), write(Value(0.9488), ".1%"), write(Value(3), "w")
    ('94.9', '94.9 %', 'three')
    >>> write(Value(0.25, 0.2, 0.3), ".1fr")
    '0.2 to 0.3'
    """
    plain = form.removesuffix("i").removesuffix("r")
    estimate, *ends = [_format(number, plain) for number in value if number is not None]
    if form == plain:
        return estimate
    if not ends:
        raise ValueError(f"this number has no interval; leave out the {form[-1]!r} of the format.")
    low, high = ends
    return f"{low} to {high}" if form.endswith("r") else f"{estimate} [{low}, {high}]"


def _format(number: float, form: str) -> str:
    if form == "w":
        return WORDS[int(number)] if number in range(len(WORDS)) else f"{number:g}"
    if form == "d" and float(number).is_integer():
        number = int(number)
    if form.endswith("p"):
        number, form = 100 * number, f"{form[:-1]}f"
    text = format(number, form)
    return (text.lstrip("+-") if not text.strip("+-0.%") else text).replace("%", " %")


def bare_numbers(text: str, allowed: Iterable[str]) -> list[str]:
    """Return the numbers of a text that are no fields, each with some words around it.

    Code, links and comments do not count, nor does what one of the regular expressions in `allowed` covers.

    >>> bare_numbers("In 2025 GPT-2 had 3.16, see Fig. 5.", ["GPT-2", r"Fig. \\d+", r"20\\d\\d"])
    ['In 2025 GPT-2 had 3.16, see Fig. 5.']
    """
    patterns = (*NOT_PROSE, *map(re.compile, allowed))
    covered = [match.span() for pattern in patterns for match in pattern.finditer(text)]
    bare = [match for match in NUMBER.finditer(text) if not any(start <= match.start() < end for start, end in covered)]
    return [" ".join(text[max(0, match.start() - AROUND) : match.end() + AROUND].split()) for match in bare]
