"""`resize_token_embeddings` keeps the head harmonic, tied or not, with a prior or without."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from harmax import HarmonicHead
from harmax.functional import harmonic_log_probabilities
from harmax.hf import harmonize
from hf.zoo import LENGTH, WORDS, batch, head_of, plain

TYING = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


@TYING
@pytest.mark.parametrize("size", [40, 50, 57])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "mixtral", "bert"])
def test_the_head_stays_harmonic_and_old_tokens_keep_their_centers(name, size, tied, tmp_path):
    model = harmonize(plain(name, tied=tied), exponent=9.0)
    head = head_of(name)(model)
    before, prior, kept = head.weight.detach().clone(), head.prior, min(size, WORDS)
    prior = None if prior is None else prior.detach().clone()
    embedding = model.resize_token_embeddings(size)
    head = head_of(name)(model)
    assert isinstance(head, HarmonicHead)
    assert head is model.get_output_embeddings() is model.harmonic_head
    assert (head.exponent, head.out_features, len(head.weight), len(embedding.weight)) == (9.0, size, size, size)
    assert (head.weight is embedding.weight) == tied
    assert torch.equal(head.weight[:kept], before[:kept])
    if name == "bert":
        assert head.prior is model.cls.predictions.bias
        assert torch.equal(head.prior[:kept], prior[:kept])
        torch.testing.assert_close(head.prior[kept:], prior.mean().expand(size - kept), rtol=1e-4, atol=1e-4)
    inputs = {key: value % 40 for key, value in batch(name).items()}
    features = []
    handle = head.register_forward_pre_hook(lambda _, arguments: features.append(arguments[0]))
    output = model(**inputs)
    handle.remove()
    assert output.logits.shape == (3, LENGTH, size)
    expected = harmonic_log_probabilities(head.scale * features[0], head.weight, exponent=9.0, prior=head.prior)
    torch.testing.assert_close(output.logits, expected, rtol=1e-4, atol=1e-5)
    model.train()(**inputs).loss.backward()
    assert head.weight.grad.shape == head.weight.shape
    model.eval().save_pretrained(tmp_path)
    auto = AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM
    assert torch.equal(auto.from_pretrained(tmp_path)(**inputs).logits, output.logits)


def test_the_rows_can_be_padded_to_a_multiple():
    model = harmonize(plain("llama"))
    model.resize_token_embeddings(pad_to_multiple_of=64)
    assert model.lm_head.out_features == len(model.lm_head.weight) == model.config.vocab_size == 64


def test_a_linear_is_no_head_of_a_harmonic_model():
    model = harmonize(plain("llama"))
    with pytest.raises(TypeError, match="`new_embeddings` must be a harmonic head, got Linear"):
        model.set_output_embeddings(torch.nn.Linear(16, 50, bias=False))
