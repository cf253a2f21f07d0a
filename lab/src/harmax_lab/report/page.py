"""What the report's template shows: claims with both verdicts, figures as data, tallies."""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from harmax.errors import needs
from harmax.figures import Picture, to_png
from harmax_lab.kit.claims import NOT_DECIDED, NOT_RUN, VERDICTS, Claim, Verdict, said_and_rule, verdict_words
from harmax_lab.kit.rules import RULES
from harmax_lab.report.html import Report, Section, describe_environment, format_number
from harmax_lab.report.svg import to_svg

if TYPE_CHECKING:
    from markupsafe import Markup

PROFILE_WORDS = {"smoke": "smoke check", "quick": "quick check", "full": "full run"}
LARGE_SVG = 100_000
"""Bytes. A figure of many points is smaller as a PNG."""
UNPUBLISHED = "No run of this claim is published yet."
FEW = 8
"""Claims. More controls than these are folded, where there is no claim of the paper beside them too."""
PLURALS = {"holds": "hold", "does not hold": "do not hold"}


class Row(NamedTuple):
    """A claim with the published verdict and, where the run answers it, that of this machine."""

    section: str
    claim: Claim
    published: Verdict
    here: Verdict | None

    @property
    def id(self) -> str:
        """Unique on the page."""
        return f"{self.section}-{self.claim.id}"

    @property
    def words(self) -> str:
        """The published verdict. A control holds or does not hold."""
        return verdict_words(self.published.verdict, self.claim)

    @property
    def words_here(self) -> str:
        """This machine's verdict, if it is one; a short run that leaves the claim open has none."""
        if self.here is None or not decided(self.here):
            return ""
        return "same here" if self.agrees else f"this machine: {self.said_here}"

    @property
    def said_here(self) -> str:
        """This machine's verdict, whatever it is; empty without a run."""
        return verdict_words(self.here.verdict, self.claim) if self.here else ""

    @property
    def settled(self) -> bool:
        """Whether the published runs or this machine's decide it."""
        return decided(self.published) or bool(self.words_here)

    @property
    def agrees(self) -> bool | None:
        """Whether both verdicts are the same; None where one of them is open."""
        if self.here is None or not decided(self.here) or not decided(self.published):
            return None
        return self.here.verdict == self.published.verdict


class Version(NamedTuple):
    """A figure as it was published, or as this machine drew it."""

    origin: str
    """published or here"""
    address: str
    """The picture itself, as a data: address."""
    width: int
    height: int
    caption: str


class Figure(NamedTuple):
    """A figure in one or two versions."""

    id: str
    title: str
    versions: tuple[Version, ...]


@dataclass(frozen=True)
class Part:
    """One experiment on the page."""

    section: Section

    @cached_property
    def rows(self) -> list[Row]:
        """Every claim."""
        published = self.section.published
        here = {verdict.claim: verdict for _, verdict in self.section.judged}
        known: Mapping[str, Verdict] = published.verdicts if published else {}
        if self.section.variant:  # its own verdicts stand where the published ones would
            known, here = here, {}
        return [
            Row(self.section.id, claim, known.get(claim.id) or claim.unanswered(UNPUBLISHED), here.get(claim.id))
            for claim in self.claims
        ]

    @property
    def claims(self) -> Sequence[Claim]:
        """The claims of the experiment."""
        return self.section.experiment.claims

    @property
    def shown(self) -> list[Row]:
        """The paper's claims that the published runs or this machine's decide."""
        return [row for row in self.rows if not row.claim.control and row.settled]

    def folded(self, verdict: str) -> list[Row]:
        """The paper's claims that nothing decides, of one verdict."""
        own = [row for row in self.rows if not row.claim.control and not row.settled]
        return [row for row in own if row.published.verdict == verdict]

    @property
    def controls(self) -> list[Row]:
        """Our controls, decided ones first."""
        return sorted((row for row in self.rows if row.claim.control), key=lambda row: not row.settled)

    @property
    def few_controls(self) -> bool:
        """Whether controls are all that there is, and so few that nobody wants them folded."""
        return len(self.controls) == len(self.rows) <= FEW and any(row.settled for row in self.controls)

    def words(self, rows: Iterable[Row]) -> str:
        """How many of these claims have which verdict, in words."""
        counts = Counter(row.words for row in rows)
        return ", ".join(f"{count} {PLURALS.get(word, word)}" for word, count in counts.items())

    @property
    def counts(self) -> Counter[str]:
        """How many claims have which published verdict."""
        return Counter(row.published.verdict for row in self.rows)

    @property
    def profile(self) -> str:
        """The words for this machine's profile; empty without a finished cell."""
        return PROFILE_WORDS[self.section.run.profile] if self.section.run and self.section.judged else ""

    @property
    def open_here(self) -> int:
        """How many claims this machine's run leaves open."""
        return sum(row.here is not None and row.here.verdict == NOT_DECIDED for row in self.rows)

    @cached_property
    def figures(self) -> list[Figure]:
        """Every figure, published ones first."""
        published = self.section.published.pictures if self.section.published else {}
        here = self.section.pictures
        figures = []
        for name in dict.fromkeys([*published, *here]):
            versions = []
            if name in published:
                stored = published[name]
                versions.append(Version("published", _png(stored.png), *stored.size, stored.caption))
            if name in here:
                versions.append(_drawn(here[name], name))
            figures.append(Figure(f"{self.section.id}--{name}", name.replace("_", " "), tuple(versions)))
        return figures

    @property
    def both(self) -> bool:
        """Whether any figure has two versions."""
        return any(len(figure.versions) > 1 for figure in self.figures)


