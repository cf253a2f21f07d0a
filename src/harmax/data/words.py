"""Word pairs of one relation each: the twelve tasks of the paper's parallelograms, and the tokens they become.

The lists come from the function-vectors project (Todd et al. 2024), in `function_vectors/` of the data folder.

>>> SAMPLE_PAIRS["present-past"][0]
('load', 'loaded')
"""

# W words, P pairs

import json
import os
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from harmax.data.folder import read_text
from harmax.errors import DamagedError, unknown

WORD_TASKS = (
    "antonym",
    "capitalize",
    "country-capital",
    "english-french",
    "english-german",
    "english-spanish",
    "next_item",
    "present-past",
    "prev_item",
    "singular-plural",
    "synonym",
    "word_length",
)
"""The paper's twelve tasks."""

SAMPLE_PAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    "capitalize": (
        ("house", "House"),
        ("river", "River"),
        ("green", "Green"),
        ("music", "Music"),
        ("paper", "Paper"),
        ("water", "Water"),
        ("black", "Black"),
        ("north", "North"),
    ),
    "present-past": (
        ("load", "loaded"),
        ("call", "called"),
        ("open", "opened"),
        ("start", "started"),
        ("turn", "turned"),
        ("form", "formed"),
        ("link", "linked"),
        ("play", "played"),
    ),
    "singular-plural": (
        ("book", "books"),
        ("hand", "hands"),
        ("field", "fields"),
        ("image", "images"),
        ("point", "points"),
        ("word", "words"),
        ("line", "lines"),
        ("file", "files"),
    ),
}
"""A few pairs of three of the tasks, for work without the data folder; every word is one token of GPT-2's."""


class Encoding(Protocol):
    """Anything that turns a text into token ids and adds none of its own: tiktoken's encodings, for example."""

    def encode(self, text: str, /) -> list[int]:
        """Return the tokens of a text."""
        ...


def load_pairs(task: str, folder: str | os.PathLike[str] | None = None) -> list[tuple[str, str]]:
    """Read the word pairs of one task, in the file's order.

    Blanks around a word (three of the German ones have some) are removed: a blank would be the word's last token.

    Args:
        task: one of `WORD_TASKS`.
        folder: the data folder, which holds `function_vectors/`; None: HARMAX_DATA, else ../shared/data.
    """
    if task not in WORD_TASKS:
        raise ValueError(unknown("task", task, WORD_TASKS))
    name = f"function_vectors/{task}.json"
    try:
        rows = json.loads(read_text(name, folder))
    except json.JSONDecodeError as error:
        raise DamagedError(f"{name} must be JSON, got {error}; fetch it again.") from error
    if not isinstance(rows, list) or not rows:
        raise DamagedError(f"{name} must be a list of word pairs, got {type(rows).__name__}; fetch it again.")
    return [_pair(name, place, row) for place, row in enumerate(rows)]


def encode_words(words: Iterable[str], encoding: Encoding) -> np.ndarray:
    """Return the last token of each word, written without a blank before it, (W,) int64.

    Words of several tokens thus share tokens with others: "unorthodox" ends as "orthodox" does.

    Args:
        words: without blanks around them.
        encoding: of the model whose embedding is looked at.

    >>> class Letters:
    ...     def encode(self, text):
    ...         return [ord(letter) for letter in text]
    >>> encode_words(["on", "off"], Letters())
    array([110, 102])
    """
    if isinstance(words, str):
        raise TypeError(f"`words` must be a list of words, got the text {words!r}; put it into a list.")
    tokens = []
    for word in words:
        found = encoding.encode(word)
        if not found:
            raise ValueError(f"`words` must have at least one token each, got none for {word!r}; leave it out.")
        tokens.append(found[-1])
    return np.array(tokens, dtype=np.int64)


def encode_pairs(pairs: Sequence[tuple[str, str]], encoding: Encoding) -> np.ndarray:
    """Return the last tokens of both words of each pair, (P, 2) int64: see `encode_words`."""
    return np.stack([encode_words([pair[side] for pair in pairs], encoding) for side in (0, 1)], axis=1)


def _pair(name: str, place: int, row: object) -> tuple[str, str]:
    words = [row.get(key) for key in ("input", "output")] if isinstance(row, dict) else []
    first, second = (word.strip() if isinstance(word, str) else "" for word in words or ("", ""))
    if not first or not second:
        raise DamagedError(
            f"{name} must hold an input and an output, both words, in every row, got {row!r} in row {place}; "
            "fetch it again."
        )
    return first, second
