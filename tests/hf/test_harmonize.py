"""A model of transformers becomes harmonic in place, and is saved and loaded as what it is."""

import json
import math
import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, FalconH1Config, FalconH1ForCausalLM, LlamaForCausalLM

import harmax.hf
from harmax import HarmonicHead
from harmax.functional import harmonic_log_probabilities
from harmax.hf import from_gpt2, harmonize
from harmax.hf.config import ACTIVATIONS
from hf.zoo import FOLDERS, LANGUAGE, WIDTH, batch, head_of, plain

EVERY = pytest.mark.parametrize(("name", "tied"), FOLDERS)


@EVERY
def test_the_model_keeps_its_weights_and_predicts_by_distances(name, tied):
    model, inputs = plain(name, tied=tied), batch(name)
    head = head_of(name)(model)
    weight, bias, before = head.weight, head.bias, len(list(model.parameters()))
    features = []
    handle = head.register_forward_pre_hook(lambda _, arguments: features.append(arguments[0].detach()))
    model(**{key: value for key, value in inputs.items() if key != "labels"})
    handle.remove()
    assert harmonize(model, exponent=24) is model
    assert type(model).__name__.startswith("Harmonic")
    head = head_of(name)(model)
    assert isinstance(head, HarmonicHead)
    assert head.weight is weight
    assert head.prior is bias
    assert len(list(model.parameters())) == before
    if name in LANGUAGE:
        assert (head.weight is model.get_input_embeddings().weight) == tied
        expected = harmonic_log_probabilities(head.scale * features[0], weight, exponent=24, prior=bias)
        torch.testing.assert_close(model(**inputs).logits, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(**inputs).logits.exp().sum(-1), torch.ones(model(**inputs).logits.shape[:-1]))


def test_the_configuration_belongs_to_the_model_alone():
    model = plain("llama")
    shared = model.config
    other = LlamaForCausalLM(shared)
    harmonize(model, exponent=24, softening=0.5)
    assert type(shared).__name__ == type(other.config).__name__ == "LlamaConfig"
    assert model.model.config is model.config is model.model.layers[0].self_attn.config
    stored = model.config.to_dict()
    assert stored["model_type"] == "harmonic_llama"
    assert {key: value for key, value in stored.items() if key.startswith("harmonic")} == {
        "harmonic_exponent": 24.0,
        "harmonic_softening": 0.5,
        "harmonic_scale": None,
        "harmonic_prior": False,
    }


def test_a_model_may_have_several_tokens_that_end_a_text():
    model = harmonize(plain("llama", eos_token_id=[2, 3]), exponent=24)
    assert torch.equal(model(**batch("llama")).loss, harmonize(plain("llama"), exponent=24)(**batch("llama")).loss)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_nothing_takes_the_folder_of_the_plain_model_for_its_own(name, tmp_path):
    """Trainers would load the model there as a reference, and PEFT would load it as the base of an adapter."""
    plain(name).save_pretrained(tmp_path / "plain")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert read.config.name_or_path == str(tmp_path / "plain")
    others = [from_gpt2(read)] if name == "gpt2" else []
    for model in (harmonize(read), *others):
        assert model.name_or_path == model.config.name_or_path == ""
    read.save_pretrained(tmp_path / "harmonic")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "harmonic")
    assert again.config.name_or_path == str(tmp_path / "harmonic")


def test_the_weights_of_a_plain_model_get_the_scale_that_suits_them(tmp_path):
    model = plain("llama")
    model.save_pretrained(tmp_path)
    sizes = {key: value for key, value in model.config.to_diff_dict().items() if key != "model_type"}
    config = harmax.hf.HarmonicLlamaConfig(**sizes, harmonic_exponent=24)
    read, expected = (
        harmax.hf.HarmonicLlamaForCausalLM.from_pretrained(tmp_path, config=config),
        harmonize(model, exponent=24),
    )
    assert read.lm_head.scale == read.config.harmonic_scale == expected.lm_head.scale
    assert torch.equal(read(**batch("llama")).loss, expected(**batch("llama")).loss)


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_scale_is_found_at_once_behind_the_last_norm(name):
    model = harmonize(plain(name))
    head = head_of(name)(model)
    assert model.config.harmonic_exponent == head.exponent == math.sqrt(WIDTH)
    assert model.config.harmonic_scale == head.scale
    assert math.log2(head.scale).is_integer()
    assert torch.equal(head.centers * head.scale, head.weight)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", [*LANGUAGE, "llama_classifier", "vit"])
