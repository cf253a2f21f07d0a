"""Build a harmonic GPT-2 from an ordinary GPT-2, so that both arms of a comparison start from the same weights."""

import copy
from typing import Literal

from harmax.errors import needs
from harmax.heads.scale import check_start
from harmax.hf.config import HarmonicGPT2Config
from harmax.hf.gpt2 import HarmonicGPT2LMHeadModel, fit_rows

with needs("hf"):
    from transformers import GPT2Config, GPT2LMHeadModel


def from_gpt2(
    gpt2: GPT2LMHeadModel | GPT2Config,
    *,
    exponent: float | None = None,
    softening: float = 0.0,
    scale: float | None = None,
    learn_exponent: bool = False,
    pad_vocab_to_multiple_of: int = 64,
    start: Literal["factor", "gain"] = "factor",
) -> HarmonicGPT2LMHeadModel:
    """Return a harmonic GPT-2 with the weights of a GPT-2; each row of its head becomes a center.

    The weights are copied, so both models can be trained side by side. A head that was tied to the embedding is tied
    again. A model that was trained with inner products needs further training before it predicts well by distances.

    Args:
        gpt2: the model, or a configuration for a model with random weights.
        exponent, softening, scale, learn_exponent, pad_vocab_to_multiple_of: as in `HarmonicGPT2Config`.
        start: where the factor on the features goes, as in `harmonize`.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    >>> from_gpt2(gpt2, exponent=32).lm_head
    TokenHead(in_features=16, out_features=50, exponent=32, softening=0, scale=0.125)
    """
    ours = isinstance(gpt2, (HarmonicGPT2Config, HarmonicGPT2LMHeadModel))
    if ours or not isinstance(gpt2, (GPT2Config, GPT2LMHeadModel)):
        raise TypeError(
            f"`gpt2` must be a GPT2LMHeadModel or a GPT2Config of transformers, got {type(gpt2).__name__}; "
            "load a model with GPT2LMHeadModel.from_pretrained."
        )
    check_start(start, scale, softening)
    source = gpt2 if isinstance(gpt2, GPT2Config) else gpt2.config
    own = {"model_type", "architectures", "_name_or_path"}  # what it was loaded from has another head
    settings = {key: value for key, value in source.to_dict().items() if key not in own}
    config = HarmonicGPT2Config(
        **settings,
        harmonic_exponent=exponent,
        harmonic_softening=softening,
        harmonic_scale=scale,
        learn_exponent=learn_exponent,
        pad_vocab_to_multiple_of=pad_vocab_to_multiple_of,
    )
    # transformers has no public names for the attention that a model uses and for building a model that uses it.
    attention = source._attn_implementation
    if isinstance(gpt2, GPT2Config):
        built: HarmonicGPT2LMHeadModel = HarmonicGPT2LMHeadModel._from_config(config, attn_implementation=attention)
        return built.started(start)
    harmonic = HarmonicGPT2LMHeadModel._from_config(config, attn_implementation=attention, dtype=gpt2.dtype)
    state = {**harmonic.state_dict(), **gpt2.state_dict()}
    for name in ("transformer.wte.weight", "lm_head.weight"):
        state[name] = fit_rows(state[name], config.padded_vocab_size)
    harmonic.load_state_dict(state)
    harmonic.match_scale()
    harmonic.started(start)
    harmonic.generation_config = copy.deepcopy(gpt2.generation_config)
    return harmonic.to(gpt2.device).train(gpt2.training)
