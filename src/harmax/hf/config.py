"""Configurations of harmonic models: those of transformers, with the settings of the head."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from os import PathLike
from typing import Any, ClassVar

from harmax.errors import needs
from harmax.functional import check_softening, resolve_exponent
from harmax.heads.scale import check_scale

with needs("hf"):
    from transformers import GPT2Config

PREFIX = "harmonic_"
"""What stands before the model type of transformers, and before each key of the head."""

NOTE = "a harmonic model of harmax: run `import harmax.hf`, then load it with an Auto class"
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation", "ff_activation", "afn")
"""Where configurations of transformers name a function, which a plain model looks up when it is built."""

SHORT = {"exponent", "softening", "scale", "prior"}
"""Names of the head's settings without the prefix, which GPT-2 also takes."""

Base: Any = object  # the configurations of transformers, of which it is mixed into one


def once(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that makes something from a class and keeps it."""
    return functools.cache(make)


class HarmonicConfig(Base):
    """What the configurations of all harmonic models share.

    Args:
        harmonic_exponent: n, the power of the distance; None means the square root of the head's width. A model writes
            the number here.
        harmonic_softening: a, added to the squared distance.
        harmonic_scale: c, the factor on the features; None means that it is still to be found.
        harmonic_prior: whether classes have a learned log-weight; None means: where the plain head has a bias.
        settings: any argument of the configuration of transformers.
    """

    harmonic_exponent: float | None
    harmonic_softening: float
    harmonic_scale: float | None
    harmonic_prior: bool | None

    as_harmonized: ClassVar[dict[str, Any]] = {}
    """What the configuration of a model that is harmonized has beside the settings of its head."""
    auto_map: ClassVar[dict[str, str]] = {}
    """TRL asks for it before it loads a class that transformers does not have by an Auto class."""

    def __post_init__(self, **settings: Any) -> None:
        try:
            resolve_exponent(self.harmonic_exponent, 1)
            check_softening(self.harmonic_softening)
            check_scale(self.harmonic_scale)
        except (TypeError, ValueError) as error:
            raise type(error)(str(error).replace("`", f"`{PREFIX}", 1)) from None  # as the key is written here
        super().__post_init__(**settings)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **settings: Any) -> Any:
        """Build a configuration from what a config.json holds."""
        return super().from_dict(cls._readable(config_dict), **settings)

    @classmethod
    def _readable(cls, stored: dict[str, Any]) -> dict[str, Any]:
        stored = {**stored, **read_kernel(stored, "harmonic_exponent", "harmonic_scale")}
        if stored["harmonic_exponent"] is None:
            raise ValueError(missing_exponent("harmonic_exponent", "null"))
        return open_to_all(stored)

    def to_json_file(self, json_file_path: str | PathLike[str], use_diff: bool = True) -> None:
        """Write config.json such that no plain model of transformers can be built from it.

        A class such as LlamaForCausalLM would only warn that the model type is another one, and then compute inner
        products. So the names of functions stand under other keys, and a note in their place stops it.
        """
        stored = closed_to_plain(json.loads(self.to_json_string(use_diff=use_diff)))
        with open(json_file_path, "w", encoding="utf-8") as file:
            file.write(json.dumps(stored, indent=2, sort_keys=True) + "\n")


class HarmonicGPT2Config(HarmonicConfig, GPT2Config):
    """GPT-2's configuration, with the settings of the harmonic head.

    `vocab_size` is the number of tokens and the width of the logits. Embedding and head have `padded_vocab_size` rows.
    The rows beyond the tokens are padding and have no effect.

    Args:
        harmonic_exponent: n, the power of the distance; None means sqrt(n_embd). If it is learned, this is its initial
            value.
        learn_exponent: whether the exponent is a parameter of the head (`lm_head.log_exponent`).
        harmonic_softening: a, added to the squared distance.
        harmonic_scale: c, the factor on the features; None means that the initial weights decide.
        harmonic_prior: whether tokens have a learned log-weight.
        pad_vocab_to_multiple_of: the number of rows of embedding and head is a multiple of this; 1 adds no padding.
        settings: any argument of `transformers.GPT2Config`. `tie_word_embeddings=False` separates the head from the
            embedding. `exponent`, `softening`, `scale` and `prior` are short names of the settings above.

    >>> config = HarmonicGPT2Config()
    >>> config.vocab_size, config.padded_vocab_size, round(config.exponent, 2)
    (50257, 50304, 27.71)
    """

    model_type = "harmonic_gpt2"
    attribute_map: ClassVar[dict[str, str]] = {**GPT2Config.attribute_map, **{key: PREFIX + key for key in SHORT}}
    as_harmonized: ClassVar[dict[str, Any]] = {"learn_exponent": False, "pad_vocab_to_multiple_of": 1}

    harmonic_exponent: float | int | None = None
    harmonic_softening: float | int = 0.0
    harmonic_scale: float | int | None = None
    harmonic_prior: bool | None = None
    learn_exponent: bool = False
    pad_vocab_to_multiple_of: int = 64

    def __post_init__(self, **settings: Any) -> None:
        for key in SHORT & settings.keys():
            setattr(self, key, settings.pop(key))
        self.harmonic_exponent = float(resolve_exponent(self.harmonic_exponent, self.n_embd))
        check_multiple(self.pad_vocab_to_multiple_of)
        super().__post_init__(**settings)

    @classmethod
    def _readable(cls, stored: dict[str, Any]) -> dict[str, Any]:
        if "exponent" not in stored:
            return super()._readable(stored)
        stored = read_kernel(stored, "exponent", "scale")  # saved before all models had harmonic ones
        return {(PREFIX + key if key in SHORT else key): value for key, value in stored.items()}

    @property
    def padded_vocab_size(self) -> int:
        """Number of rows of the embedding and of the head: the tokens, then padding up to a multiple."""
        multiple = self.pad_vocab_to_multiple_of
        return math.ceil(self.vocab_size / multiple) * multiple


def closed_to_plain(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with notes in the places of functions, also in the configurations inside it."""
    stored = {key: closed_to_plain(value) if isinstance(value, dict) else value for key, value in config.items()}
    for key in ACTIVATIONS:
        if isinstance(stored.get(key), str):
            stored[PREFIX + key], stored[key] = stored[key], NOTE
    return stored


def open_to_all(stored: dict[str, Any]) -> dict[str, Any]:
    """Return what a config.json holds, with the names of functions under the keys of transformers.

    >>> open_to_all(closed_to_plain({"vision_config": {"hidden_act": "gelu"}}))
    {'vision_config': {'hidden_act': 'gelu'}}
    """
    names = {key: stored[PREFIX + key] for key in ACTIVATIONS if PREFIX + key in stored}
    others = {key: value for key, value in stored.items() if key.removeprefix(PREFIX) not in names}
    config = {key: open_to_all(value) if isinstance(value, dict) else value for key, value in others.items()}
    return {**config, **names}


@once
def harmonic_config(plain: type[Any]) -> type[Any]:
    """Return the harmonic subclass of a configuration of transformers.

    >>> from transformers import LlamaConfig
    >>> harmonic_config(LlamaConfig).model_type
    'harmonic_llama'
    """
    if plain is GPT2Config:
        return HarmonicGPT2Config
    name = plain.__name__
    kinds = "float | int | None", "float | int", "float | int | None", "bool | None"
    fields = dict(zip(("exponent", "softening", "scale", "prior"), kinds, strict=True))
    contents: dict[str, Any] = {
        "__doc__": f"{name} of transformers, with the settings of a harmonic head; see `harmax.hf.config`.",
        "__module__": "harmax.hf",
        "__annotations__": {f"{PREFIX}{key}": kind for key, kind in fields.items()},
        "model_type": PREFIX + plain.model_type,
        **{f"{PREFIX}{key}": 0.0 if key == "softening" else None for key in fields},
    }
    return type(f"Harmonic{name}", (HarmonicConfig, plain), contents)


def read_kernel(stored: dict[str, Any], exponent: str, scale: str) -> dict[str, Any]:
    """Return what a config.json holds about a head; refuse one without an exponent, and fill in a missing scale.

    Args:
        stored: the file.
        exponent: the key of the exponent. Its value may be null, which means the square root of the width.
        scale: the key of the scale. Models that were saved without it take their features as they are.
    """
    if exponent not in stored:
        raise ValueError(missing_exponent(exponent, "none"))
    return {**stored, scale: stored.get(scale, 1.0)}


def missing_exponent(key: str, found: str) -> str:
    """Return the error message for a config.json without an exponent."""
    return (
        f"config.json of a harmonic model must have a number as `{key}`, got {found}, so its probabilities are not "
        "known; add the exponent that it was trained with."
    )


def check_multiple(multiple: int) -> int:
    """Return the multiple; refuse anything but a whole number of at least 1."""
    if not isinstance(multiple, int) or multiple < 1:
        raise ValueError(
            f"`pad_vocab_to_multiple_of` must be a whole number of at least 1, got {multiple!r}; 1 adds no padding."
        )
    return multiple
