"""Places in the paper, such as "Fig. 4, right" or "Sec. 3.5": which experiments show them."""

import re
from typing import Any, NamedTuple

from harmax_lab.kit.experiment import Experiment

KINDS = {"f": "figure", "t": "table", "s": "section", "a": "appendix"}
PLACE = re.compile(
    r"\b(fig(?:ure|s)?|tab(?:le)?|sec(?:tion)?|app(?:endix)?)\b\.?\s*((?:[A-Z]\.)?\d+(?:\.\d+)*|[A-Z](?:\.\d+)*)"
    r"((?:\s*(?:,|and|;)?\s*(?:[a-d]\b|left|right))*)",
    re.IGNORECASE,
)
FURTHER = re.compile(r"\s*(?:,|and|&)\s*(\d+(?:\.\d+)*)((?:\s*,?\s*(?:[a-d]\b|left|right))*)")


class Place(NamedTuple):
    """A place in the paper: kind, number, and panels; no panels stand for all."""

    kind: str
    number: str
    panels: frozenset[str] = frozenset()

    def covers(self, other: "Place") -> bool:
        """Whether the two are of one figure, or of one section and a part of it, and have a panel in common."""
        if self.kind != other.kind:
            return False
        if self.kind in ("section", "appendix"):
            return other.number == self.number or other.number.startswith(self.number + ".")
        return self.number == other.number and not (self.panels and other.panels and not self.panels & other.panels)


def places_in(text: str) -> list[Place]:
    """Read the places that a text names.

    >>> [(one.kind, one.number, *one.panels) for one in places_in("Sec. 4; Fig. 4, right")]
    [('section', '4'), ('figure', '4', 'right')]
    >>> [one.number for one in places_in("App. E, Fig. 12 and 13")]
    ['E', '12', '13']
    """
    found, start = [], 0
    while (match := PLACE.search(text, start)) is not None:
        kind = KINDS[match[1][0].lower()]
        found.append(Place(kind, match[2].upper(), _panels(match[3])))
        start = match.end()
        while (more := FURTHER.match(text, start)) is not None:
            found.append(Place(kind, more[1], _panels(more[2])))
            start = more.end()
    return found


def shows(experiment: Experiment[Any, Any], wanted: list[Place]) -> bool:
    """Whether an experiment shows each of these places: by its figure, or by the sections that its claims quote."""
    own = places_in(experiment.figure)
    quoted = {key.rpartition("/")[0] for claim in experiment.claims for key in claim.sentences}
    own += [Place("appendix" if section[:1].isalpha() else "section", section) for section in sorted(quoted)]
    return all(any(one.covers(place) for place in own) for one in wanted)


def _panels(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\b(?:[a-d]|left|right)\b", text.lower()))
