"""The model of a spec, and its loss as one module that every engine can wrap.

Shape suffixes: B sequences, T tokens of each, D features, V tokens of the vocabulary.
"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harmax.extras import needs
from harmax.hf import from_gpt2
from harmax.train.spec import PretrainSpec

with needs("hf"):
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

ROWS_MULTIPLE = 64
IGNORED = -100


def build_model(spec: PretrainSpec) -> GPT2LMHeadModel:
    """Build the model with the weights that its seed gives; both heads start from the same ones."""
    config = GPT2Config(
        vocab_size=spec.vocab,
        n_positions=spec.context,
        n_embd=spec.n_embd,
        n_layer=spec.n_layer,
        n_head=spec.n_head,
        tie_word_embeddings=spec.tied,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=spec.vocab - 1,
        eos_token_id=spec.vocab - 1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        gpt2 = GPT2LMHeadModel(config)
        if spec.head == "harmonic":
            return from_gpt2(
                gpt2,
                exponent=spec.exponent,
                softening=spec.softening,
                learn_exponent=spec.learn_exponent,
                pad_vocab_to_multiple_of=ROWS_MULTIPLE,
            ).train()
        gpt2.resize_token_embeddings(math.ceil(spec.vocab / ROWS_MULTIPLE) * ROWS_MULTIPLE, mean_resizing=False)
    return gpt2.train()


class NextTokenLoss(nn.Module):
    """A model with its loss: takes inputs and targets, (B, T) each, gives the sum of the losses of all tokens.

    Rows of padding take part in nothing, and a target of -100 counts nothing, with either head.
    """

    def __init__(self, model: GPT2LMHeadModel, spec: PretrainSpec) -> None:
        super().__init__()
        self.model = model
        self.harmonic, self.vocab = spec.head == "harmonic", spec.vocab

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Sum the losses, float32."""
        hidden_BTD = self.model.transformer(inputs_BT, use_cache=False).last_hidden_state
        if self.harmonic:
            return self.model.lm_head.loss(hidden_BTD, targets_BT, reduction="sum", ignore_index=IGNORED)
        logits_BTV = self.model.lm_head(hidden_BTD)[..., : self.vocab].float()
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="sum", ignore_index=IGNORED)


def save_model(spec: PretrainSpec, weights: dict[str, Tensor], folder: Path) -> None:
    """Write trained weights as a folder that transformers loads, padding left out where it would show."""
    model = build_model(spec)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = ["lm_head.weight"] if spec.tied else []
    assert [*missing] in ([], tied), missing
    assert not unexpected, unexpected
    if spec.head == "linear":
        model.resize_token_embeddings(spec.vocab, mean_resizing=False)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # it would break into the line of this run's own progress
    try:
        model.eval().save_pretrained(folder)
    finally:
        if shown:
            logging.enable_progress_bar()
