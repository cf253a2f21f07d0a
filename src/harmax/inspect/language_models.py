"""Load causal language models and their vocabularies for measuring. Code that comes with a model is never run."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.data.words import encode_pairs
from harmax.errors import needs
from harmax.inspect.embedding import Pairs, draw_quadruples

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Notice = Callable[[str], None]
"""Takes a sentence that the user should read."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
MOST_PADDING = 1024  # padding rows of a model whose own tokenizer is not there


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokenizer that adds no tokens of its own."""

    origin: str
    """Where it comes from, in words."""
    n_vocab: int
    to_tokens: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    unknown: int | None = None
    """The token of every word that the vocabulary lacks."""

    def spell(self, text: str) -> list[int]:
        """Return the tokens of a text, or none if the vocabulary lacks a part of it."""
        tokens = self.to_tokens(text)
        return [] if self.unknown in tokens else tokens

    def encode(self, text: str, /) -> list[int]:
        """Return the tokens of a text, and for a text that the vocabulary lacks some token, never none."""
        return self.spell(text) or [self.unknown or 0]

    def known(self, pairs: Pairs) -> dict[str, list[tuple[str, str]]]:
        """Return the pairs of which the vocabulary has both words."""
        return {task: [pair for pair in both if all(map(self.spell, pair))] for task, both in pairs.items()}

    def spell_pairs(self, pairs: Pairs) -> list[tuple[str, list[list[int]]]]:
        """Return the tokens of all words. Models for which these are equal are measured on the same quadruples."""
        return [(task, [self.spell(word) for pair in both for word in pair]) for task, both in pairs.items()]


def load_config(model: str) -> Any:
    """Return the text configuration of a causal language model: a folder, or a name on the Hugging Face Hub."""
    with needs("hf"):
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig
    _register_own_models()
    folder = Path(model)
    is_name = not folder.exists() and re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", model)
    if not is_name and not (folder / "config.json").is_file():
        inside = folder / "model"
        better = str(inside) if (inside / "config.json").is_file() else "a folder that `save_pretrained` wrote"
        raise ValueError(
            f"MODEL must be a folder with a config.json, or a name on the Hugging Face Hub, got {model!r}; name "
            f"{better}."
        )
    with loading(model):
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"MODEL must be a causal language model, got {model!r} of type {config.model_type}; name one that "
            "AutoModelForCausalLM loads."
        )
    return config.get_text_config()


def load_vocabulary(model: str, size: int, fallback: Callable[[], Any], notice: Notice) -> Vocabulary:
    """Return the vocabulary of a model: its own tokenizer's, or a byte-pair encoding if there is none beside it.

    Args:
        model: a folder, or a name on the Hugging Face Hub.
        size: the number of tokens in the model's configuration, padding included.
        fallback: loads a tiktoken encoding. It is called only if the model has no tokenizer of its own.
        notice: receives a sentence if the model's own tokenizer cannot be loaded.
    """
    found, room = _own_vocabulary(model, notice), size
    if found is None:
        encoding = fallback()
        found = Vocabulary("GPT-2's BPE", encoding.n_vocab, encoding.encode, encoding.decode)
        room = MOST_PADDING  # a model with many more tokens has another vocabulary
    if not 0 <= size - found.n_vocab <= room:
        raise ValueError(
            f"a vocabulary must fit the {size} tokens of {model}, got {found.origin} with {found.n_vocab}; save the "
            "model's own tokenizer beside it, or name its byte-pair encoding (--vocabulary)."
        )
    return found


def _own_vocabulary(model: str, notice: Notice) -> Vocabulary | None:
    from transformers import AutoTokenizer

    folder = Path(model)
    if folder.is_dir() and not any((folder / file).is_file() for file in TOKENIZER_FILES):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        notice(f"the tokenizer of {model} does not load ({_first_line(error)}); GPT-2's BPE is used instead.")
        return None
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        return None  # transformers makes up an empty tokenizer if there is none
    return Vocabulary(
        "its own tokenizer",
        max(tokenizer.get_vocab().values()) + 1,
        partial(tokenizer.encode, add_special_tokens=False),
        lambda tokens: str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False)),
        tokenizer.unk_token_id,
    )


def load_language_model(model: Path | str) -> "PreTrainedModel":
    """Load a causal language model of transformers in evaluation mode: a folder, or a name on the Hugging Face Hub.

    Harmonic models of harmax are loaded as well. Code that comes with a model is never run.
    """
    with needs("hf"):
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
    _register_own_models()
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # it would write into the caller's own progress line
    try:
        return AutoModelForCausalLM.from_pretrained(model, trust_remote_code=False).eval()
    finally:
        if shown:
            logging.enable_progress_bar()


def _register_own_models() -> None:
    import harmax.hf
    import harmax.train.language.gaussian  # noqa: F401  (both register harmax's models with transformers)


@contextmanager
def loading(model: str) -> Iterator[None]:
    """Turn an error of transformers into a ValueError of one line that names the model."""
    from safetensors import SafetensorError  # comes with transformers

    try:
        yield
    except (OSError, ValueError, TypeError, RuntimeError, MemoryError, SafetensorError) as error:
        raise ValueError(
            f"MODEL must be one that AutoModelForCausalLM loads, got {model!r} ({_first_line(error)}); name a complete "
            "folder, or a name on the Hugging Face Hub if it can be reached."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def check_pairs(
    known: Mapping[str, tuple[Vocabulary, Pairs]], pairs: Pairs, *, quadruples: int, seed: int, notice: Notice
) -> None:
    """Refuse tasks for which a vocabulary leaves no quadruple, and report how many pairs it lacks.

    Args:
        known: by model, its vocabulary and the pairs that it knows.
        pairs: all pairs by task.
        quadruples: at most this many per task.
        seed: of the draws.
        notice: receives a sentence for each vocabulary that lacks some of the words.
    """
    empty: dict[str, str] = {}
    for name, (vocabulary, some) in known.items():
        for task, both in some.items():
            try:
                tokens_P2 = encode_pairs(both, vocabulary) if both else np.empty((0, 2))
                draw_quadruples(tokens_P2, quadruples, seed)
            except ValueError:
                empty.setdefault(task, f"{name} knows {len(both)} of {len(pairs[task])}")
        of_model, total = (sum(map(len, one.values())) for one in (some, pairs))
        if of_model < total:
            notice(f"{name} knows both words of {of_model} of {total} pairs; the others are left out.")
    if empty:
        left = [task for task in pairs if task not in empty]
        raise ValueError(
            "every task must have three or more pairs whose words end in different tokens, got too few for "
            f"{'; '.join(f'{task} ({words})' for task, words in empty.items())}; "
            + (f"choose among the others: --tasks {' '.join(left)}." if left else "give the model its own tokenizer.")
        )


def short_names(models: Sequence[str]) -> list[str]:
    """Return the ends of paths, as short as possible while they differ.

    >>> short_names(["runs/a/model", "runs/b/model", "gpt2"]), short_names(["openai-community/gpt2"])
    (['a/model', 'b/model', 'gpt2'], ['gpt2'])
    """
    parts = [Path(model).parts or (model,) for model in models]
    tails = (["/".join(one[-length:]) for one in parts] for length in range(1, 1 + max(map(len, parts))))
    return next((names for names in tails if len(set(names)) == len(names)), list(models))
