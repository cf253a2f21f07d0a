"""A harmonic GPT-2 around the weights of an ordinary one."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from harmax.hf import from_gpt2
from hf.tiny import LENGTH, SIZES, STILL, VOCABULARY, WIDTH, model, tokens


def gpt2(**settings) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**{**SIZES, **STILL, **settings})).eval()


@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_are_those_of_the_gpt2(tied):
    plain, ids = gpt2(tie_word_embeddings=tied), tokens()
    harmonic = from_gpt2(plain, exponent=20.0, softening=0.5, scale=1.0)
    assert (harmonic.config.exponent, harmonic.config.softening) == (20.0, 0.5)
    assert not harmonic.training
    hidden = plain.transformer(ids).last_hidden_state
    assert torch.equal(harmonic.transformer(ids).last_hidden_state, hidden)
    assert torch.equal(harmonic.lm_head.centers, plain.lm_head.weight)
    assert (harmonic.lm_head.weight is harmonic.transformer.wte.weight) == tied
    assert harmonic(ids).logits.shape == (3, LENGTH, VOCABULARY)


def test_the_two_can_be_trained_side_by_side():
    plain, ids = gpt2(), tokens()
    expected = plain(ids).logits
    harmonic = from_gpt2(plain)
    with torch.no_grad():
        for parameter in harmonic.parameters():
            parameter.add_(1.0)
    assert torch.equal(plain(ids).logits, expected)


def test_with_the_exponent_of_the_gaussian_limit_it_predicts_as_the_gpt2_does():
    # While |w|^2 is small against |x|^2 + a, exponent n and softening a give z close to n / (|x|^2 + a) x.w.
    plain, ids = gpt2(initializer_range=0.005), tokens()
    softening = 1e4
    harmonic = from_gpt2(plain.double(), exponent=WIDTH + softening, softening=softening, scale=1.0)
    assert harmonic.dtype == torch.float64
    expected = plain(ids).logits.log_softmax(-1)
    assert expected.std() > 0.01
    torch.testing.assert_close(harmonic(ids).logits, expected, rtol=0, atol=1e-3)


def test_a_configuration_gives_a_model_that_starts_at_random():
    harmonic = from_gpt2(GPT2Config(**SIZES), exponent=3.0, learn_exponent=True, pad_vocab_to_multiple_of=10)
    assert harmonic.lm_head.exponent.item() == pytest.approx(3.0)
    assert harmonic.lm_head.weight.shape == (50, WIDTH)
    assert harmonic.lm_head.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert harmonic.training


def test_attention_precision_and_generation_settings_come_along():
    plain = gpt2().bfloat16()
    plain.set_attn_implementation("eager")
    plain.generation_config.max_new_tokens = 3
    harmonic = from_gpt2(plain, exponent=1000.0, learn_exponent=True)
    assert harmonic.config._attn_implementation == "eager"
    assert harmonic.dtype == torch.bfloat16
    assert harmonic.lm_head.exponent.item() == pytest.approx(1000.0, rel=1e-5)
    assert harmonic.generate(tokens(), do_sample=False).shape == (3, LENGTH + 3)


@pytest.mark.parametrize("wrong", [model(), model().config, gpt2().transformer, "gpt2"])
def test_what_is_no_plain_gpt2_is_refused(wrong):
    with pytest.raises(TypeError, match=f"`gpt2` must be .*GPT2Config.*, got {type(wrong).__name__}; load"):
        from_gpt2(wrong)
