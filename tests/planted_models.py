"""Embeddings and tiny language models in which word pairs of made-up tasks make parallelograms, up to noise."""

from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from harmax.inspect import measure_embedding, measure_layers
from planted_words import PAIRS

TOKENS, FEATURES = 260, 12
TASKS = {
    "capitalize": [(str(a), str(b)) for a, b in PAIRS[:40]],
    "antonym": [(str(a), str(b)) for a, b in PAIRS[40:70]],
    "present-past": [(str(a), str(b)) for a, b in PAIRS[70:]],
}


class Numbers:
    """Words are numbers, one token each, or several joined by a plus; other words are some token or other."""

    n_vocab = TOKENS

    def encode(self, text: str, /) -> list[int]:
        word = text.strip()
        return [int(part) for part in word.split("+")] if word[0].isdigit() else [sum(map(ord, word)) % TOKENS]

    def decode(self, tokens: list[int]) -> str:
        return "+".join(map(str, tokens))


def planted(noise: float, *, seed: int = 0, features: int = FEATURES) -> np.ndarray:
    """Gaussian tokens in which each task's second words lie one step from the first, up to noise."""
    generator = np.random.default_rng(seed)
    x_VD = generator.standard_normal((TOKENS, features))
    for task in TASKS.values():
        step_D = generator.standard_normal(features)
        for first, second in task:
            x_VD[int(second)] = x_VD[int(first)] + step_D + noise * generator.standard_normal(features)
    return x_VD.astype(np.float32)


def measured(x_VD: np.ndarray, **settings: Any) -> dict[str, np.ndarray]:
    return measure_embedding(x_VD, TASKS, Numbers(), **{"quadruples": 300, "seed": 0, **settings})


def tiny(*, rows: int = TOKENS) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=rows, n_positions=8, n_embd=FEATURES, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config)


def with_embedding(model: GPT2LMHeadModel, x_VD: np.ndarray) -> GPT2LMHeadModel:
    with torch.no_grad():
        model.transformer.wte.weight[:TOKENS] = torch.from_numpy(x_VD)
    return model


def states_of(model: Any, *, pairs: Any = None, at: tuple[int, ...] = (0,)) -> dict[str, np.ndarray]:
    return measure_layers(model, pairs or TASKS, Numbers(), layers=at, quadruples=200, seed=0, device="cpu")
