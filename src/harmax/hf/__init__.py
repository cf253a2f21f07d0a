"""Harmonic models of transformers: causal and masked language models, sequence and image classifiers.

`harmonize` changes a model in place. What it saves is read again, after ``import harmax.hf``, by the Auto classes.

>>> from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
>>> sizes = dict(vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
>>> model = harmonize(LlamaForCausalLM(LlamaConfig(**sizes)), exponent=32)
>>> model.lm_head
TokenHead(in_features=16, out_features=50, exponent=32, softening=0, scale=0.125)

For training from scratch the configuration has the settings of the head. Classes are named after those of transformers:

>>> import harmax.hf
>>> config = harmax.hf.HarmonicLlamaConfig(harmonic_exponent=32, **sizes)
>>> type(AutoModelForCausalLM.from_config(config)), type(harmax.hf.HarmonicLlamaForCausalLM(config))
(<class 'harmax.hf.HarmonicLlamaForCausalLM'>, <class 'harmax.hf.HarmonicLlamaForCausalLM'>)
"""

from typing import Any

from harmax.hf.classes import by_name, register_all
from harmax.hf.config import HarmonicGPT2Config
from harmax.hf.convert import from_gpt2
from harmax.hf.gpt2 import HarmonicGPT2LMHeadModel, HarmonicGPT2Model
from harmax.hf.hardening import HardeningCallback
from harmax.hf.harmonize import harmonize
from harmax.hf.linear import to_linear

__all__ = [
    "HardeningCallback",
    "HarmonicGPT2Config",
    "HarmonicGPT2LMHeadModel",
    "HarmonicGPT2Model",
    "from_gpt2",
    "harmonize",
    "to_linear",
]


def __getattr__(name: str) -> Any:
    return by_name(name)


register_all()