def test_a_small_gain_of_the_norm_starts_as_the_factor_does_and_is_saved(name, tied, tmp_path):
    by_factor, by_gain = harmonize(plain(name, tied=tied)), harmonize(plain(name, tied=tied), start="gain")
    factor, head = head_of(name)(by_factor).scale, head_of(name)(by_gain)
    assert factor not in (None, 1.0)
    assert head.scale == by_gain.config.harmonic_scale == 1.0
    same = [key for key, value in by_gain.state_dict().items() if torch.equal(value, by_factor.state_dict()[key])]
    assert len(by_factor.state_dict()) - len(same) <= 3  # gain, bias and the settings of the head
    inputs = batch(name)
    torch.testing.assert_close(by_gain.eval()(**inputs).logits, by_factor.eval()(**inputs).logits)
    by_gain.save_pretrained(tmp_path)
    again = type(by_gain).from_pretrained(tmp_path)
    assert head_of(name)(again).scale == 1.0
    assert torch.equal(again.eval()(**inputs).logits, by_gain(**inputs).logits)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("llama", {"start": "norm"}, "`start` must be one of factor, gain"),
        ("llama", {"start": "gain", "scale": 0.5}, "`start` gain must go without `scale` and without a softening"),
        ("llama", {"start": "gain", "softening": 1.0}, "`start` gain must go without `scale` and without a softening"),
        ("llama", {"start": "gain", "match": True}, "`start` must be left out with match=True"),
        ("bert_classifier", {"start": "gain"}, "`start` gain needs a norm right before the head"),
    ],
)
def test_a_start_that_cannot_be_is_refused_and_the_model_stays_as_it_is(name, settings, sentence):
    model = plain(name)
    before, kind = {key: value.clone() for key, value in model.state_dict().items()}, type(model)
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)):
        harmonize(model, **settings)
    assert type(model) is kind
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_norm_without_a_gain_cannot_start_small():
    model = plain("gpt2")
    model.transformer.ln_f = torch.nn.LayerNorm(model.config.n_embd, elementwise_affine=False)
    with pytest.raises(ValueError, match="must have a gain for `start` gain, got LayerNorm without one"):
        harmonize(model, start="gain")
    assert type(model).__name__ == "GPT2LMHeadModel"


def test_a_classifier_without_a_norm_finds_its_scale_from_the_first_batch(tmp_path):
    model, inputs = harmonize(plain("bert_classifier")), batch("bert_classifier")
    assert model.classifier.scale is None
    model.train()(**inputs).loss.backward()
    assert model.classifier.scale is not None
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["harmonic_scale"] == model.classifier.scale
    again = type(model).from_pretrained(tmp_path)
    assert again.classifier.scale == model.classifier.scale


FRESH = """
    import json, sys, torch, transformers
    import harmax.hf
    from hf.zoo import batch, head_of
    AUTO = {"bert": "MaskedLM", "bert_classifier": "SequenceClassification",
            "llama_classifier": "SequenceClassification", "vit": "ImageClassification"}
    for name, folder in json.loads(sys.argv[1]):
        model = getattr(transformers, f"AutoModelFor{AUTO.get(name, 'CausalLM')}").from_pretrained(folder)
        head = head_of(name)(model)
        tied = name not in AUTO or name == "bert"
        tied = tied and head.weight is model.get_input_embeddings().weight
        print(json.dumps([type(model).__name__, type(head).__name__, head.exponent, head.scale, tied,
                          model(**batch(name)).loss.item()]))
"""


