"""The language models that `harmax geometry` measures: their vocabularies, and the word pairs these know."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from harmax.data.folder import find_data
from harmax.data.words import SAMPLE_PAIRS, WORD_TASKS, encode_pairs, load_pairs
from harmax.errors import needs
from harmax_lab.language import embedding

Pairs = Mapping[str, Sequence[tuple[str, str]]]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True)
class Subject:
    """A model to be measured: its vocabulary, an encoding that adds no tokens of its own, and the pairs this knows."""

    name: str
    """Short, and different from the others'."""
    model: str
    vocabulary: str
    """Where it comes from, in words."""
    n_vocab: int
    to_tokens: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    unknown: int | None = None
    """The token of every word that the vocabulary lacks."""
    pairs: Pairs = field(default_factory=dict)

    def spell(self, text: str) -> list[int]:
        """Return the tokens of a text, none where it is not known."""
        tokens = self.to_tokens(text)
        return [] if self.unknown in tokens else tokens

    def encode(self, text: str, /) -> list[int]:
        """Return the tokens of a text; one that is not known still has a token, so that a list of words has rows."""
        return self.spell(text) or [self.unknown or 0]

    def spell_pairs(self) -> list[tuple[str, list[list[int]]]]:
        """Return the tokens of every task's words: models that have the same are looked at on the same quadruples."""
        return [(task, [self.spell(word) for pair in both for word in pair]) for task, both in self.pairs.items()]


def short_names(models: Sequence[str]) -> list[str]:
    """Return the ends of paths, as short as they stay different.

    >>> short_names(["runs/a/model", "runs/b/model", "gpt2"]), short_names(["openai-community/gpt2"])
    (['a/model', 'b/model', 'gpt2'], ['gpt2'])
    """
    parts = [PurePath(model).parts or (model,) for model in models]
    tails = (["/".join(one[-length:]) for one in parts] for length in range(1, 1 + max(map(len, parts))))
    return next((names for names in tails if len(set(names)) == len(names)), list(models))


def read_pairs(tasks: Sequence[str]) -> tuple[dict[str, Sequence[tuple[str, str]]], str]:
    """Return word pairs by task and where they come from: the data folder, or with a notice those within harmax."""
    data = find_data()
    there = data is not None and (data / "function_vectors").is_dir()
    if there or not all(task in SAMPLE_PAIRS for task in tasks):  # without a folder its own error says what to do
        return {task: load_pairs(task) for task in tasks or WORD_TASKS}, "function_vectors"
    notice("no data folder with word pairs: eight embedded pairs a task; HARMAX_DATA names a folder with more.")
    return {task: SAMPLE_PAIRS[task] for task in tasks or SAMPLE_PAIRS}, "embedded"


def check_pairs(subjects: Sequence[Subject], pairs: Pairs, quadruples: int, seed: int) -> None:
    """Refuse tasks of which a vocabulary leaves no quadruple, and say what it leaves out of others."""
    empty: dict[str, str] = {}
    for subject in subjects:
        for task, known in subject.pairs.items():
            try:
                tokens_P2 = encode_pairs(known, subject) if known else np.empty((0, 2))
                embedding.draw_quadruples(tokens_P2, quadruples, seed)
            except ValueError:
                empty.setdefault(task, f"{subject.name} knows {len(known)} of {len(pairs[task])}")
        known_pairs, all_pairs = (sum(map(len, some.values())) for some in (subject.pairs, pairs))
        if known_pairs < all_pairs:
            notice(f"{subject.name} knows both words of {known_pairs} of {all_pairs} pairs; the others are left out.")
    if empty:
        left = [task for task in pairs if task not in empty]
        raise ValueError(
            "every task must have pairs whose words end in different tokens, three or more, got too few for "
            f"{'; '.join(f'{task} ({words})' for task, words in empty.items())}; "
            + (f"choose among the others: --tasks {' '.join(left)}." if left else "give the model its own tokenizer.")
        )


def load_config(model: str) -> Any:
    """Return the configuration of a causal model, in a folder or on the Hub, or say why there is none."""
    with needs("hf"):
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    import harmax.hf
    import harmax.train.language.gaussian  # noqa: F401  (both tell transformers about models of ours)

    folder = Path(model)
    is_name = not folder.exists() and re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", model)
    if not is_name and not (folder / "config.json").is_file():
        inside = folder / "model"
        better = str(inside) if (inside / "config.json").is_file() else "one that `save_pretrained` wrote"
        raise ValueError(
            f"MODEL must be a folder with a config.json, or a name of the Hub, got {model!r}, which is neither; name "
            f"{better}."
        )
    with loading(model):
        config = AutoConfig.from_pretrained(model)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"MODEL must be a causal language model, got {model!r} of type {config.model_type}; name one that "
            "AutoModelForCausalLM loads."
        )
    return config.get_text_config()


def load_tokenizer(model: str, name: str) -> "Subject | None":
    """Return a model with the vocabulary of the tokenizer that lies beside it, None where there is none."""
    from transformers import AutoTokenizer

    folder = Path(model)
    if folder.is_dir() and not any((folder / file).is_file() for file in TOKENIZER_FILES):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, KeyError, ImportError) as error:
        notice(f"{name} is read with GPT-2's BPE, because its own tokenizer does not load ({_words(error)}).")
        return None
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        return None  # transformers makes up an empty one where there is none
    return Subject(
        name,
        model,
        "its own tokenizer",
        max(tokenizer.get_vocab().values()) + 1,
        partial(tokenizer.encode, add_special_tokens=False),
        lambda tokens: str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False)),
        tokenizer.unk_token_id,
    )


@contextmanager
def loading(model: str) -> Iterator[None]:
    """Say in one line why transformers does not load a model."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"MODEL must be what AutoModelForCausalLM loads, got {model!r} ({_words(error)}); name a whole folder, or "
            "one of the Hub that can be reached."
        ) from error


def _words(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def notice(words: str) -> None:
    """Say something on standard error."""
    print(f"harmax: {words}", file=sys.stderr, flush=True)
