"""The model, and its loss as one module that every engine can wrap.

Shape suffixes: B sequences, T tokens of each, D features, V tokens of the vocabulary.
"""

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harmax.errors import needs
from harmax.hf import from_gpt2
from harmax.train.language.gaussian import GaussianGPT2Config, GaussianGPT2LMHeadModel
from harmax.train.language.settings import PretrainSpec
from harmax.train.quiet import no_progress_bars

with needs("hf"):
    from transformers import GPT2Config, GPT2LMHeadModel

ROWS_MULTIPLE = 64
IGNORED = -100


def build_model(spec: PretrainSpec) -> GPT2LMHeadModel:
    """Build the model with the weights of its seed; all heads start from the same weights."""
    sizes: dict[str, Any] = dict(
        vocab_size=spec.vocab,
        n_positions=spec.context,
        **{size: getattr(spec, size) for size in ("n_layer", "n_head", "n_embd")},
        tie_word_embeddings=spec.tied,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        bos_token_id=spec.vocab - 1,
        eos_token_id=spec.vocab - 1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        if spec.head == "gaussian":
            model: GPT2LMHeadModel = GaussianGPT2LMHeadModel(GaussianGPT2Config(**sizes, logit_scale=spec.logit_scale))
        else:
            model = GPT2LMHeadModel(GPT2Config(**sizes))
        _set_start(model, spec)
        if spec.head == "harmonic":
            return from_gpt2(
                model,
                exponent=spec.exponent,
                softening=spec.softening,
                scale=spec.scale,
                start=spec.start,
                learn_exponent=spec.learn_exponent,
                pad_vocab_to_multiple_of=ROWS_MULTIPLE,
            ).train()
        model.resize_token_embeddings(math.ceil(spec.vocab / ROWS_MULTIPLE) * ROWS_MULTIPLE, mean_resizing=False)
    return model.train()


@torch.no_grad()
def _set_start(model: GPT2LMHeadModel, spec: PretrainSpec) -> None:
    """Set the lengths of features and centers at the start."""
    model.transformer.ln_f.weight.mul_(spec.norm_gain)
    if spec.center_std is not None:
        model.lm_head.weight.mul_(spec.center_std / model.config.initializer_range)


class NextTokenLoss(nn.Module):
    """A model with its loss: from inputs and targets, (B, T) each, to the sum of the losses of all tokens.

    Padding rows are never used, and a target of -100 does not count, with any head.

    Args:
        model: from `build_model`.
        spec: what it was built for.
        impl: how the harmonic loss is computed, as in `harmonic_loss`.
    """

    def __init__(self, model: GPT2LMHeadModel, spec: PretrainSpec, *, impl: str = "auto") -> None:
        super().__init__()
        self.model = model
        self.harmonic, self.vocab, self.impl = spec.head == "harmonic", spec.vocab, impl
        self.scale = spec.logit_scale if spec.head == "linear" else 1.0  # the gaussian head has its own

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Sum the losses, float32."""
        hidden_BTD = self._hidden(inputs_BT)
        if self.harmonic:
            loss: Tensor = self.model.lm_head(
                hidden_BTD, targets_BT, reduction="sum", ignore_index=IGNORED, impl=self.impl
            )
            return loss
        logits_BTV = self.model.lm_head(hidden_BTD)[..., : self.vocab].float()
        if self.scale != 1:
            logits_BTV = self.scale * logits_BTV
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="sum", ignore_index=IGNORED)

    def _hidden(self, inputs_BT: Tensor) -> Tensor:
        """Return the input of the head, (B, T, D).

        It equals `transformer(inputs_BT)` and makes no mask. A compiled GPT2Model makes a mask of (B, 1, T, T), which
        rules out flash attention. Without a mask attention is causal, and sequences here have no padding.
        """
        transformer = self.model.transformer
        hidden_BTD = transformer.wte(inputs_BT) + transformer.wpe.weight[: inputs_BT.shape[1]]
        hidden_BTD = transformer.drop(hidden_BTD)
        for block in transformer.h:
            hidden_BTD = block(hidden_BTD)
        return transformer.ln_f(hidden_BTD)


def save_model(spec: PretrainSpec, weights: dict[str, Tensor], folder: Path) -> None:
    """Write trained weights as a folder that transformers loads, without padding rows where these would be visible.

    A linear head's scale goes into the norm before it, so that a plain GPT-2 has the trained probabilities. The last
    hidden state is therefore larger than it was in training. A gaussian model needs `harmax.train.language.gaussian`;
    transformers alone refuses its name.
    """
    model = build_model(spec)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = ["lm_head.weight"] if spec.tied else []
    assert [*missing] in ([], tied), missing
    assert not unexpected, unexpected
    if spec.head != "harmonic":
        model.resize_token_embeddings(spec.vocab, mean_resizing=False)
    if spec.head == "linear":
        with torch.no_grad():
            for parameter in model.transformer.ln_f.parameters():
                parameter.mul_(spec.logit_scale)
    with no_progress_bars():
        model.eval().save_pretrained(folder)
