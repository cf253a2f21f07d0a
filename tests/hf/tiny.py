"""Small GPT-2s and texts for the tests: 50 tokens, of which a padded vocabulary makes 64 rows."""

from typing import Any

import torch
from torch import Tensor

from harmax.hf import HarmonicGPT2Config, HarmonicGPT2LMHeadModel

VOCABULARY, WIDTH, LENGTH = 50, 16, 12
SIZES = dict(
    vocab_size=VOCABULARY, n_positions=32, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=None
)
STILL = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
RENAMED = hasattr(HarmonicGPT2LMHeadModel, "activation_checkpointing_enable")
CHECKPOINTING = "activation_checkpointing" if RENAMED else "gradient_checkpointing"
"""What transformers calls it: from 5.23 on the old name warns."""


def model(seed: int = 0, **settings: Any) -> HarmonicGPT2LMHeadModel:
    """Without dropout, ready to predict, features as they are; centers far enough apart for predictions to differ."""
    torch.manual_seed(seed)
    config = HarmonicGPT2Config(**{**SIZES, **STILL, "initializer_range": 0.5, "scale": 1.0, **settings})
    return HarmonicGPT2LMHeadModel(config).eval()


def tokens(rows: int = 3, seed: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
