"""Logits, loss and gradients of the harmonic GPT-2 against the plain formulas."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GPT2LMHeadModel

from harmax import harmonic_logits
from harmax.hf import HarmonicGPT2Config, HarmonicGPT2LMHeadModel, HarmonicGPT2Model
from hf.tiny import CHECKPOINTING, LENGTH, VOCABULARY, WIDTH, model, tokens

VARIANTS = {
    "tied": {},
    "untied": dict(tie_word_embeddings=False),
    "learned": dict(learn_exponent=True, exponent=7.0),
    "soft": dict(exponent=2 * WIDTH, softening=0.3),
    "whole": dict(pad_vocab_to_multiple_of=1),
}


def next_token_loss(logits, labels, **options):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), **options)


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_the_log_probabilities_of_the_real_tokens(name):
    settings = VARIANTS[name]
    gpt, ids = model(**settings), tokens()
    hidden = gpt.transformer(ids).last_hidden_state
    centers = gpt.get_output_embeddings().weight[:VOCABULARY]
    exponent = settings.get("exponent") or math.sqrt(WIDTH)
    expected = harmonic_logits(hidden, centers, exponent=exponent, softening=settings.get("softening", 0.0))
    logits = gpt(ids).logits
    assert logits.shape == (3, LENGTH, VOCABULARY)
    torch.testing.assert_close(logits, expected.log_softmax(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(3, LENGTH))
    assert gpt.lm_head.weight.shape[0] == (50 if name == "whole" else 64)
    assert (gpt.lm_head.weight is gpt.transformer.wte.weight) == (name != "untied")


@pytest.mark.parametrize("name", VARIANTS)
def test_the_loss_and_its_gradients_are_those_of_cross_entropy_on_the_logits(name):
    gpt, ids = model(**VARIANTS[name]).train(), tokens()
    labels = ids.clone()
    labels[0, :5] = -100
    output = gpt(ids, labels=labels)
    assert output.logits is None, "training does not pay for logits"
    output.loss.backward()
    gradients = {key: parameter.grad.clone() for key, parameter in gpt.named_parameters()}
    gpt.zero_grad()
    expected = next_token_loss(gpt(ids).logits, labels)
    expected.backward()
    torch.testing.assert_close(output.loss, expected)
    for key, parameter in gpt.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad, rtol=1e-3, atol=1e-5, msg=key)
    assert ("lm_head.log_exponent" in gradients) == (name == "learned")


def test_logits_come_where_they_are_asked_for_or_cheap():
    gpt, ids = model(), tokens()
    assert gpt(ids, labels=ids).logits.shape == (3, LENGTH, VOCABULARY)
    assert gpt(ids, labels=ids, skip_logits=True).logits is None
    gpt.train()
    assert gpt(ids).logits.shape == (3, LENGTH, VOCABULARY), "without labels there is nothing else to give"
    output = gpt(ids, labels=ids, skip_logits=False)
    torch.testing.assert_close(output.loss, next_token_loss(output.logits, ids))
    assert output.past_key_values is None, "training keeps no cache"
    as_tuple = gpt(ids, labels=ids, return_dict=False)
    assert len(as_tuple) == 1
    torch.testing.assert_close(as_tuple[0], output.loss)


def test_training_keeps_no_matrix_of_tokens_by_vocabulary():
    gpt = model(vocab_size=6000).train()
    ids = torch.randint(6000, (4, 16), generator=torch.Generator().manual_seed(0))

    def largest_kept(skip_logits):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            loss = gpt(ids, labels=ids, skip_logits=skip_logits).loss
        return loss, max(sizes)

    loss, size = largest_kept(True)
    expected = next_token_loss(gpt(ids).logits, ids)
    torch.testing.assert_close(loss, expected)
    assert size <= gpt.lm_head.weight.numel() < ids.numel() * 6000
    assert largest_kept(False)[1] >= ids.numel() * 6000


def test_micro_batches_with_num_items_add_up_to_one_batch():
    gpt, ids = model(tie_word_embeddings=False).train(), tokens(4)
    labels = ids.clone()
    labels[0, 1:9] = -100  # so that the mean of the means would be wrong
    items = (labels[:, 1:] != -100).sum()
    whole = gpt(ids, labels=labels).loss
    whole.backward()
    expected = {key: parameter.grad.clone() for key, parameter in gpt.named_parameters()}
    gpt.zero_grad()
    total = 0.0
    for part in range(4):
        loss = gpt(ids[part : part + 1], labels=labels[part : part + 1], num_items_in_batch=items).loss
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(whole.item(), rel=1e-5)
    for key, parameter in gpt.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[key], rtol=1e-4, atol=1e-6, msg=key)
    as_number = gpt(ids, labels=labels, num_items_in_batch=int(items)).loss
    torch.testing.assert_close(as_number, whole)


def test_labels_that_are_shifted_already_use_every_place():
    gpt, ids = model(), tokens()
    inputs, targets = ids[:, :-1], ids[:, 1:].contiguous()
    output = gpt(inputs, shift_labels=targets)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits.flatten(0, 1), targets.flatten()))
    torch.testing.assert_close(output.loss, gpt(ids, labels=ids).loss)


def test_the_past_the_mask_and_the_kept_places_change_no_number():
    gpt, ids = model(), tokens()
    whole = gpt(ids).logits
    start = gpt(ids[:, :7], use_cache=True)
    rest = gpt(ids[:, 7:], past_key_values=start.past_key_values).logits
    torch.testing.assert_close(torch.cat([start.logits, rest], 1), whole)
    torch.testing.assert_close(gpt(ids, logits_to_keep=1).logits, whole[:, -1:])
    torch.testing.assert_close(gpt(ids, logits_to_keep=torch.tensor([2, 5])).logits, whole[:, [2, 5]])
    each = gpt(ids, logits_to_keep=torch.tensor([[2], [5], [0]])).logits
    torch.testing.assert_close(each, torch.stack([whole[0, [2]], whole[1, [5]], whole[2, [0]]]))
    torch.testing.assert_close(gpt(ids, logits_to_keep=ids > 20).logits, whole[ids > 20])
    torch.testing.assert_close(gpt(inputs_embeds=gpt.transformer.wte(ids)).logits, whole)
    padded = torch.cat([torch.zeros(3, 2, dtype=torch.long), ids], 1)
    mask = torch.cat([torch.zeros(3, 2, dtype=torch.long), torch.ones_like(ids)], 1)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    masked = gpt(padded, attention_mask=mask, position_ids=places).logits[:, 2:]
    torch.testing.assert_close(masked, whole)


def test_attention_is_sdpa_and_agrees_with_the_plain_one():
    gpt, ids = model(), tokens()
    assert gpt.config._attn_implementation == "sdpa"
    expected = gpt(ids).logits
    gpt.set_attn_implementation("eager")
    torch.testing.assert_close(gpt(ids).logits, expected)


def test_gradient_checkpointing_changes_no_gradient():
    gpt, ids = model().train(), tokens()
    gpt(ids, labels=ids).loss.backward()
    expected = gpt.transformer.h[0].mlp.c_fc.weight.grad.clone()
    gpt.zero_grad()
    getattr(gpt, f"{CHECKPOINTING}_enable")()
    gpt(ids, labels=ids).loss.backward()
    torch.testing.assert_close(gpt.transformer.h[0].mlp.c_fc.weight.grad, expected)


def test_autocast_rounds_vectors_and_centers_as_a_linear_would_and_nothing_after():
    gpt, ids = model(exponent=2 * WIDTH).train(), tokens()
    exact = gpt(ids, labels=ids).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = gpt.transformer(ids).last_hidden_state
        output = gpt(ids, labels=ids, skip_logits=False)
    assert output.loss.dtype == output.logits.dtype == torch.float32
    rounded = harmonic_logits(hidden.bfloat16(), gpt.lm_head.centers.bfloat16(), exponent=2 * WIDTH)
    torch.testing.assert_close(output.logits, rounded.log_softmax(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(output.loss, next_token_loss(output.logits, ids))
    assert output.loss.item() == pytest.approx(exact.item(), rel=0.05)


def test_a_training_step_compiles_into_one_graph():
    gpt, ids = model().train(), tokens()
    compiled = torch.compile(gpt, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids, labels=ids).loss, gpt(ids, labels=ids).loss)


def test_the_auto_classes_know_the_model():
    config = AutoConfig.for_model("harmonic_gpt2", vocab_size=50, n_embd=16, n_layer=1, n_head=2, exponent=3.0)
    assert type(config) is HarmonicGPT2Config
    gpt = AutoModelForCausalLM.from_config(config)
    assert type(gpt) is HarmonicGPT2LMHeadModel
    assert isinstance(gpt, GPT2LMHeadModel)
    assert gpt.lm_head.exponent == 3.0
    assert type(AutoModel.from_config(config)) is HarmonicGPT2Model


def test_weights_start_as_gpt2s():
    gpt = model(n_embd=64, initializer_range=0.02, learn_exponent=True, exponent=5.0, tie_word_embeddings=False)
    for weight in (gpt.transformer.wte.weight, gpt.lm_head.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert abs(weight.mean().item()) < 0.001
    assert gpt.lm_head.exponent.item() == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(exponent=0.0), "`exponent` must be a positive number.*got 0.0"),
        (dict(softening=-1.0), "softening` must be .*got -1.0"),
        (dict(pad_vocab_to_multiple_of=0), "`pad_vocab_to_multiple_of` must be .*got 0"),
    ],
)
def test_settings_that_make_no_head_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        HarmonicGPT2Config(**settings)


def test_tokens_beyond_the_vocabulary_are_refused_also_where_a_padding_row_exists():
    gpt, ids = model(), tokens()
    ids[1, 3] = VOCABULARY
    with pytest.raises(ValueError, match=r"`input_ids` must be .*vocab_size \(50\), got 50"):
        gpt(ids)
    with pytest.raises(ValueError, match=r"`labels` must hold tokens from 0 to 49.*got 50"):
        gpt(tokens(), labels=ids)


def test_without_transformers_the_import_names_the_extra():
    code = "import sys; sys.modules['transformers'] = None\ntry:\n import harmax.hf\nexcept ImportError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "transformers" in done.stdout
    assert 'pip install "harmax[hf]"' in done.stdout
