"""What cannot be trained is refused before anything is, in words that say what to do."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ensemble.twins import TASKS, Run, ensemble_of, model_of
from harmax_lab.ensemble import Ensemble, Plan, fit
from harmax_lab.models import MLP, Transformer
from harmax_lab.tasks import Split, find_task, make_split

SMALL = Run().split
LATTICE = make_split(find_task("lattice", size=2), 0)  # three tokens a question

build = partial(model_of, Run())


def train(splits: list[Split] | None = None, *, runs: int = 1, **plan: Any) -> object:
    own = [SMALL] * runs if splits is None else splits
    return fit(ensemble_of([Run()] * runs), own, Plan(**{"epochs": 1, **plan}))


def rows(*values: int) -> np.ndarray:
    return np.array([values, values])


def with_buffer() -> nn.Module:
    model = build()
    model.register_buffer("average", model.embedding.detach().clone())
    return model


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "no seeds": (lambda: Ensemble(build, []), "`seeds` must be one or more non-negative integers, got []"),
    "negative seed": (
        lambda: Ensemble(build, [3, -1]),
        "`seeds` must be one or more non-negative integers, got [3, -1]",
    ),
    "builds": (lambda: Ensemble([build] * 3, [0, 1]), "`build` must be one function or one per seed (2), got 3"),
    "names": (
        lambda: Ensemble([build, partial(build, tied=False)], [0, 1]),
        "`build` must give models of one kind",
    ),
    "kinds": (
        lambda: Ensemble([build, partial(build, "transformer")], [0, 1]),
        "`build` must give models of one kind",
    ),
    "buffers": (lambda: Ensemble(with_buffer, [0]), "`build` must give models without buffers"),
    "splits": (lambda: train([SMALL] * 2), "`splits` must be one for each of 1 runs, got 2"),
    "rates": (
        lambda: train(runs=2, learning_rate=[1e-3] * 3),
        "`learning_rate` must be one number or 2, one per run, got 3",
    ),
    "decays": (lambda: train(runs=2, weight_decay=[0.1]), "`weight_decay` must be one number or 2"),
    "exponents": (lambda: train(runs=2, exponent=[2.0]), "`exponent` must be one number or 2"),
    "epochs a run": (lambda: train(runs=2, epochs=[1, 2, 3]), "`epochs` must be one number or 2"),
    "token beyond": (
        lambda: train([replace(SMALL, train=rows(0, 1, 5))]),
        "`splits[0].train` must hold tokens from 0 to 4, got 0 to 5; check the vocabulary",
    ),
    "negative token": (
        lambda: train([replace(SMALL, test=rows(0, -1, 1))]),
        "`splits[0].test` must hold tokens from 0 to 4, got -1 to 1",
    ),
    "token counts": (
        lambda: train([SMALL, LATTICE], runs=2),
        "`splits[1].train` must have one row or more of 3 tokens, as in the other runs, got shape",
    ),
    "no test rows": (
        lambda: train([replace(SMALL, test=SMALL.test[:0])]),
        "`splits[0].test` must have one row or more of 3 tokens, as in the other runs, got shape (0, 3)",
    ),
    "snapshot after": (lambda: Plan(epochs=5, snapshots=[0, 6]), "`snapshots` must be epochs from 0 to 5, got 6"),
    "snapshot before": (lambda: Plan(epochs=5, snapshots=[-1]), "`snapshots` must be epochs from 0 to 5, got -1"),
    "no epochs": (lambda: Plan(epochs=0), "`epochs` must be a whole number and at least 1, got 0"),
    "no epochs in one": (lambda: Plan(epochs=[3, 0]), "`epochs` must be a whole number and at least 1, got 0"),
    "batch": (lambda: Plan(epochs=1, batch_size=0), "`batch_size` must be a whole number and at least 1, got 0"),
    "rate": (lambda: Plan(epochs=1, learning_rate=-1e-3), "`learning_rate` must be finite and at least 0, got -0.001"),
    "exponent 0": (lambda: Plan(epochs=1, exponent=0), "`exponent` must be above 0, got 0"),
    "exponent 0 of one": (lambda: Plan(epochs=1, exponent=[2.0, 0.0]), "`exponent` must be above 0, got 0"),
    "nan": (
        lambda: Plan(epochs=1, weight_decay=[0.1, math.nan]),
        "`weight_decay` must be finite and at least 0, got nan",
    ),
    "linear exponent": (
        lambda: fit(ensemble_of([Run()], head="linear"), [SMALL], Plan(epochs=1, exponent=2.0)),
        "`exponent` must be None for a model without a harmonic head of fixed exponent",
    ),
    "tied read-out": (
        lambda: ensemble_of([Run()], head="supcon"),
        "`build` must give models whose head, a SupConHead, is not tied to the embedding, got one that is",
    ),
    "head": (lambda: MLP(5, 2, head="harmonical"), "did you mean 'harmonic' or"),
    "transformer head": (lambda: Transformer(5, 2, head="lineal"), "did you mean 'linear' or"),
    "attention heads": (
        lambda: Transformer(5, 2, width=16, heads=3),
        "`width` must be a multiple of `heads`, got 16 and 3",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused(case: str) -> None:
    call, message = CASES[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


class Scaled(MLP):
    """A model with a setting that torch does not print."""

    def __init__(self, scale: float) -> None:
        super().__init__(5, 2)
        self.scale = scale


def frozen() -> nn.Module:
    model = build()
    model.embedding.requires_grad_(False)
    return model


def shared(model: nn.Module) -> Ensemble:
    return Ensemble(lambda: model, [0, 1])


# Each of these would go through, and wrong numbers or an error from deep inside would come out.
SILENT: dict[str, Callable[[], object]] = {
    "one model for all runs": lambda: shared(build()),
    "exponents of their own": lambda: Ensemble([partial(build, exponent=n) for n in (2.0, 8.0)], [0, 1]),
    "softenings of their own": lambda: Ensemble([partial(build, softening=a) for a in (0.0, 1.0)], [0, 1]),
    "margins of their own": lambda: Ensemble(
        [partial(build, head="arcface", margin=margin) for margin in (0.1, 0.5)], [0, 1]
    ),
    "heads of their own": lambda: Ensemble([partial(build, head=head) for head in ("harmonic", "linear")], [0, 1]),
    "widths of their own": lambda: Ensemble([partial(build, "transformer", width=w) for w in (8, 16)], [0, 1]),
    "a model smaller than its data": lambda: fit(
        ensemble_of([Run(), Run(TASKS["sums"])]), [Run(TASKS["sums"]).split] * 2, Plan(epochs=1)
    ),
    "an exponent for one that learns its own": lambda: fit(
        ensemble_of([Run()], head="learnable"), [SMALL], Plan(epochs=1, exponent=2.0)
    ),
    "settings of their own": lambda: Ensemble([partial(Scaled, 1.0), partial(Scaled, 5.0)], [0, 1]),
    "hidden layers of their own": lambda: Ensemble([partial(build, hidden=units) for units in (20, 5)], [0, 1]),
    "a frozen parameter": lambda: Ensemble(frozen, [0]),
    "a model larger than its data": lambda: fit(ensemble_of([Run(TASKS["sums"])]), [SMALL], Plan(epochs=1)),
    "no embedding": lambda: Ensemble(lambda: nn.Linear(2, 2), [0]),
    "half precision": lambda: Ensemble(build, [0], dtype=torch.bfloat16),
    "a beta of one": lambda: Plan(epochs=1, betas=(1.0, 0.999)),
    "half an epoch": lambda: train(epochs=1.5),
    "half a row": lambda: train(batch_size=1.5),
    "a snapshot in the middle of an epoch": lambda: train(snapshots=[0.5]),
    "epochs of no run": lambda: Plan(epochs=[]),
    "a penalty that is no number": lambda: Plan(epochs=1, penalty=math.nan),
    "half a seed": lambda: Ensemble(build, [0.5]),
}


@pytest.mark.parametrize("case", SILENT)
def test_what_cannot_be_stacked_is_refused(case: str) -> None:
    with pytest.raises((ValueError, TypeError), match="` must "):
        SILENT[case]()


def test_whole_numbers_may_be_written_as_floats() -> None:
    """1e3 is how one asks for a thousand epochs."""
    got, want = (train(epochs=epochs, batch_size=rows) for epochs, rows in ((2e0, 8.0), (2, 8)))
    np.testing.assert_array_equal(got.train_loss, want.train_loss)


def test_settings_a_run_may_be_an_array() -> None:
    """numpy's linspace is how one asks for a row of learning rates."""
    rates = np.linspace(1e-3, 1e-2, 3)
    got = train(runs=3, learning_rate=rates)
    np.testing.assert_array_equal(got.train_loss, train(runs=3, learning_rate=rates.tolist()).train_loss)
