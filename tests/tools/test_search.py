"""A hyperparameter search of transformers with Optuna builds a harmonic model per trial."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("optuna")
pytest.importorskip("transformers")

from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from harmax.hf import harmonize

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's packages, as they come
SIZES = dict(vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)


class Counting(Dataset):
    """Numbers in order: each token says what the next one is."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(8) + index) % 20
        return {"input_ids": tokens, "labels": tokens}


def test_the_trainer_searches_for_an_exponent(tmp_path: Path) -> None:
    exponents = []

    def model_init(trial: object) -> LlamaForCausalLM:
        torch.manual_seed(0)
        exponent = 16.0 if trial is None else trial.suggest_float("exponent", 2, 64, log=True)
        exponents.append(exponent)
        return harmonize(LlamaForCausalLM(LlamaConfig(**SIZES)), exponent=exponent)

    arguments = TrainingArguments(
        str(tmp_path), max_steps=12, eval_strategy="steps", eval_steps=6, save_strategy="no", report_to=[], use_cpu=True
    )
    trainer = Trainer(args=arguments, train_dataset=Counting(), eval_dataset=Counting(), model_init=model_init)
    best = trainer.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)},
        n_trials=3,
        direction="minimize",
        backend="optuna",
        compute_objective=lambda metrics: metrics["eval_loss"],
    )
    assert best.hyperparameters.keys() == {"exponent", "learning_rate"}
    assert best.hyperparameters["exponent"] in exponents
    assert len(set(exponents)) >= 3
    assert best.objective < 3.0
