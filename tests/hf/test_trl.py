"""Trainers of TRL train the harmonic loss: their fused head is answered by the harmonic one."""

import copy
import math
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset as Items
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from harmax.heads.lora import lora_on_centers
from harmax.hf import harmonize
from hf.zoo import LENGTH, WORDS, batch, plain

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what these packages warn of on import is not ours
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    tokenizers = pytest.importorskip("tokenizers")
    peft = pytest.importorskip("peft")
    from transformers import PreTrainedTokenizerFast
    from trl.trainer.utils import add_fused_lm_head

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL's dependencies, as they come

TEXTS = torch.randint(2, WORDS, (8, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()
COMMON = dict(
    max_steps=3,
    per_device_train_batch_size=4,
    learning_rate=1e-2,
    logging_steps=1,
    lr_scheduler_type="constant",
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
    seed=0,
)
ALL = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


def harmonic(name="llama", **settings):
    return harmonize(plain(name), exponent=24, **settings)


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{index}": index for index in range(WORDS)}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w1"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"w\d+"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=own, eos_token="w2", pad_token="w0", unk_token="w1")


class Texts(Items):
    def __len__(self) -> int:
        return len(TEXTS)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": torch.tensor(TEXTS[index]), "labels": torch.tensor(TEXTS[index])}


def losses(trainer) -> list[float]:
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def sft(model, folder, **settings):
    config = trl.SFTConfig(output_dir=str(folder), **{**COMMON, "bf16": False, **settings})
    rows = datasets.Dataset.from_list([{"input_ids": text} for text in TEXTS])
    return trl.SFTTrainer(model, args=config, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer())


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_sft_with_its_defaults_trains_as_the_trainer_of_transformers_does(name, tmp_path):
    model, other = harmonic(name), harmonic(name)
    expected = losses(Trainer(other, TrainingArguments(output_dir=str(tmp_path), **COMMON), train_dataset=Texts()))
    trainer = sft(model, tmp_path, gradient_checkpointing=False)
    assert losses(trainer) == pytest.approx(expected, rel=1e-5)
    moved = {key: value for key, value in model.state_dict().items() if key.endswith("weight")}
    for key, value in other.state_dict().items():
        if key in moved:
            torch.testing.assert_close(moved[key], value, rtol=1e-4, atol=1e-5, msg=key)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(harmonic_loss_of(model), rel=1e-5)


def harmonic_loss_of(model) -> float:
    ids = torch.tensor(TEXTS)
    with torch.no_grad():
        logits = model.eval()(ids).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()


def test_sft_with_lora_on_the_body_starts_from_the_harmonic_loss(tmp_path):
    model = harmonic()
    expected = harmonic_loss_of(model)
    config = trl.SFTConfig(output_dir=str(tmp_path), **{**COMMON, "bf16": False, "per_device_train_batch_size": 8})
    rows = datasets.Dataset.from_list([{"input_ids": text} for text in TEXTS])
    lora = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, task_type="CAUSAL_LM")
    trainer = trl.SFTTrainer(model, args=config, train_dataset=rows, processing_class=tokenizer(), peft_config=lora)
    assert losses(trainer)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_statistics_of_each_token_are_those_of_its_probabilities(temperature):
    model, inputs = harmonic().train(), batch("llama")
    add_fused_lm_head(model, temperature=temperature, outputs=ALL)
    output = model(**inputs, fused_lm_head=True)
    probabilities = torch.distributions.Categorical(logits=model(inputs["input_ids"]).logits[:, :-1] / temperature)
    labels = inputs["labels"][:, 1:]
    mask = labels != -100
    expected = {
        "log_probs": probabilities.log_prob(labels.clamp(min=0)),
        "entropy": probabilities.entropy(),
        "log_sum_sq_probs": probabilities.probs.square().sum(-1).log(),
        "mean_logits": probabilities.logits.mean(-1),
        "is_top1": probabilities.probs.argmax(-1) == labels,
    }
    assert torch.equal(output.label_mask, mask)
    for name, value in expected.items():
        torch.testing.assert_close(output[name], value.masked_fill(~mask, 0), rtol=1e-4, atol=1e-4, msg=name)
    torch.testing.assert_close(output.loss, -expected["log_probs"][mask].mean(), rtol=1e-4, atol=1e-4)
    model.zero_grad()
    output.entropy.sum().backward()
    fused = model.lm_head.weight.grad.clone()
    model.zero_grad()
    expected["entropy"][mask].sum().backward()
    torch.testing.assert_close(fused, model.lm_head.weight.grad, rtol=1e-3, atol=1e-4)


def test_the_gradient_of_the_entropy_is_that_of_centers_with_an_adapter():
    config = peft.LoraConfig(target_modules=["q_proj", "lm_head"], init_lora_weights=False, task_type="CAUSAL_LM")
    model = peft.get_peft_model(harmonic(), lora_on_centers(config)).train()
    add_fused_lm_head(model.get_base_model(), outputs=ALL)
    inputs = batch("llama")
    mask = inputs["labels"][:, 1:] != -100
    probabilities = torch.distributions.Categorical(logits=model(input_ids=inputs["input_ids"]).logits[:, :-1])
    trained = [p for p in model.parameters() if p.requires_grad]
    expected = torch.autograd.grad(probabilities.entropy()[mask].sum(), trained)
    fused = torch.autograd.grad(model(**inputs, fused_lm_head=True).entropy.sum(), trained)
    torch.testing.assert_close(fused, expected, rtol=1e-3, atol=1e-4)


