"""The words and sentences that trained language models are measured on, and what stands in for them without data."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harmax.data.folder import find_data
from harmax.data.glue import GLUE_TASKS, Sentences, load_glue
from harmax.data.text import load_encoding
from harmax.data.words import SAMPLE_PAIRS, Encoding, load_pairs
from harmax_lab.language.probing import made_up_sentences

MADE_UP = (96, 48)  # sentences to train on and to score on that stand in for SST-2 and CoLA


class Words(NamedTuple):
    """Word pairs by task, labeled sentences by data set (to train on, to score on), and the encoding of both."""

    pairs: Mapping[str, Sequence[tuple[str, str]]]
    sentences: Mapping[str, tuple[Sentences, Sentences]]
    encoding: Encoding


def read_words(tasks: Sequence[str]) -> Words:
    """Read some word-pair tasks and both data sets of sentences from the data folder."""
    pairs = {task: load_pairs(task) for task in tasks}
    sentences = {name: (load_glue(name, "train"), load_glue(name, "dev")) for name in GLUE_TASKS}
    data = find_data()
    return Words(pairs, sentences, load_encoding(None if data is None else data / "gpt2_bpe"))


def embedded_words(vocab: int) -> Words:
    """Return the embedded word pairs and made-up sentences, which stand in for these."""
    train, dev = (made_up_sentences(count, seed) for seed, count in enumerate(MADE_UP))
    return Words(SAMPLE_PAIRS, dict.fromkeys(GLUE_TASKS, (train, dev)), WholeWords(vocab))


class WholeWords:
    """An encoding for tiny vocabularies: one token per word; each word of the embedded pairs has its own.

    >>> WholeWords(64).encode("house House house")
    [0, 1, 0]
    """

    def __init__(self, vocab: int) -> None:
        words = dict.fromkeys(word for pairs in SAMPLE_PAIRS.values() for pair in pairs for word in pair)
        if vocab <= len(words):
            raise ValueError(f"`vocab` must be larger than {len(words)}, the embedded words, got {vocab}; raise it.")
        self._vocab = vocab
        self._tokens = {word: token for token, word in enumerate(words)}

    def encode(self, text: str, /) -> list[int]:
        """Return one token per word; other words share the tokens that are left."""
        return [self._tokens.get(word, self._hashed(word)) for word in text.split()]

    def _hashed(self, word: str) -> int:
        number = int(hashlib.sha256(word.encode()).hexdigest()[:12], 16)
        return len(self._tokens) + number % (self._vocab - len(self._tokens))
