"""A trained model of transformers keeps its loss when it becomes harmonic, and hardens in the Trainer."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from harmax.hf import HardeningCallback, harmonize

TOKENS = torch.randint(50, (8, 12), generator=torch.Generator().manual_seed(0))
TEXT: Any = [{"input_ids": row, "labels": row} for row in TOKENS]
SIZES = dict(vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)


def llama(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    # Large weights, so that it is as sure of itself as a trained model.
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied, initializer_range=0.7)).eval()


@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_stays(tied):
    model = llama(tied)
    before = model(TOKENS, labels=TOKENS).loss.item()
    harmonize(model, match=True)
    assert model(TOKENS, labels=TOKENS).loss.item() == pytest.approx(before, abs=0.05)
    assert model.lm_head.softening > 0
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def train(model: Any, folder: Any, **options: Any) -> None:
    arguments = TrainingArguments(
        str(folder), max_steps=6, per_device_train_batch_size=2, report_to=[], use_cpu=True, save_steps=3
    )
    Trainer(model, arguments, train_dataset=TEXT, callbacks=[HardeningCallback(share=1.0)]).train(**options)


def test_the_trainer_takes_the_softening_away_and_resumes_on_the_way(tmp_path):
    model = harmonize(llama(True), match=True)
    train(model, tmp_path)
    assert model.lm_head.softening == 0
    half = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-3")
    assert half.lm_head.softening > 0
    train(half, tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert half.lm_head.softening == 0
    assert half.lm_head.exponent == pytest.approx(model.lm_head.exponent)


def test_a_head_without_a_norm_needs_the_length_of_its_features():
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**SIZES, num_labels=3)).eval()
    before = model(TOKENS).logits.softmax(-1)
    with pytest.raises(ValueError, match="`feature_length` must be given with match=True"):
        harmonize(model, match=True)
    assert type(model) is BertForSequenceClassification
    harmonize(model, match=True, feature_length=1.0)
    torch.testing.assert_close(model(TOKENS).logits.exp(), before, rtol=0, atol=0.01)


@pytest.mark.parametrize("wrong", [{"softening": 0.5}, {"scale": 2.0}, {"prior": True}])
def test_what_follows_from_the_match_cannot_be_given(wrong):
    with pytest.raises(TypeError, match="follow from match=True"):
        harmonize(llama(True), match=True, **wrong)