def test_sft_refuses_an_adapter_on_the_head(tmp_path):
    """TRL says so of every model, because its own fused head would not see the adapter."""
    config = trl.SFTConfig(output_dir=str(tmp_path), **{**COMMON, "bf16": False})
    rows = datasets.Dataset.from_list([{"input_ids": text} for text in TEXTS])
    lora = lora_on_centers(peft.LoraConfig(target_modules=["lm_head"], task_type="CAUSAL_LM"))
    with pytest.raises(ValueError, match="adapter to `lm_head` is not supported"):
        trl.SFTTrainer(harmonic(), args=config, train_dataset=rows, processing_class=tokenizer(), peft_config=lora)


def saved(folder):
    harmonic().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


def test_dpo_compares_with_the_harmonic_model_itself(tmp_path):
    model = saved(tmp_path / "model")
    rows = datasets.Dataset.from_list([{"prompt": "w5w6", "chosen": "w8w9", "rejected": "w30w31"}] * 4)
    config = trl.DPOConfig(output_dir=str(tmp_path), **{**COMMON, "bf16": False, "max_steps": 1})
    trainer = trl.DPOTrainer(model, args=config, train_dataset=rows, processing_class=tokenizer())
    assert type(trainer.ref_model).__name__ == "HarmonicLlamaForCausalLM"
    pairs = next(iter(trainer.get_train_dataloader()))
    ids, answers = pairs["input_ids"], pairs["completion_mask"][:, 1:].bool()
    assert {8, 9, 30, 31} <= set(ids[:, 1:][answers].tolist())
    log_p = model(ids, attention_mask=pairs["attention_mask"]).logits[:, :-1]
    sums = log_p.gather(2, ids[:, 1:, None])[..., 0].masked_fill(~answers, 0).sum(1).tolist()
    trainer.train()
    found = trainer.state.log_history[0]
    assert found["loss"] == pytest.approx(math.log(2), rel=1e-5)
    assert [found["logps/chosen"], found["logps/rejected"]] == pytest.approx([sums[0], sums[-1]], rel=1e-5)


def test_grpo_compares_with_the_harmonic_model_itself(tmp_path):
    settings = {**COMMON, "bf16": False, "max_steps": 1, "num_generations": 4, "max_completion_length": 4, "beta": 0.1}
    trainer = trl.GRPOTrainer(
        saved(tmp_path / "model"),
        reward_funcs=lambda completions, **_: [float(len(one)) for one in completions],
        args=trl.GRPOConfig(output_dir=str(tmp_path), **settings),
        train_dataset=datasets.Dataset.from_list([{"prompt": "w5w6"}] * 4),
        processing_class=tokenizer(),
    )
    assert type(trainer.ref_model).__name__ == "HarmonicLlamaForCausalLM"
    trainer.train()
    found = trainer.state.log_history[0]
    assert found["kl"] == pytest.approx(0, abs=1e-6)
    assert 0 < found["entropy"] <= math.log(WORDS)


def test_trainers_that_multiply_by_the_weight_of_the_head_stop(tmp_path):
    """TRL's distillation reads the bias of a Linear, which a harmonic head does not have."""
    rows = datasets.Dataset.from_list([{"prompt": "w5w6", "completion": "w8w9"}] * 4)
    config = trl.DistillationConfig(output_dir=str(tmp_path), **{**COMMON, "bf16": False, "max_steps": 1})
    trainer = trl.DistillationTrainer(
        harmonic(), teacher_model=plain("llama", seed=4), args=config, train_dataset=rows, processing_class=tokenizer()
    )
    with pytest.raises(AttributeError, match="'TokenHead' object has no attribute 'bias'"):
        trainer.train()


def test_without_the_flag_the_model_is_as_before_and_copies_are_their_own():
    model, inputs = harmonic().train(), batch("llama")
    expected = model(**inputs).loss
    add_fused_lm_head(model)
    torch.testing.assert_close(model(**inputs).loss, expected)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model.lm_head.weight.add_(torch.randn_like(model.lm_head.weight))
    torch.testing.assert_close(twin(**inputs).loss, expected)
    torch.testing.assert_close(twin(**inputs, fused_lm_head=True).loss, expected)
    ahead = dict(input_ids=inputs["input_ids"], shift_labels=F.pad(inputs["labels"][:, 1:], (0, 1), value=-100))
    torch.testing.assert_close(twin(**ahead, fused_lm_head=True).loss, expected)


def test_the_mixtures_auxiliary_loss_comes_along():
    model, inputs = harmonic("mixtral").train(), batch("mixtral")
    expected = model(**inputs).loss
    add_fused_lm_head(model)
    output = model(**inputs, fused_lm_head=True)
    torch.testing.assert_close(output.loss, expected)
    assert output.aux_loss > 0.1


def test_a_fused_head_of_another_version_is_refused():
    def _fused_forward(self, *arguments, **options): ...

    other = types.FunctionType(_fused_forward.__code__, {"__name__": "trl.trainer.utils"})
    with pytest.raises(RuntimeError, match="the fused head of TRL must be that of a version which harmax knows"):
        harmonic().forward = types.MethodType(other, None or object())
