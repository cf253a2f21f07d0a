"""What cannot be harmonic is refused with the reason, and stays as it was."""

import json

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

import harmax.hf
from harmax.hf import harmonize
from hf.zoo import LABELS, LENGTH, WIDTH, WORDS, batch, plain

SIZES = dict(
    vocab_size=WORDS,
    hidden_size=WIDTH,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
BART = dict(
    vocab_size=WORDS,
    d_model=WIDTH,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=16,
    decoder_ffn_dim=16,
)
BERT = {key: SIZES[key] for key in list(SIZES)[:5]}
T5 = dict(vocab_size=WORDS, d_model=WIDTH, d_kv=8, d_ff=16, num_layers=1, num_heads=2)

REFUSED = {
    "soft-capping": ("Gemma2ForCausalLM", "Gemma2Config", SIZES, r"final_logit_softcapping=30.0, which would change"),
    "division": ("GraniteForCausalLM", "GraniteConfig", {**SIZES, "logits_scaling": 8.0}, "logits_scaling=8.0"),
    "factor": ("CohereForCausalLM", "CohereConfig", SIZES, "logit_scale=0.0625"),
    "tokens": ("BertForTokenClassification", "BertConfig", BERT, "it gives every token a label"),
    "questions": ("BertForQuestionAnswering", "BertConfig", BERT, "its outputs are the ends of a span"),
    "two heads": ("BertForPreTraining", "BertConfig", BERT, "it has two heads"),
    "two more heads": (
        "GPT2DoubleHeadsModel",
        "GPT2Config",
        dict(vocab_size=WORDS, n_embd=8, n_layer=1, n_head=2),
        "GPT2DoubleHeadsModel",
    ),
    "body": ("BertModel", "BertConfig", BERT, "`model` must be one of the causal and masked"),
    "other text": ("BartForConditionalGeneration", "BartConfig", BART, "sequence-to-sequence|another input"),
    "T5": ("T5ForSequenceClassification", "T5Config", T5, "sequence-to-sequence"),
    "several labels": (
        "BertForSequenceClassification",
        "BertConfig",
        {**BERT, "problem_type": "multi_label_classification"},
        "must choose one class .* got multi_label_classification",
    ),
    "a number": (
        "BertForSequenceClassification",
        "BertConfig",
        {**BERT, "problem_type": "regression"},
        "must choose one class .* got regression",
    ),
    "one label": ("BertForSequenceClassification", "BertConfig", {**BERT, "num_labels": 1}, "got regression"),
}


def state(model):
    modes = [module.training for module in model.modules()]
    kinds = [type(module) for module in model.modules()]
    return (
        kinds,
        modes,
        type(model.config),
        model.config.to_dict(),
        {k: v.clone() for k, v in model.state_dict().items()},
    )


def assert_unchanged(model, before):
    after = state(model)
    assert after[:4] == before[:4]
    for key, value in before[4].items():
        assert torch.equal(after[4][key], value), key
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_do_something_else_are_refused_and_unchanged(name):
    kind, config, sizes, words = REFUSED[name]
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).train()
    before = state(model)
    with pytest.raises(ValueError, match=words):
        harmonize(model)
    assert_unchanged(model, before)


def test_a_configuration_from_scratch_is_refused_as_well():
    config = harmax.hf.HarmonicGemma2Config(**SIZES)
    with pytest.raises(ValueError, match="final_logit_softcapping=30"):
        AutoModelForCausalLM.from_config(config)
    config.final_logit_softcapping = None
    assert type(AutoModelForCausalLM.from_config(config)).__name__ == "HarmonicGemma2ForCausalLM"


def test_a_model_that_changes_its_logits_in_its_own_way_is_found_by_trying_it():
    model = plain("llama")
    forward = type(model).forward

    class Louder(type(model)):
        def forward(self, *arguments, **options):
            outputs = forward(self, *arguments, **options)
            outputs.logits = outputs.logits * 1.01
            return outputs

    Louder.__name__, model.__class__ = "LlamaForCausalLM", Louder
    before = state(model)
    with pytest.raises(ValueError, match=r"`model` must use the output of its head \(lm_head\) as it is"):
        harmonize(model)
    assert_unchanged(model, before)