@dataclass(frozen=True)
class Page:
    """The whole report."""

    report: Report
    parts: tuple[Part, ...]

    @cached_property
    def rows(self) -> list[Row]:
        """Every claim of every experiment. Settings of one's own decide none, so variants do not count."""
        return [row for part in self.standard for row in part.rows]

    @property
    def standard(self) -> list[Part]:
        """The experiments with their own settings."""
        return [part for part in self.parts if not part.section.variant]

    def tally(self, *, control: bool) -> Mapping[str, int]:
        """How many claims of the paper, or controls, have which published verdict."""
        counts = Counter(row.published.verdict for row in self.rows if row.claim.control == control)
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict] or not control}

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """Why claims of the paper are not decided, most frequent reason first. Reasons of single claims are summed."""
        open_rows = [row for row in self.rows if row.published.verdict == NOT_DECIDED and not row.claim.control]
        counts = Counter(reason_of(row.published) for row in open_rows)
        common = [(reason, count) for reason, count in counts.most_common() if count > 1]
        rest = len(open_rows) - sum(count for _, count in common)
        return [*common, *([("Other reasons, each of one claim.", rest)] if rest else [])]

    @property
    def ran(self) -> list[Part]:
        """Experiments with a finished cell on this machine."""
        return [part for part in self.standard if part.section.judged]

    @property
    def short(self) -> list[Part]:
        """Those of them that are no full runs."""
        return [part for part in self.ran if part.section.run and part.section.run.profile != "full"]

    @property
    def short_words(self) -> str:
        """What those are: quick checks, smoke checks or both."""
        return " and ".join(dict.fromkeys(f"{part.profile}s" for part in self.short))

    @property
    def answers(self) -> str:
        """How many claims this machine's runs decide, like or unlike the published ones, in a sentence."""
        kinds = Counter(row.agrees for row in self.rows if row.words_here)
        words = {True: "as published", False: "otherwise", None: "which the published runs leave open"}
        total = sum(kinds.values())
        said = f"They decide {total} claim{'s' * (total != 1)}"
        if len(kinds) == 1:
            return f"{said}, {'all ' * (total > 1)}{words[next(iter(kinds))]}."
        listed = ", ".join(f"{kinds[kind]} {words[kind]}" for kind in words if kinds[kind])
        return f"{said}: {listed}." if listed else f"{said}."

    @property
    def open_here(self) -> Counter[str]:
        """Which rule leaves how many claims open on this machine."""
        open_rows = ((part, row) for part in self.ran for row in part.rows)
        return Counter(
            _rule(part.section, row.claim) for part, row in open_rows if row.here and row.here.verdict == NOT_DECIDED
        )


def _rule(section: Section, claim: Claim) -> str:
    if section.results is None:
        return ""
    own = section.results.where(claim.needs)
    if not own.wanted:
        return "nothing to run in this profile"
    return next((rule.name for rule in RULES if rule.reason(claim, own)), "no clear difference")


def decided(verdict: Verdict) -> bool:
    """Return whether a verdict says yes or no."""
    return verdict.verdict not in (NOT_DECIDED, NOT_RUN)


def reason_of(verdict: Verdict) -> str:
    """Return why a claim is open, without what was found so far.

    >>> reason_of(Verdict("a", "not decided", "Only 1 seed was run. So far: a is larger."))
    'Only 1 seed was run.'
    """
    return verdict.sentence.partition(" So far:")[0]


def common_reason(rows: Iterable[Row]) -> str:
    """Return the reason that all rows share; empty if they do not."""
    reasons = {reason_of(row.published) for row in rows}
    return reasons.pop() if len(reasons) == 1 else ""


def _png(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _drawn(picture: Picture, name: str) -> Version:
    """Draw a figure: as SVG, which stays sharp, or as a PNG where that is much smaller."""
    width, height = (round(110 * inches) for inches in picture.figure.get_size_inches())
    # A picture in a page needs a size of its own, or a column as wide as its picture has no width.
    svg = to_svg(picture.figure, name).replace("<svg", f'<svg width="{width}" height="{height}"', 1).encode()
    sharp = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    address = sharp if len(svg) < LARGE_SVG else _png(to_png(picture.figure))
    return Version("here", address, width, height, picture.caption)


def prose(text: str) -> "Markup":
    """Return text for a page: escaped, with the two marks that our captions use, *stress* and `code`.

    >>> str(prose("a *b* <c> `d`"))
    'a <em>b</em> &lt;c&gt; <code>d</code>'
    """
    from markupsafe import Markup, escape

    safe = str(escape(text))
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return Markup(re.sub(r"(?<![\w*])\*(\w[^*]*)\*(?!\w)", r"<em>\1</em>", safe))


def render(report: Report) -> str:
    """Return the report as one HTML file that fetches nothing and runs no script but its own."""
    with needs("figures"):
        from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("harmax_lab.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": format_number,
        "said_and_rule": said_and_rule,
        "machine": describe_environment,
        "reason": common_reason,
        "prose": prose,
        "kebab": lambda words: words.replace(" ", "-"),
    }
    style, script = (files("harmax_lab.report").joinpath(name).read_text(encoding="utf-8") for name in ASSETS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = Page(report, tuple(map(Part, report.sections)))
    return environment.get_template("template.html.j2").render(
        page=page, report=report, style=style, script=script, script_digest=digest, verdicts=VERDICTS
    )


ASSETS = ("report.css", "report.js")
