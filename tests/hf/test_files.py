"""What is saved is read back: by the class, by the Auto classes, with tied weights stored once."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM

from harmax.hf import HarmonicGPT2LMHeadModel, HarmonicGPT2Model
from hf.tiny import WIDTH, model, tokens

VARIANTS = {
    "tied": dict(exponent=2 * WIDTH),
    "untied": dict(tie_word_embeddings=False, softening=0.1),
    "learned": dict(learn_exponent=True),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_saved_model_gives_the_same_logits(name, tmp_path):
    gpt, ids = model(**VARIANTS[name]), tokens()
    if name == "learned":
        torch.nn.init.constant_(gpt.lm_head.log_exponent, 2.5)
    gpt.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is HarmonicGPT2LMHeadModel
    assert not again.training
    assert torch.equal(again(ids).logits, gpt(ids).logits)
    assert (again.lm_head.weight is again.transformer.wte.weight) == (name != "untied")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "harmonic_gpt2"
    assert config["vocab_size"] == 50
    assert {"harmonic_exponent", "learn_exponent", "harmonic_softening", "pad_vocab_to_multiple_of"} <= set(config)


@pytest.mark.parametrize("name", VARIANTS)
def test_tied_weights_are_stored_once(name, tmp_path):
    gpt = model(**VARIANTS[name])
    gpt.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118  # not a dict
    padded = {key for key in shapes if key.endswith(("wte.weight", "lm_head.weight"))}
    assert padded == {"transformer.wte.weight"} | ({"lm_head.weight"} if name == "untied" else set())
    assert {shapes[key] for key in padded} == {(64, WIDTH)}
    assert ("lm_head.log_exponent" in shapes) == (name == "learned")


def test_the_transformer_alone_reads_the_file_of_the_whole(tmp_path):
    gpt, ids = model(), tokens()
    gpt.save_pretrained(tmp_path)
    alone = AutoModel.from_pretrained(tmp_path)
    assert type(alone) is HarmonicGPT2Model
    assert torch.equal(alone(ids).last_hidden_state, gpt.transformer(ids).last_hidden_state)


def test_in_half_precision_a_learned_exponent_stays_whole(tmp_path):
    gpt, ids = model(learn_exponent=True, exponent=1000.0), tokens()
    gpt.save_pretrained(tmp_path)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half.lm_head.weight.dtype == torch.bfloat16
    assert torch.equal(half.lm_head.log_exponent, gpt.lm_head.log_exponent)
    logits = half(ids).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(ids.shape))


@pytest.mark.parametrize("exponent", [9.0, None])
def test_a_model_that_an_older_harmax_saved_still_loads(exponent, tmp_path):
    gpt, ids = model(exponent=exponent), tokens()
    gpt.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if "harmonic" not in key}
    config |= {"exponent": exponent, "softening": 0.0, "model_type": "harmonic_gpt2", "activation_function": "gelu_new"}
    path.write_text(json.dumps(config))
    weights = load_file(tmp_path / "model.safetensors")
    del weights["lm_head.settings"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids).logits, gpt(ids).logits)
    assert again.lm_head.scale == 1.0


def test_a_fixed_exponent_can_be_learned_from_where_it_is(tmp_path):
    model(exponent=6.0).save_pretrained(tmp_path)
    gpt = HarmonicGPT2LMHeadModel.from_pretrained(tmp_path, learn_exponent=True)
    assert gpt.lm_head.exponent.item() == pytest.approx(6.0)
    assert gpt.lm_head.log_exponent.requires_grad
