"""What the paper says, sentence by sentence, and how its words are read.

`sentences.csv` lists every sentence of "Harmonic Loss Trains Interpretable AI Models" (arXiv 2502.01628) that claims
something, by its place, its number there and at most twelve of its words. A place is a section, an appendix or a
caption. A sentence has entries, the claims of experiments that name it, or it restates other sentences. Not listed are
definitions, settings of the paper's runs, motivation, and statements about other work.
"""

import csv
from importlib.resources import files
from typing import NamedTuple

MOST_WORDS = 12
"""Of a quote."""


class Sentence(NamedTuple):
    """A sentence of the paper that claims something."""

    place: str
    number: int
    words: str
    """At most `MOST_WORDS` of its words; "..." stands for what is left out."""
    restates: tuple[str, ...] = ()
    """Keys of other sentences that say the same in detail. Their verdicts are its verdicts."""

    @property
    def key(self) -> str:
        """The place and the number, such as "3.2/6"."""
        return f"{self.place}/{self.number}"

    @property
    def where(self) -> str:
        """The place in words: "Sec. 3.2", "App. C", "Fig. 5" or "Abstract"."""
        if self.place[0].isdigit():
            return f"Sec. {self.place}"
        return f"App. {self.place}" if self.place.partition(".")[0] in tuple("ABCDEFGH") else self.place


def _read() -> dict[str, Sentence]:
    text = files(__package__).joinpath("sentences.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    found = [Sentence(row["place"], int(row["number"]), row["words"], tuple(row["restates"].split())) for row in rows]
    return {sentence.key: sentence for sentence in found}


SENTENCES = _read()
"""By key, in the order of the paper."""


def quote(key: str) -> str:
    """Return a sentence's place and its words.

    >>> quote("3.2/11")
    'Sec. 3.2: "Only Harmonic MLP recovers the underlying tree representation."'
    """
    sentence = SENTENCES[key]
    return f'{sentence.where}: "{sentence.words}"'


def sources_of(key: str) -> tuple[str, ...]:
    """Return the sentences whose entries decide a sentence: itself, or those that it restates, also at second hand."""
    sentence = SENTENCES[key]
    if not sentence.restates:
        return (key,)
    return tuple(dict.fromkeys(source for other in sentence.restates for source in sources_of(other)))