def test_heads_that_are_no_plain_linear_are_refused():
    with pytest.raises(ValueError, match="must not be harmonic already"):
        harmonize(harmonize(plain("llama")))
    sequence = plain("llama")
    sequence.lm_head = nn.Sequential(sequence.lm_head)
    with pytest.raises(ValueError, match=r"must have a plain nn\.Linear at its end, got .* torch Sequential"):
        harmonize(sequence)
    hooked = plain("llama")
    hooked.lm_head.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="must have no hooks"):
        harmonize(hooked)
    patched = plain("llama")
    patched.forward = patched.forward
    with pytest.raises(ValueError, match="must have the forward of its class"):
        harmonize(patched)
    with pytest.raises(TypeError, match="`model` must be a model of transformers, got Linear"):
        harmonize(nn.Linear(2, 2))


def test_a_quantized_head_is_refused():
    quanto = pytest.importorskip("optimum.quanto")
    model = plain("llama")
    quanto.quantize(model, weights=quanto.qint8)
    with pytest.raises(ValueError, match=r"must have a plain nn\.Linear at its end, got .* optimum QLinear"):
        harmonize(model)


def test_settings_that_make_no_head_leave_the_model_as_it_is():
    model = plain("llama")
    before = state(model)
    for wrong in (dict(exponent=-1.0), dict(exponent=float("nan")), dict(softening=-1.0), dict(scale=0.0)):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must be"):
            harmonize(model, **wrong)
    with pytest.raises(TypeError, match="`exponent` must be a number, got '24'"):
        harmonize(model, exponent="24")
    with pytest.raises(ValueError, match="`prior` must be True or None"):
        harmonize(plain("bert"), prior=False)
    assert_unchanged(model, before)


@pytest.mark.parametrize("name", ["bert_classifier", "vit"])
def test_a_classifier_refuses_other_problems_whenever_they_come(name):
    model, inputs = harmonize(plain(name)), batch(name)
    several = torch.zeros(3, LABELS)
    with pytest.raises(ValueError, match=r"labels are torch\.float32"):
        model(**{**inputs, "labels": several})
    assert model.config.problem_type is None
    model.config.problem_type = "multi_label_classification"
    with pytest.raises(ValueError, match="got multi_label_classification"):
        model(**inputs)
    with pytest.raises(ValueError, match="got multi_label_classification"):
        model(**{key: value for key, value in inputs.items() if key != "labels"})
    model.config.problem_type = "single_label_classification"
    assert model(**inputs).loss.isfinite()


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (..., ValueError, "must have a number as `harmonic_exponent`, got none"),
        (None, ValueError, "must have a number as `harmonic_exponent`, got null"),
        (-3.0, ValueError, "`harmonic_exponent` must be a positive number.*got -3.0"),
        (float("nan"), ValueError, "`harmonic_exponent` must be a positive number.*got nan"),
        ("24", TypeError, "`harmonic_exponent` must be a number, got '24'"),
    ],
)
def test_a_file_without_a_sound_exponent_is_refused(value, error, words, tmp_path):
    harmonize(plain("llama"), exponent=24).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["harmonic_exponent"] = value
    if value is ...:
        del config["harmonic_exponent"]
    path.write_text(json.dumps(config))
    with pytest.raises(error, match=words):
        AutoConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("harmonic_exponent", 25.0), ("harmonic_softening", 0.5), ("harmonic_scale", 8.0)]
)
def test_a_configuration_and_weights_of_different_models_are_refused(key, value, tmp_path):
    harmonize(plain("llama"), exponent=24).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ValueError, match=r"`settings` must be|must have the same settings"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_new_head_on_the_body_of_another_model_has_its_own_scale(tmp_path):
    model = harmonize(plain("llama"), exponent=24, scale=2.0**-9)
    model.save_pretrained(tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=LABELS)
    assert classifier.score.exponent == 24
    assert classifier.score.scale not in (None, 2.0**-9)
    ids = batch("llama")["input_ids"]
    assert classifier(ids, labels=torch.tensor([0, 1, 2])).loss < 3
    assert ids.shape == (3, LENGTH)


@pytest.mark.parametrize("name", ["bert_classifier", "llama_classifier"])
def test_a_head_for_other_labels_has_its_own_scale(name, tmp_path):
    model = harmonize(plain(name), exponent=24, scale=2.0**-9)
    model.save_pretrained(tmp_path)
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path).harmonic_head.scale == 2.0**-9
    other = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=7, ignore_mismatched_sizes=True)
    other.train()(**batch(name))
    assert other.harmonic_head.out_features == 7
    assert other.harmonic_head.scale not in (None, 2.0**-9)
