"""`generate` on log-probabilities: greedy, sampled, beams, and what the repetition penalty does to them."""

import pytest
import torch

from hf.tiny import LENGTH, VOCABULARY, model, tokens


def greedy(gpt, ids, steps):
    """The loop that `generate` is, without its cache."""
    for _ in range(steps):
        ids = torch.cat([ids, gpt(ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


@pytest.mark.parametrize("learned", [False, True])
def test_greedy_takes_the_nearest_token_at_every_step(learned):
    gpt, ids = model(learn_exponent=learned), tokens()
    assert torch.equal(gpt.generate(ids, max_new_tokens=8, do_sample=False), greedy(gpt, ids, 8))


def test_padding_is_never_sampled():
    gpt = model(exponent=0.1)  # so flat that each of the 14 padding rows would come up
    gpt.lm_head.weight.data[VOCABULARY:] = 0
    torch.manual_seed(0)
    sampled = gpt.generate(tokens(64), max_new_tokens=8, do_sample=True, top_k=0)[:, LENGTH:]
    assert sampled.max() < VOCABULARY
    assert len(sampled.unique()) > 40


def test_sampling_follows_the_probabilities():
    gpt, ids = model(exponent=24.0), tokens(1)
    expected = gpt(ids).logits[0, -1].exp()
    torch.manual_seed(0)
    drawn = gpt.generate(ids.expand(4000, -1), max_new_tokens=1, do_sample=True, top_k=0)[:, -1]
    share = torch.bincount(drawn, minlength=VOCABULARY) / 4000
    assert (share - expected).abs().max() < 0.04
    assert expected.max() > 0.1


def test_beams_find_what_is_at_least_as_likely_as_the_greedy_text():
    gpt, ids = model(exponent=24.0), tokens(1)

    def likelihood(text):
        return gpt(text).logits[:, LENGTH - 1 : -1].gather(-1, text[:, LENGTH:, None]).sum().item()

    found = gpt.generate(
        ids, max_new_tokens=3, num_beams=50, do_sample=False, return_dict_in_generate=True, output_scores=True
    )
    assert likelihood(found.sequences) >= likelihood(greedy(gpt, ids, 3)) - 1e-5
    assert found.sequences_scores.item() * 3 == pytest.approx(likelihood(found.sequences), rel=1e-4)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_repetition_penalty_lowers_a_repeated_token_that_is_on_top(scale):
    gpt, text, top = model(exponent=4.0, tie_word_embeddings=False), torch.full((1, 4), 3), 3
    # Raw logits -(n/2) log s are positive where vectors are small; log-probabilities never are.
    gpt.transformer.ln_f.weight.data *= scale
    gpt.lm_head.weight.data *= scale
    gpt.lm_head.weight.data[top] = 0.6 * gpt.transformer(text).last_hidden_state[0, -1]
    first = gpt(text).logits[0, -1].detach()
    assert first.argmax().item() == top, "the token that the text repeats is the likeliest"
    penalized = gpt.generate(
        text,
        max_new_tokens=1,
        do_sample=False,
        repetition_penalty=2.0,
        return_dict_in_generate=True,
        output_scores=True,
    ).scores[0][0]
    others = torch.arange(VOCABULARY) != top
    torch.testing.assert_close(penalized[top].exp(), first[top].exp() ** 2)
    torch.testing.assert_close(penalized[others], first[others])
    assert penalized.softmax(-1)[top] < 0.9 * first.exp()[top]
    strongly = gpt.generate(text, max_new_tokens=1, do_sample=False, repetition_penalty=50.0)[0, -1].item()
    assert strongly == first.masked_fill(~others, -torch.inf).argmax().item()
