"""What the two trained GPT-2s are measured on, and how: word pairs in embedding and layers, probes of sentences."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harmax.data.folder import find_data
from harmax.data.glue import GLUE_TASKS, Sentences, load_glue
from harmax.data.text import load_encoding
from harmax.data.words import SAMPLE_PAIRS, WORD_TASKS, Encoding, load_pairs
from harmax_lab.kit.experiment import Progress

if TYPE_CHECKING:
    from harmax_lab.language.gpt2 import LanguageSpec

MADE_UP = {"train": 96, "dev": 48}  # sentences that stand in for SST-2 and CoLA
SEED = 0  # the same for both arms, so that they are measured on the same quadruples and with the same probes


class Words(NamedTuple):
    """Word pairs by task, labeled sentences by data set (to train on, to score on), and the encoding of both."""

    pairs: Mapping[str, Sequence[tuple[str, str]]]
    sentences: Mapping[str, tuple[Sentences, Sentences]]
    encoding: Encoding


def read_words(spec: "LanguageSpec") -> Words:
    """Read what a spec measures on from the data folder, or take what is embedded."""
    if not spec.embedded:
        pairs = {task: load_pairs(task) for task in spec.tasks or WORD_TASKS}
        sentences = {name: (load_glue(name, "train"), load_glue(name, "dev")) for name in GLUE_TASKS}
        data = find_data()
        return Words(pairs, sentences, load_encoding(None if data is None else data / "gpt2_bpe"))
    from harmax_lab.language.probing import made_up_sentences

    sides = made_up_sentences(MADE_UP["train"], seed=0), made_up_sentences(MADE_UP["dev"], seed=1)
    return Words(SAMPLE_PAIRS, dict.fromkeys(GLUE_TASKS, sides), WholeWords(spec.vocab))


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


def measure_model(
    spec: "LanguageSpec", folder: Path, words: Words, *, device: str, progress: Progress
) -> dict[str, np.ndarray]:
    """Measure a trained model that lies in a folder of transformers: its embedding, its layers, its probes."""
    from harmax.inspect import embedding_of, load_language_model, measure_embedding, measure_layers
    from harmax_lab.language.probing import measure_probes

    def part(start: float, end: float) -> Progress:
        return lambda fraction, message="", /: progress(start + (end - start) * fraction, message)

    model = load_language_model(folder)
    pairs, sentences, encoding = words
    embedding = embedding_of(model, tokens=spec.vocab)
    drawn = {"quadruples": spec.quadruples, "seed": SEED}
    return {
        **measure_embedding(embedding, pairs, encoding, **drawn, progress=part(0, 0.3)),
        **measure_layers(model, pairs, encoding, layers=spec.layers, **drawn, device=device, progress=part(0.3, 0.5)),
        **measure_probes(
            model,
            sentences,
            encoding,
            layers=spec.probe_layers,
            seeds=range(spec.probe_seeds),
            device=device,
            most_sentences=spec.probe_sentences or None,
            progress=part(0.5, 1.0),
        ),
    }
