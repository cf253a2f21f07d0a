"""Claims: a sentence, the cells it needs, its judge, and what it rests on."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple

from harmax_lab.kit.results import Results, Test
from harmax_lab.kit.rules import LEAST_SEEDS, Choice, contradicted, undecided
from harmax_lab.kit.store import CellResult
from harmax_lab.paper import quote

REPRODUCED, NOT_REPRODUCED, NOT_DECIDED, NOT_RUN = VERDICTS = (
    "reproduced",
    "not reproduced",
    "not decided",
    "not run",
)


class Finding(NamedTuple):
    """What the finished cells say about a claim: whether it holds (None: undecided), a sentence, and the numbers."""

    holds: bool | None
    sentence: str
    numbers: Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """A sentence that the experiment can support or contradict.

    It is a claim of the paper if it names the paper's sentences that say so, and a control of ours otherwise.
    """

    id: str
    statement: str
    """How the paper's sentence is read, and the rule by which it is judged."""
    paper: str = ""
    """What the paper, or the authors' files, report besides the sentence: numbers, settings."""
    _: KW_ONLY
    sentences: tuple[str, ...] = ()
    """Keys of `harmax_lab.paper.SENTENCES`, such as "3.2/6"."""
    needs: Test = field(default=lambda cell: True)
    """Returns whether the claim needs a cell; `where(...)` makes such a test."""
    judge: Callable[[Results[Any, Any]], Finding] | None = None
    """Judges these cells, all of which are finished. None only where nothing can be run."""
    not_run: str = ""
    """Why the paper's claim cannot be run here. What `judge` finds is then evidence from something smaller."""
    seeds: int = LEAST_SEEDS
    """How many trainings per arm decide it; `rules.LEAST_RUNS` for a share of the runs."""
    choices: Callable[[Results[Any, Any]], Iterable[Choice]] = field(default=lambda results: ())
    """Returns what a search has chosen for the arms that the claim rests on."""
    passing: Callable[[CellResult], bool] | None = None
    """For claims about what a trained model looks like: returns whether a run passes the test."""
    exact: bool = False
    """Whether it is a statement of mathematics that `judge` computes without any run."""
    enough: Callable[[Results[Any, Any]], str] = field(default=lambda results: "")
    """Returns why the run cannot decide the claim for reasons of its own; empty if it can."""

    def unanswered(self, reason: str) -> "Verdict":
        """Return the verdict where no run answers the claim: it is not decided, or cannot be run."""
        return Verdict(self.id, NOT_RUN, self.not_run) if self.not_run else Verdict(self.id, NOT_DECIDED, reason)

    @property
    def control(self) -> bool:
        """Whether this is a check that the paper does not make. Its verdict says whether the statement holds."""
        return not self.sentences

    @property
    def source(self) -> str:
        """The paper's sentences, quoted in a few words, and what else it reports."""
        return " ".join([*map(quote, self.sentences), self.paper]).strip() or "Not in the paper."


@dataclass(frozen=True)
class Verdict:
    """What a run says about one claim: one of `VERDICTS`, a sentence, and the numbers behind it."""

    claim: str
    verdict: str
    sentence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def conclude(claim: Claim, results: Results[Any, Any]) -> Verdict:
    """Judge a claim on the cells that it needs, by the rules of `rules.py`."""
    own = results.where(claim.needs)
    judge, finished = claim.judge, bool(own.wanted) and own.complete
    finding = judge(own) if judge is not None and (finished or claim.exact) else Finding(None, "", {})
    so_far = f" So far: {finding.sentence}" if finding.sentence else ""
    if claim.not_run:
        counts = finding.sentence and not own.spec.stand_in()
        evidence = f" In something smaller: {finding.sentence}" if counts else ""
        return Verdict(claim.id, NOT_RUN, f"{claim.not_run}{evidence}", finding.numbers)
    if not claim.exact and (reason := undecided(claim, own)):
        return Verdict(claim.id, NOT_DECIDED, f"{reason}{so_far}", finding.numbers)
    if claim.passing is not None and judge is not None:
        passing = judge(own.having(claim.passing))
        if contradicted(finding, passing):
            sentence = f"Runs that pass the test say the opposite: {passing.sentence} All runs: {finding.sentence}"
            return Verdict(claim.id, NOT_DECIDED, sentence, finding.numbers)
    verdict = NOT_DECIDED if finding.holds is None else REPRODUCED if finding.holds else NOT_REPRODUCED
    return Verdict(claim.id, verdict, finding.sentence, finding.numbers)


def of_variant(verdict: Verdict, changes: str) -> Verdict:
    """Return what a run with settings of the user's own says about a claim, which was made about others.

    >>> of_variant(Verdict("a", "reproduced", "5 of 5."), "exponent=4").sentence
    'Settings of your own (exponent=4) decide no claim. With them it holds: 5 of 5.'
    """
    if verdict.verdict not in (REPRODUCED, NOT_REPRODUCED):
        return verdict
    holds = "holds" if verdict.verdict == REPRODUCED else "does not hold"
    sentence = f"Settings of your own ({changes}) decide no claim. With them it {holds}: {verdict.sentence}"
    return replace(verdict, verdict=NOT_DECIDED, sentence=sentence)


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

    >>> verdict_words("not reproduced", Claim("bias", "A bias separates."))
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
