"""Every loss trains scikit-learn's digits, stacked in the ensemble engine as any other runs."""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from harmax_lab.ensemble import Ensemble, History, Plan, fit
from harmax_lab.losses import LOSSES
from harmax_lab.models import MLP

SEEDS = (0, 1)
OPTIONS: dict[str, dict[str, Any]] = {
    "dot_harmax": {"softening": 1.0},  # without any it does not train in any time that a test has
    "large_margin": {"annealing_rate": 5e-3},  # the published one takes thousands of steps
}
BATCH = {"contrastive": 48}  # its few pairs of one class ask for more steps
NO_CLASSIFIERS = ("contrastive_authors", "spherical_authors")


@dataclass(frozen=True)
class Digits:
    """Pixels as 64 tokens of 17 greys, the digit last."""

    train: np.ndarray
    test: np.ndarray
    vocabulary: int = 17


@cache
def digits(seed: int) -> Digits:
    bundle = pytest.importorskip("sklearn.datasets").load_digits()
    rows = np.column_stack([bundle.data.astype(int), bundle.target])
    order = np.random.default_rng(seed).permutation(len(rows))
    return Digits(rows[order[:1437]], rows[order[1437:]])


def trained(name: str) -> History:
    build = partial(MLP, 17, 64, head=name, tied=False, hidden=32, **OPTIONS.get(name, {}))
    plan = Plan(epochs=8, batch_size=BATCH.get(name, 96), learning_rate=1e-2)
    return fit(Ensemble(build, SEEDS, device="cpu"), [digits(seed) for seed in SEEDS], plan)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in NO_CLASSIFIERS])
def test_digits_are_learned(name: str) -> None:
    history = trained(name)
    assert history.diverged_at == [None, None]
    assert (history.test_accuracy[:, 0] < history.test_accuracy[:, -1]).all()
    assert history.test_accuracy[:, -1].min() > 0.9


@pytest.mark.parametrize("name", NO_CLASSIFIERS)
def test_a_loss_on_log_probabilities_does_not_make_the_right_digit_the_likely_one(name: str) -> None:
    history = trained(name)
    assert history.diverged_at == [None, None]
    assert history.test_accuracy[:, -1].max() < 0.3
    assert (history.train_loss[:, -1] < 0.9 * history.train_loss[:, 0]).all()  # though it does learn