def test_all_come_back_in_a_fresh_process(tmp_path):
    folders, expected = [], []
    for name, tied in FOLDERS:
        model = harmonize(plain(name, tied=tied), exponent=27.71)
        model.train()(**batch(name)).loss.backward()
        model.eval().save_pretrained(tmp_path / f"{name}_{tied}")
        folders.append((name, str(tmp_path / f"{name}_{tied}")))
        scale = head_of(name)(model).scale
        expected.append((type(model).__name__, 27.71, scale, tied, model(**batch(name)).loss.item()))
    run = [sys.executable, "-c", textwrap.dedent(FRESH), json.dumps(folders)]
    done = subprocess.run(
        run, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for (kind, exponent, scale, tied, loss), (its_kind, head, *its, its_loss) in zip(expected, found, strict=True):
        assert (its_kind, head, *its) == (kind, "TokenHead", exponent, scale, tied)
        assert its_loss == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("name", [*LANGUAGE, "vit"])
def test_a_concrete_class_of_transformers_cannot_read_the_folder(name, tmp_path):
    model = plain(name)
    kind, function = type(model), next(getattr(model.config, key) for key in ACTIVATIONS if hasattr(model.config, key))
    harmonize(model).save_pretrained(tmp_path)
    with pytest.raises(KeyError, match=r"import harmax\.hf"):
        kind.from_pretrained(tmp_path)
    config = type(model.config).from_pretrained(tmp_path)
    assert function in [getattr(config, key, None) for key in ACTIVATIONS]
    assert not any(f"harmonic_{key}" in config.to_dict() for key in ACTIVATIONS)


SMALL = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
ELSEWHERE = {
    "DistilBertForSequenceClassification": dict(vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=16),
    "FalconForCausalLM": dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2),
    "OpenAIGPTLMHeadModel": dict(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2),
    "SiglipForImageClassification": dict(text_config=SMALL, vision_config={**SMALL, "image_size": 32}),
    "XLNetLMHeadModel": dict(vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=16),
}
"""Models that name their function in another place."""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_concrete_class_finds_the_note_wherever_the_function_is_named(name, tmp_path):
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**ELSEWHERE[name]))
    before = functions_of(model)
    harmonize(model).save_pretrained(tmp_path)
    with pytest.raises(KeyError, match=r"import harmax\.hf"):
        kind.from_pretrained(tmp_path)
    assert functions_of(type(model).from_pretrained(tmp_path)) == before


def functions_of(model):
    config = model.config.to_dict()
    inner = [part for part in config.values() if isinstance(part, dict)]
    return [{key: value for key, value in part.items() if key in ACTIVATIONS} for part in (config, *inner)]


def test_without_harmax_nothing_reads_the_folder_as_a_dot_product(tmp_path):
    harmonize(plain("llama")).save_pretrained(tmp_path)
    code = """
        import sys, transformers
        for name in ("AutoModelForCausalLM", "LlamaForCausalLM"):
            try:
                getattr(transformers, name).from_pretrained(sys.argv[1])
            except (ValueError, KeyError) as error:
                print(str(error).splitlines()[0])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], check=True, capture_output=True, text=True
    )
    auto, concrete = done.stdout.splitlines()
    assert "harmonic_llama" in auto
    assert "import harmax.hf" in concrete
    with pytest.raises(KeyError, match=r"import harmax\.hf"):
        LlamaForCausalLM.from_pretrained(tmp_path)
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)).__name__ == "HarmonicLlamaForCausalLM"


def test_buffers_that_no_file_holds_are_made_anew_on_loading(tmp_path):
    sizes = dict(vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    small = dict(mamba_d_ssm=16, mamba_n_heads=2, mamba_d_head=8, mamba_d_state=4, num_key_value_heads=1, head_dim=8)
    model = harmonize(FalconH1ForCausalLM(FalconH1Config(**sizes, **small)))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for (name, buffer), (_, other) in zip(model.named_buffers(), again.named_buffers(), strict=True):
        assert torch.equal(buffer, other), name
