"""Word pairs with one relation per task: the twelve tasks of the paper's parallelograms, and their tokens.

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
"""Some pairs of three tasks, for use without the data folder. Every word is one token of GPT-2."""


class Encoding(Protocol):
    """Any object that turns a text into token ids without adding special tokens, such as an encoding of tiktoken."""

    def encode(self, text: str, /) -> list[int]:
        """Return the tokens of a text."""
        ...


def load_pairs(task: str, folder: str | os.PathLike[str] | None = None) -> list[tuple[str, str]]:
    """Return the word pairs of one task, in the order of the file.

    Blanks around a word are removed, because a trailing blank would be the word's last token.

    Args:
        task: one of `WORD_TASKS`.
        folder: the data folder with `function_vectors/`; None means HARMAX_DATA, else ../shared/data.
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
    """Return the last token of each word, encoded without a blank before it, (W,) int64.

    Words of several tokens can therefore share a token: "unorthodox" and "orthodox" end alike.

    Args:
        words: words without blanks around them.
        encoding: the encoding of the model whose embedding is analyzed.

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
            raise ValueError(f"each of `words` must have at least one token, got none for {word!r}; leave it out.")
        tokens.append(found[-1])
    return np.array(tokens, dtype=np.int64)


def encode_pairs(pairs: Sequence[tuple[str, str]], encoding: Encoding) -> np.ndarray:
    """Return the last tokens of both words of each pair, (P, 2) int64, as `encode_words` does."""
    return np.stack([encode_words([pair[side] for pair in pairs], encoding) for side in (0, 1)], axis=1)


def _pair(name: str, place: int, row: object) -> tuple[str, str]:
    words = [row.get(key) for key in ("input", "output")] if isinstance(row, dict) else []
    first, second = (word.strip() if isinstance(word, str) else "" for word in words or ("", ""))
    if not first or not second:
        raise DamagedError(
            f"{name} must have an input word and an output word in every row, got {row!r} in row {place}; "
            "fetch it again."
        )
    return first, second
