"""Padding rows take part in nothing, and the vocabulary can be resized with the head staying harmonic."""

import pytest
import torch
import torch.nn.functional as F
from transformers.trainer_pt_utils import LabelSmoother

from harmax import HarmonicHead
from harmax.hf import HarmonicGPT2LMHeadModel, HarmonicGPT2Model
from hf.tiny import LENGTH, VOCABULARY, model, tokens

TYING = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


def weights(gpt: HarmonicGPT2LMHeadModel) -> list[torch.Tensor]:
    return [gpt.transformer.wte.weight, gpt.lm_head.weight]


@TYING
def test_whatever_stands_in_the_padding_changes_nothing(tied):
    gpt, ids = model(tie_word_embeddings=tied), tokens()
    expected = gpt(ids, labels=ids)
    expected.loss.backward()
    gradient = gpt.lm_head.weight.grad.clone()
    assert gradient[:VOCABULARY].abs().sum() > 0
    assert (gradient[VOCABULARY:] == 0).all()
    gpt.zero_grad()
    for weight in weights(gpt):
        weight.data[VOCABULARY:] = torch.nan
    output = gpt(ids, labels=ids)
    output.loss.backward()
    assert torch.equal(output.logits, expected.logits)
    assert torch.equal(output.loss, expected.loss)
    assert torch.equal(gpt.lm_head.weight.grad, gradient)
    distance = gpt.lm_head.distance(torch.zeros(gpt.config.n_embd))
    torch.testing.assert_close(distance, gpt.lm_head.centers.norm(dim=1))


def test_label_smoothing_spreads_over_real_tokens_only():
    gpt, ids = model(), tokens()
    logits = gpt(ids).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(LabelSmoother(0.1)({"logits": logits}, ids, shift_labels=True), expected)
    assert expected.isfinite()


@TYING
@pytest.mark.parametrize("size", [40, 50, 55, 64, 65, 200])
def test_resizing_keeps_the_head_harmonic_and_the_width_real(tied, size):
    gpt, ids = model(tie_word_embeddings=tied, exponent=9.0, softening=0.2), tokens() % 40
    hidden = gpt.transformer(ids).last_hidden_state
    before, kept = [weight.detach().clone() for weight in weights(gpt)], min(size, VOCABULARY)
    embedding = gpt.resize_token_embeddings(size)
    rows = -(-size // 64) * 64
    assert embedding is gpt.transformer.wte
    assert embedding.num_embeddings == rows
    assert gpt.config.vocab_size == gpt.lm_head.out_features == size
    assert isinstance(gpt.lm_head, HarmonicHead)
    assert (gpt.lm_head.exponent, gpt.lm_head.softening) == (9.0, 0.2)
    assert (gpt.lm_head.weight is gpt.transformer.wte.weight) == tied
    for weight, old in zip(weights(gpt), before, strict=True):
        assert weight.shape == (rows, gpt.config.n_embd)
        assert torch.equal(weight[:kept], old[:kept])
        if size > VOCABULARY:
            mean = old[:VOCABULARY].mean(0).expand(size - VOCABULARY, -1)
            torch.testing.assert_close(weight[VOCABULARY:size], mean, rtol=1e-3, atol=1e-3)
        assert (weight[size:] == 0).all() or size == VOCABULARY
    output = gpt(ids, labels=ids)
    assert output.logits.shape == (3, LENGTH, size)
    distance = (hidden[..., None, :] - gpt.lm_head.centers).pow(2).sum(-1)
    torch.testing.assert_close(output.logits, (-4.5 * (distance + 0.2).log()).log_softmax(-1), rtol=1e-4, atol=1e-4)


@TYING
def test_a_resized_model_trains_on_and_survives_its_file(tied, tmp_path):
    gpt, ids = model(tie_word_embeddings=tied, learn_exponent=True).train(), tokens()
    gpt(ids, labels=ids).loss.backward()
    gpt.zero_grad()
    gpt.resize_token_embeddings(70, mean_resizing=False)
    new = torch.full((1, 4), 69)
    optimizer = torch.optim.SGD(gpt.parameters(), lr=0.1)
    before = gpt(new, labels=new).loss.item()
    for _ in range(5):
        gpt(new, labels=new).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert gpt(new, labels=new).loss.item() < before
    gpt.eval().save_pretrained(tmp_path)
    again = HarmonicGPT2LMHeadModel.from_pretrained(tmp_path)
    assert again.config.vocab_size == 70
    assert torch.equal(again(new).logits, gpt(new).logits)


def test_rows_can_be_padded_to_another_multiple():
    gpt, ids = model(), tokens()
    expected = gpt(ids).logits
    gpt.resize_token_embeddings(pad_to_multiple_of=128)
    assert [len(weight) for weight in weights(gpt)] == [128, 128]
    assert torch.equal(gpt(ids).logits, expected)
    gpt.resize_token_embeddings(51, pad_to_multiple_of=1)
    assert [len(weight) for weight in weights(gpt)] == [51, 51]
    assert gpt.resize_token_embeddings() is gpt.transformer.wte
    with pytest.raises(ValueError, match="`pad_vocab_to_multiple_of` must be a whole number"):
        gpt.resize_token_embeddings(60, pad_to_multiple_of=0)


def test_the_transformer_alone_resizes_too():
    gpt = HarmonicGPT2Model(model().config)
    gpt.resize_token_embeddings(100)
    assert gpt.wte.weight.shape[0] == 128
    assert gpt.config.vocab_size == 100
