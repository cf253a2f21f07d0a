"""The loss of a training step needs no logits, and equals that of the logits."""

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from harmax.hf import harmonize
from hf.tiny import CHECKPOINTING
from hf.zoo import CLASSIFIERS, LANGUAGE, LENGTH, WORDS, batch, plain

CAUSAL = [name for name in LANGUAGE if name != "bert"]


def harmonic(name, **settings):
    return harmonize(plain(name, **settings), exponent=24)


def by_hand(logits, labels, name, **options):
    if name != "bert":
        logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), **options)


def gradients(model):
    found = {key: parameter.grad.clone() for key, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", LANGUAGE)
def test_the_fused_loss_and_its_gradients_are_those_of_the_logits(name, tied):
    model, inputs = harmonic(name, tied=tied).train(), batch(name)
    output = model(**inputs)
    assert output.logits is None
    output.loss.backward()
    fused = gradients(model)
    unfused = model(**inputs, skip_logits=False)
    unfused.loss.backward()
    expected = gradients(model)
    torch.testing.assert_close(output.loss, unfused.loss, rtol=1e-5, atol=1e-5)
    assert fused.keys() == expected.keys()
    for key in fused:
        torch.testing.assert_close(fused[key], expected[key], rtol=1e-3, atol=1e-5, msg=key)
    loss = by_hand(unfused.logits, inputs["labels"], name)
    if name == "mixtral":
        loss = loss + 0.5 * unfused.aux_loss
        assert unfused.aux_loss > 0.1
    torch.testing.assert_close(unfused.loss, loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_loss_of_a_classifier_is_that_of_its_log_probabilities(name):
    model, inputs = harmonic(name).train(), batch(name)
    output = model(**inputs)
    torch.testing.assert_close(output.loss, F.nll_loss(output.logits, inputs["labels"]))
    output.loss.backward()
    assert model.harmonic_head.weight.grad.abs().sum() > 0


class Sizes(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(one, torch.Tensor):
                self.largest = max(self.largest, one.untyped_storage().nbytes() // one.element_size())
        return made


def test_a_training_step_makes_no_matrix_of_tokens_by_vocabulary():
    words = 30_000
    sizes = dict(vocab_size=words, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    model = harmonize(LlamaForCausalLM(LlamaConfig(**sizes))).train()
    ids = torch.randint(words, (16, 64), generator=torch.Generator().manual_seed(0))

    def largest(**options):
        with Sizes() as sizes:
            model(ids, labels=ids, **options).loss.backward()
        return sizes.largest

    assert largest(skip_logits=False) >= ids.numel() * words
    assert largest() < ids.numel() * words / 4  # the kernel's own blocks


def test_labels_that_are_shifted_already_use_every_place():
    model, inputs = harmonic("llama"), batch("llama")
    ids = inputs["input_ids"]
    for mode in (True, False):
        model.train(mode)
        ahead = model(ids[:, :-1], shift_labels=ids[:, 1:]).loss
        torch.testing.assert_close(ahead, model(ids, labels=ids).loss)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("training", [True, False])
def test_the_number_of_items_divides_the_sum(name, training):
    model, inputs = harmonic(name).train(training), batch(name)
    shown = inputs["labels"] if name == "bert" else inputs["labels"][:, 1:]
    count = (shown != -100).sum()
    expected = model(**inputs).loss * count / 100
    torch.testing.assert_close(model(**inputs, num_items_in_batch=100).loss, expected)
    torch.testing.assert_close(model(**inputs, num_items_in_batch=torch.tensor(100)).loss, expected)


@pytest.mark.parametrize("training", [True, False])
def test_only_the_kept_places_count(training):
    model, inputs = harmonic("llama").train(training), batch("llama")
    ids, labels = inputs["input_ids"], inputs["labels"]
    following = F.pad(labels[:, 1:], (0, 1), value=-100)
    whole = model.eval()(ids).logits
    model.train(training)
    for which, places in ((3, slice(-3, None)), (torch.tensor([2, 7]), [2, 7])):
        loss = model(ids, labels=labels, logits_to_keep=which).loss
        expected = F.cross_entropy(whole[:, places].flatten(0, 1), following[:, places].flatten())
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    own = model(ids, labels=labels[:, -3:], logits_to_keep=3).loss  # as trainers do that cut the labels themselves
    torch.testing.assert_close(own, F.cross_entropy(whole[:, -3:-1].flatten(0, 1), labels[:, -2:].flatten()))
    mask = following != -100
    torch.testing.assert_close(model(ids, labels=labels, logits_to_keep=mask).loss, model(ids, labels=labels).loss)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "mixtral"])
def test_a_tuple_begins_with_the_loss(name):
    model, inputs = harmonic(name).train(), batch(name)
    expected = model(**inputs).loss
    torch.testing.assert_close(model(**inputs, return_dict=False)[0], expected)
    model.eval()
    loss, logits = model(**inputs, return_dict=False)[:2] if name != "mixtral" else (expected, None)
    torch.testing.assert_close(loss, expected)
    if logits is not None:
        assert logits.shape == (3, LENGTH, WORDS)


def test_arguments_by_position_mean_what_they_mean_in_transformers():
    model, inputs = harmonic("llama").train(), batch("llama")
    ids, labels = inputs["input_ids"], inputs["labels"]
    by_place = model(ids, torch.ones_like(ids), None, None, None, labels)
    torch.testing.assert_close(by_place.loss, model(ids, labels=labels).loss)
    assert by_place.past_key_values is None
    for wrong in (((ids,), dict(input_ids=ids)), ((ids, *[None] * 20), {})):
        with pytest.raises(TypeError, match="must get each of its 8 arguments at most once"):
            model(*wrong[0], **wrong[1])


def test_gradient_checkpointing_changes_no_gradient():
    model, inputs = harmonic("llama").train(), batch("llama")
    model(**inputs).loss.backward()
    expected = gradients(model)
    loss = checkpoint(lambda: model(**inputs).loss, use_reentrant=False)
    loss.backward()
    whole = gradients(model)
    getattr(model, f"{CHECKPOINTING}_enable")()
    model(**inputs).loss.backward()
    layers = gradients(model)
    for key in expected:
        torch.testing.assert_close(layers[key], expected[key], msg=key)
        torch.testing.assert_close(whole[key], expected[key], msg=key)


def test_an_error_in_a_step_leaves_the_head_as_it_was():
    model, inputs = harmonic("llama").train(), batch("llama")
    expected = model(**inputs).loss
    with pytest.raises(ValueError, match="`labels` must hold tokens from 0 to 49"):
        model(inputs["input_ids"], labels=inputs["labels"] + 50)
    with pytest.raises(ValueError, match="shape"):
        model(inputs["input_ids"], labels=inputs["labels"][:, :5])
    with pytest.raises(ValueError, match="`skip_logits` must come with `labels`"):
        model(inputs["input_ids"], skip_logits=True)
    assert model(inputs["input_ids"]).logits.shape == (3, LENGTH, WORDS)
    torch.testing.assert_close(model(**inputs).loss, expected)


def test_a_call_inside_a_call_has_its_own_labels():
    model, inputs = harmonic("llama").train(), batch("llama")
    other, inner = batch("llama", seed=2), []

    def call_again(*_):
        if not inner:
            inner.append(None)
            inner.extend((model(**other).loss, model(other["input_ids"]).logits))

    model.model.norm.register_forward_hook(call_again)
    outer = model(**inputs).loss
    _, loss, logits = inner
    torch.testing.assert_close(outer, model(**inputs).loss)
    torch.testing.assert_close(loss, model(**other).loss)
    torch.testing.assert_close(logits, model(other["input_ids"]).logits)


def test_a_copy_trains_on_its_own():
    model, inputs = harmonic("llama").train(), batch("llama")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_().add_(1.0)
    twin(**inputs).loss.backward()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", CAUSAL)
def test_generation_takes_the_nearest_token_at_every_step(name):
    model, ids = harmonic(name), batch(name)["input_ids"]
    mask = torch.ones_like(ids)
    text = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    for length in range(LENGTH, LENGTH + 4):
        assert torch.equal(text[:, length], model(text[:, :length]).logits[:, -1].argmax(-1))


@pytest.mark.slow
def test_sharded_models_train_as_whole_ones_do(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hf.sharded", str(tmp_path)],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    for loss, expected, wrong, largest, _ in json.loads((tmp_path / "found.json").read_text()):
        assert loss == pytest.approx(expected, rel=1e-5)
        assert wrong < 1e-5 < largest
