"""The page of what became of the claims: those of before with their verdicts, those of now, and why."""

import csv
from collections import Counter
from typing import NamedTuple

from harmax_lab.kit.claims import NOT_DECIDED, VERDICTS
from harmax_lab.report.results import NO_ROWS, OTHER_VERSION
from pages.site import DOCS, table
from pages.verdicts import Judged, judged, linked, tally

CHANGES, BEFORE = (DOCS / "templates" / name for name in ("changes.csv", "before.csv"))
DROPPED, PARTS = "a control or dropped", "different verdicts"
WAITING = {
    "a": (NO_ROWS, "The rows of the older runs were not kept, so the new statement cannot be judged on them."),
    "b": (OTHER_VERSION, "The published runs are of an earlier version of the experiment."),
    "c": ("", "No run of the full profile is published."),
}
"""Why a claim waits for runs, and the published reason that says so."""
JUDGED = "The runs were judged: the intervals decide nothing."


class Change(NamedTuple):
    """Claims of before and what stands in their place, all of them as "experiment/claim"."""

    section: str
    before: tuple[str, ...]
    now: tuple[str, ...]
    why: str


def changes() -> list[Change]:
    """Read all changes; each claim of the paper, then and now, stands in one of them."""
    with CHANGES.open(newline="") as file:
        return [
            Change(row["section"], tuple(row["before"].split()), tuple(row["now"].split()), row["why"])
            for row in csv.DictReader(file)
        ]


def before() -> dict[str, str]:
    """Read the claims that counted as the paper's before, with their verdicts."""
    with BEFORE.open(newline="") as file:
        return {row["claim"]: row["verdict"] for row in csv.DictReader(file)}


def changes_page() -> str:
    """The text of lab/results/changes.md."""
    then, now = before(), {one.key: one for one in judged()}
    counts = Counter(then.values())
    old = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    parts = [
        "# Claims before and after",
        "The claims were first written without the paper's text. They were then rewritten in its own words. This page "
        "lists what became of each, with the verdict before and now, and why. A claim is written as "
        "`experiment/claim`, with the names of `harmax run`. Made from the published runs by `make docs`.",
        f"Before, {len(then)} claims counted as the paper's: {old}.",
        tally().replace("Of ", "Now, of ", 1),
        "The two counts cannot be compared claim by claim. Sentences with two halves have two claims now, and many old "
        "claims asked for more than the sentence says, or for less.",
        "## Where the old claims went",
        "Rows: the verdict before. Columns: the verdict on what stands in its place.",
        _moves(then, now),
        "## Why claims are not decided now",
        table(["", "reason", "claims of the paper", "experiments"], _reasons(now)),
    ]
    for section in dict.fromkeys(change.section for change in changes()):
        rows = [
            (
                _grouped({key: then.get(key, "a control") for key in change.before}),
                _grouped({key: _verdict(now[key]) for key in change.now}),
                change.why,
            )
            for change in changes()
            if change.section == section
        ]
        parts += [f"## {section}", table(["before", "now", "why"], rows)]
    return "\n\n".join(parts) + "\n"


def _moves(then: dict[str, str], now: dict[str, Judged]) -> str:
    """Count where the paper's claims of before went."""
    found: Counter[tuple[str, str]] = Counter()
    for change in changes():
        verdicts = {now[key].verdict for key in change.now if not now[key].claim.control}
        place = DROPPED if not verdicts else PARTS if len(verdicts) > 1 else next(iter(verdicts))
        found.update((then[key], place) for key in change.before if key in then)
    columns = (*VERDICTS, PARTS, DROPPED)
    kinds = [verdict for verdict in VERDICTS if verdict in then.values()]
    rows = [[kind, *(found[kind, column] or "" for column in columns)] for kind in kinds]
    return table(["before", *columns], rows)


def _mark(one: Judged) -> str:
    """Return the letter of the reason for which a claim waits for runs; empty if runs were judged."""
    if one.verdict != NOT_DECIDED:
        return ""
    return next((letter for letter, (said, _) in WAITING.items() if one.reason == said), "d")


def _reasons(now: dict[str, Judged]) -> list[list[object]]:
    texts = {**{letter: text for letter, (_, text) in WAITING.items()}, "d": JUDGED}
    rows: list[list[object]] = []
    for letter, text in texts.items():
        own = [one for one in now.values() if not one.claim.control and _mark(one) == letter]
        if own:
            names = dict.fromkeys(one.experiment.name for one in own)
            rows.append([letter, text, len(own), ", ".join(linked(name, name) for name in names)])
    return rows


def _verdict(one: Judged) -> str:
    mark = f" ({_mark(one)})" if _mark(one) else ""
    return f"a control, {one.words}{mark}" if one.claim.control else f"**{one.words}**{mark}"


def _grouped(verdicts: dict[str, str]) -> str:
    """Write claims with their verdicts; those with the same one stand together."""
    together: dict[str, list[str]] = {}
    for key, verdict in verdicts.items():
        together.setdefault(verdict, []).append(f"`{key}`")
    return "; ".join(f"{', '.join(keys)}: {verdict}" for verdict, keys in together.items())
