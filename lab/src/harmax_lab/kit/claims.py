"""Claims: a sentence, the cells it needs, its judge, and a test of whether the run is large enough."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harmax_lab.kit.results import Results, Test

REPRODUCED, NOT_REPRODUCED, NOT_DECIDED = VERDICTS = ("reproduced", "not reproduced", "not decided")


class Finding(NamedTuple):
    """What the finished cells say about a claim: whether it holds (None: undecided), a sentence, and the numbers."""

    holds: bool | None
    sentence: str
    numbers: Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """A sentence that the experiment can support or contradict, and what the paper reports for it."""

    id: str
    statement: str
    paper: str
    control: bool = False
    """Whether this is a check that the paper does not make. Its verdict says whether the statement holds."""
    needs: Test = field(default=lambda cell: True, kw_only=True)
    """Returns whether the claim needs a cell; `where(...)` makes such a test."""
    judge: Callable[[Results[Any, Any]], Finding] | None = field(default=None, kw_only=True)
    """Judges these cells, all of which are finished."""
    enough: Callable[[Results[Any, Any]], str] = field(default=lambda results: "", kw_only=True)
    """Returns a sentence that says why the run is too small to decide the claim; empty if it is large enough."""


@dataclass(frozen=True)
class Verdict:
    """What a run says about one claim: one of `VERDICTS`, a sentence, and the numbers behind it."""

    claim: str
    verdict: str
    sentence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def conclude(claim: Claim, results: Results[Any, Any]) -> Verdict:
    """Judge a claim on the cells that it needs. It is undecided if one is missing or if the run is too small."""
    own = results.where(claim.needs)
    if not own.wanted:
        absent = ", ".join(getattr(results.spec, "absent", ()))
        why = f" Left out, because the files were not there: {absent}." if absent else ""
        return Verdict(claim.id, NOT_DECIDED, f"This profile has no cell for this claim.{why}")
    if not own.complete:
        return Verdict(claim.id, NOT_DECIDED, "Some cells that this claim needs are not finished.")
    assert claim.judge is not None
    finding = claim.judge(own)
    if short := claim.enough(own):
        return Verdict(claim.id, NOT_DECIDED, f"{short} So far: {finding.sentence}", finding.numbers)
    verdict = NOT_DECIDED if finding.holds is None else REPRODUCED if finding.holds else NOT_REPRODUCED
    return Verdict(claim.id, verdict, finding.sentence, finding.numbers)


def at_least(**wanted: float) -> Callable[[Results[Any, Any]], str]:
    """Return a test for `enough`: fields of the spec must be at least this large, or list at least this many things.

    >>> from types import SimpleNamespace
    >>> at_least(seeds=10)(Results(SimpleNamespace(seeds=(0, 1, 2)), {}))
    'Only 3 of at least 10 seeds were run.'
    """

    def test(results: Results[Any, Any]) -> str:
        for name, least in wanted.items():
            value = getattr(results.spec, name)
            size = len(value) if isinstance(value, tuple) else value
            if size < least:
                return f"Only {size:g} of at least {least:g} {name.replace('_', ' ')} were run."
        return ""

    return test


def verdict_words(verdict: str, claim: Claim) -> str:
    """Return the words for a verdict. A control holds or does not hold, because the paper has no such claim.

    >>> verdict_words("not reproduced", Claim("bias", "A bias separates.", "Not reported.", control=True))
    'does not hold'
    """
    words = {REPRODUCED: "holds", NOT_REPRODUCED: "does not hold"}
    return words.get(verdict, verdict) if claim.control else verdict


def said_and_rule(statement: str) -> tuple[str, str]:
    """Return the first sentence of a claim, and the rest, which is the rule by which it is judged.

    >>> said_and_rule("p ~ (w . x)^2 wins. Holds where it is first. Else broken.")
    ('p ~ (w . x)^2 wins.', 'Holds where it is first. Else broken.')
    """
    said, *rule = re.split(r"(?<=\.) (?=[A-Z])", statement, maxsplit=1)  # not the dot of a product
    return said, "".join(rule)
