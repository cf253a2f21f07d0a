"""Labels mean what they mean in the model of transformers, which shifts them or does not."""

import inspect

import pytest
import torch
import torch.nn.functional as F
import transformers
from transformers.models.auto import modeling_auto as auto

from harmax.hf import harmonize
from harmax.hf.kinds import UNSHIFTED
from hf.zoo import WIDTH, WORDS, batch

BART = dict(vocab_size=WORDS, d_model=WIDTH, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=16)
XLM = dict(vocab_size=WORDS, emb_dim=WIDTH, n_layers=1, n_heads=2, dropout=0.0, attention_dropout=0.0)
XLNET = dict(vocab_size=WORDS, d_model=WIDTH, n_layer=1, n_head=2, d_inner=16, dropout=0.0)
STILL = dict(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2)
OTHERS = {
    "BartForCausalLM": ("BartConfig", {**BART, **STILL}),
    "WhisperForCausalLM": ("WhisperConfig", {**BART, **STILL, "decoder_start_token_id": 1}),
    "XLMWithLMHeadModel": ("XLMConfig", XLM),
    "XLNetLMHeadModel": ("XLNetConfig", XLNET),
}


@pytest.mark.parametrize("name", OTHERS)
def test_models_that_do_not_shift_labels_do_not_when_they_are_harmonic(name):
    config, sizes = OTHERS[name]
    model, inputs = getattr(transformers, name)(getattr(transformers, config)(**sizes)).eval(), batch("llama")

    def own(logits):
        return F.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten())

    output = model(**inputs)
    torch.testing.assert_close(output.loss, own(output.logits))
    harmonize(model, exponent=8)
    for training in (False, True):
        model.train(training)
        torch.testing.assert_close(model(**inputs).loss, own(model(inputs["input_ids"]).logits), rtol=1e-5, atol=1e-5)


NEVER_HARMONIC = {
    "Gemma4AssistantForCausalLM",
    "Gemma4UnifiedAssistantForCausalLM",
    "MusicgenForCausalLM",
    "MusicgenMelodyForCausalLM",
    "ProphetNetForCausalLM",
}
"""Refused when they are tried, whatever their labels mean."""


def test_every_causal_model_that_does_not_shift_labels_is_known():
    """All others compute their loss by `loss_function`, which shifts."""
    names = set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    classes = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    own = {one.__name__ for one in classes if "loss_function(" not in inspect.getsource(one.forward)}
    assert own - NEVER_HARMONIC == UNSHIFTED
