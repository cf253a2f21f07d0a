"""The Hugging Face Trainer drives the model as it drives any other."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from hf.tiny import CHECKPOINTING, LENGTH, VOCABULARY, model

pytest.importorskip("accelerate", reason="the Trainer of transformers needs it")


class Counting(Dataset):
    """Texts that count upwards from anywhere, so that the next token can be learned; every other one is shorter."""

    def __init__(self, size: int) -> None:
        self.start = torch.arange(size) * 7

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = (self.start[index] + torch.arange(LENGTH)) % VOCABULARY
        labels = ids.clone()
        labels[: 6 * (index % 2)] = -100
        return {"input_ids": ids, "labels": labels}


def trainer(folder, gpt, **settings) -> Trainer:
    defaults = dict(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        max_steps=1,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    return Trainer(
        gpt, TrainingArguments(**{**defaults, **settings}), train_dataset=Counting(16), eval_dataset=Counting(6)
    )


def direct_loss(gpt, **options) -> float:
    items = [Counting(6)[index] for index in range(6)]
    ids, labels = (torch.stack([item[key] for item in items]) for key in ("input_ids", "labels"))
    with torch.no_grad():
        logits = gpt(ids).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), **options).item()


def test_a_few_steps_learn_are_saved_and_come_back(tmp_path):
    gpt = model(exponent=32.0, initializer_range=0.02, learn_exponent=True)
    before = direct_loss(gpt)
    saving = dict(save_strategy="steps", save_steps=12)
    run = trainer(tmp_path, gpt, max_steps=12, bf16=True, **saving, **{CHECKPOINTING: True})
    run.train()
    after = run.evaluate()["eval_loss"]
    assert after < before - 0.2
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-12")
    assert direct_loss(again) == pytest.approx(after, abs=0.02)
    assert again.lm_head.exponent.item() != pytest.approx(32.0, rel=1e-3)


def test_accumulated_steps_move_the_weights_as_one_batch_does(tmp_path):
    moved = []
    for settings in ({"per_device_train_batch_size": 8}, {"per_device_train_batch_size": 2}):
        gpt = model()
        steps = 8 // settings["per_device_train_batch_size"]
        run = trainer(tmp_path, gpt, **settings, gradient_accumulation_steps=steps, optim="sgd", max_grad_norm=0.0)
        run.train()
        moved.append((gpt.lm_head.weight.detach().clone(), run.state.log_history[-1]["train_loss"]))
    (one, loss), (accumulated, accumulated_loss) = moved
    assert (one - model().lm_head.weight).abs().max() > 1e-4
    torch.testing.assert_close(accumulated, one, rtol=1e-5, atol=1e-6)
    assert accumulated_loss == pytest.approx(loss, rel=1e-5)


def test_evaluation_gives_the_loss_over_predicted_tokens_and_the_logits(tmp_path):
    gpt = model()
    run = trainer(tmp_path, gpt, per_device_eval_batch_size=6)
    prediction = run.predict(Counting(6))
    assert prediction.metrics["test_loss"] == pytest.approx(direct_loss(gpt), rel=1e-5)
    logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
    assert logits.shape == (6, LENGTH, VOCABULARY)


def test_the_trainers_label_smoothing_shifts_the_labels(tmp_path):
    gpt = model()
    run = trainer(tmp_path, gpt, per_device_eval_batch_size=6, label_smoothing_factor=0.1)
    assert run.evaluate()["eval_loss"] == pytest.approx(direct_loss(gpt, label_smoothing=0.1), rel=1e-5)
