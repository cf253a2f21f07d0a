"""The configuration of a GPT-2 with a harmonic head."""

import math
from typing import Any

from harmax.errors import needs
from harmax.functional import check_softening, resolve_exponent
from harmax.heads.scale import check_scale

with needs("hf"):
    from transformers import GPT2Config


class HarmonicGPT2Config(GPT2Config):
    """GPT-2's configuration, with the settings of the harmonic head.

    `vocab_size` is the number of tokens and the width of the logits. Embedding and head have `padded_vocab_size` rows.
    The rows beyond the tokens are padding and have no effect.

    Args:
        exponent: n, the power of the distance; None means sqrt(n_embd). If it is learned, this is its initial value.
        learn_exponent: whether the exponent is a parameter of the head (`lm_head.log_exponent`).
        softening: a, added to the squared distance.
        scale: c, the factor on the features; None means that the first batch of training decides. Configurations that
            were saved without it have 1.
        prior: whether tokens have a learned log-weight.
        pad_vocab_to_multiple_of: the number of rows of embedding and head is a multiple of this; 1 adds no padding.
        settings: any argument of `transformers.GPT2Config`. `tie_word_embeddings=False` separates the head from the
            embedding.

    >>> config = HarmonicGPT2Config()
    >>> config.vocab_size, config.padded_vocab_size, round(config.resolved_exponent, 2)
    (50257, 50304, 27.71)
    """

    model_type = "harmonic_gpt2"

    exponent: float | int | None = None
    learn_exponent: bool = False
    softening: float | int = 0.0
    scale: float | int | None = None
    prior: bool = False
    pad_vocab_to_multiple_of: int = 64

    def __post_init__(self, **settings: Any) -> None:
        resolve_exponent(self.exponent, self.n_embd)
        check_softening(self.softening)
        check_scale(self.scale)
        check_multiple(self.pad_vocab_to_multiple_of)
        super().__post_init__(**settings)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **settings: Any) -> Any:
        """Build a configuration from what a config.json holds."""
        return super().from_dict(read_kernel(config_dict, "exponent", "scale"), **settings)

    @property
    def padded_vocab_size(self) -> int:
        """Number of rows of the embedding and of the head: the tokens, then padding up to a multiple."""
        multiple = self.pad_vocab_to_multiple_of
        return math.ceil(self.vocab_size / multiple) * multiple

    @property
    def resolved_exponent(self) -> float:
        """The exponent, or sqrt(n_embd) if it is None."""
        return float(resolve_exponent(self.exponent, self.n_embd))


def read_kernel(stored: dict[str, Any], exponent: str, scale: str) -> dict[str, Any]:
    """Return what a config.json holds about a head; refuse one without an exponent, and fill in a missing scale.

    Args:
        stored: the file.
        exponent: the key of the exponent. Its value may be null, which means the square root of the width.
        scale: the key of the scale. Models that were saved without it take their features as they are.
    """
    if exponent not in stored:
        raise ValueError(
            f"config.json of a harmonic model must have `{exponent}`, got none, so its probabilities are not known; "
            "add the exponent that it was trained with (null means the square root of the width)."
        )
    return {**stored, scale: stored.get(scale, 1.0)}


def check_multiple(multiple: int) -> int:
    """Return the multiple; refuse anything but a whole number of at least 1."""
    if not isinstance(multiple, int) or multiple < 1:
        raise ValueError(
            f"`pad_vocab_to_multiple_of` must be a whole number of at least 1, got {multiple!r}; 1 adds no padding."
        )
    return multiple
