"""Harmonic models are at home in transformers: card, hub, device maps, pickles, compilation, the Trainer."""

import copy
import pickle

import pytest
import torch
from accelerate import cpu_offload, dispatch_model, init_empty_weights
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.utils import hub

import harmax.hf
from harmax.hf import harmonize
from hf.zoo import CLASSIFIERS, batch, plain


def harmonic(name="llama", **settings):
    return harmonize(plain(name, **settings), exponent=24)


@pytest.mark.parametrize(
    ("name", "auto"), [("llama", "CausalLM"), ("bert", "MaskedLM"), ("vit", "ImageClassification")]
)
def test_the_card_says_what_it_is_and_how_it_is_loaded(name, auto, tmp_path):
    model = harmonic(name)
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert f"# {type(model).__name__}\n" in card
    assert "| exponent n | 24 |" in card
    assert f'import harmax.hf  # makes transformers know the type "{model.config.model_type}"' in card
    assert f"model = AutoModelFor{auto}.from_pretrained(" in card
    (tmp_path / "README.md").write_text("my own words")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "my own words"


def test_pushing_uploads_the_card_instead_of_an_automatic_one(tmp_path, monkeypatch):
    uploaded = {}

    class Hub:
        def create_repo(self, repo_id, **_):
            return type("Url", (), {"repo_id": repo_id})

        def create_commit(self, *, operations, **_):
            for one in operations:
                with one.as_file() as file:
                    uploaded[one.path_in_repo] = file.read()

    monkeypatch.setattr(hub, "hf_api", Hub)
    monkeypatch.setattr(hub, "create_branch", lambda *_, **__: None, raising=False)
    monkeypatch.setattr(hub.ModelCard, "load", lambda *_, **__: (_ for _ in ()).throw(hub.EntryNotFoundError("none")))
    harmonic().push_to_hub("someone/model")
    assert "# HarmonicLlamaForCausalLM" in uploaded["README.md"].decode()


def test_a_device_map_with_a_disk_gives_the_same_loss(tmp_path):
    model, inputs = harmonic(), batch("llama")
    expected = model(**inputs)
    model.save_pretrained(tmp_path / "model")
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.rotary_emb": "cpu"}
    places |= {"model.layers.1": "disk", "model.norm": "disk", "lm_head": "disk"}
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=str(tmp_path / "offload")
    )
    assert again.lm_head.weight.is_meta
    output = again(**inputs)
    torch.testing.assert_close(output.logits, expected.logits)
    torch.testing.assert_close(output.loss, expected.loss)
    torch.testing.assert_close(again(**inputs, skip_logits=True).loss, expected.loss)
    with torch.no_grad():
        torch.testing.assert_close(again.train()(**inputs).loss, expected.loss)


def test_offloading_and_dispatching_hooks_serve_the_fused_loss():
    inputs = batch("llama")
    expected = harmonic().train()(**inputs).loss
    offloaded = harmonic().train()
    cpu_offload(offloaded, execution_device=torch.device("cpu"))
    torch.testing.assert_close(offloaded(**inputs).loss, expected)
    dispatched = dispatch_model(harmonic().train(), {"": "cpu"}, force_hooks=True)
    torch.testing.assert_close(dispatched(**inputs).loss, expected)
    torch.testing.assert_close(copy.deepcopy(dispatched)(**inputs).loss, expected)


def test_a_model_without_memory_can_be_built_and_harmonized():
    config = harmonic().config
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config)
        other = LlamaForCausalLM(plain("llama").config)
    assert model.lm_head.weight.is_meta
    assert model.lm_head.exponent == 24
    assert type(harmonize(other, exponent=24)) is type(model)


def test_models_and_configurations_can_be_pickled():
    model, inputs = harmonic(), batch("llama")
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(**inputs).loss, model(**inputs).loss)
    assert type(pickle.loads(pickle.dumps(model.config))) is harmax.hf.HarmonicLlamaConfig


def test_training_from_scratch_starts_as_the_model_of_transformers_does():
    sizes = {**plain("llama").config.to_diff_dict(), "harmonic_exponent": 24}
    del sizes["model_type"]
    config = AutoConfig.for_model("harmonic_llama", **sizes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    assert type(model) is harmax.hf.HarmonicLlamaForCausalLM
    expected = harmonic()
    for (name, parameter), (_, other) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        assert torch.equal(parameter, other), name
    assert model.lm_head.scale == expected.lm_head.scale == model.config.harmonic_scale
    with pytest.raises(AttributeError, match="HarmonicBertForTokenClassification"):
        harmax.hf.HarmonicBertForTokenClassification  # noqa: B018


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_training_step_compiles_into_one_graph(name):
    model, inputs = harmonic(name).train(), batch(name)
    expected = model(**inputs).loss
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(**inputs).loss, expected)


class Rows(Dataset):
    def __init__(self, name):
        self.batch = batch(name, rows=8)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {key: value[index] for key, value in self.batch.items()}


@pytest.mark.parametrize("name", ["llama", "bert", "mixtral", *CLASSIFIERS])
def test_the_trainer_learns_accumulates_saves_and_evaluates(name, tmp_path):
    model = harmonize(plain(name))
    settings = dict(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=10,
        learning_rate=2e-2,
        logging_steps=1,
        report_to=[],
        save_steps=10,
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    trainer = Trainer(model, TrainingArguments(**settings), train_dataset=Rows(name), eval_dataset=Rows(name))
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < before - 0.1
    again = type(model).from_pretrained(tmp_path / "checkpoint-10")
    with torch.no_grad():
        assert again(**batch(name, rows=8)).loss.item() == pytest.approx(after, abs=1e-5)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))


def test_the_trainers_weight_decay_acts_on_a_prior_as_the_guide_says(tmp_path):
    """It leaves out what has "bias" or "norm" in its name."""
    trainer = Trainer(harmonic("bert"), TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True))
    decayed = trainer.get_decay_parameter_names(trainer.model)
    assert "cls.predictions.decoder.prior" in decayed
    assert not any(name.endswith("bias") for name in decayed)


@pytest.mark.parametrize("name", ["llama", "bert", "vit"])
def test_the_trainers_label_smoothing_uses_the_log_probabilities(name, tmp_path):
    model, inputs = harmonic(name), batch(name, rows=8)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), label_smoothing_factor=0.1, report_to=[], use_cpu=True, disable_tqdm=True
    )
    found = Trainer(model, arguments, eval_dataset=Rows(name)).evaluate()["eval_loss"]
    labels = inputs.pop("labels")
    logits = model(**inputs).logits
    if name == "llama":
        logits, labels = logits[:, :-1], labels[:, 1:]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=0.1)
    assert found == pytest.approx(expected.item(), rel=1e-5)
