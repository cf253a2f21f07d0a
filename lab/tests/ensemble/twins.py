"""Runs that differ in everything a run may differ in, trained together and each alone."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ensemble.plain import fit_plain
from harmax_lab.ensemble import Ensemble, History, Plan
from harmax_lab.models import MODELS
from harmax_lab.tasks import Split, Task, find_task, make_split

CURVES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
TASKS = {  # vocabularies of 5, 7, 6 and 19
    "small": find_task("modular_addition", modulus=5),
    "sums": find_task("modular_addition", protocol="authors", modulus=7),
    "permutation": find_task("permutation", degree=3),
    "family": find_task("genealogy", protocol="authors", nodes=15),
}


@dataclass(frozen=True)
class Run:
    """What one run has of its own."""

    task: Task = TASKS["small"]
    seed: int = 0
    train_fraction: float = 0.8
    epochs: int = 4
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    exponent: float = 2.0

    @property
    def split(self) -> Split:
        return make_split(self.task, self.seed, train_fraction=self.train_fraction, samples=100)


# Vocabularies, rows and epochs differ, so every kind of padding happens; run 1 is never the longest nor the widest.
MIXED = (
    Run(TASKS["sums"], seed=0),
    Run(TASKS["sums"], seed=1, train_fraction=0.3, epochs=2, learning_rate=1e-2),
    Run(TASKS["permutation"], seed=5, weight_decay=0.5, exponent=6.0),
    Run(TASKS["family"], seed=2**31, epochs=3, learning_rate=5e-4, exponent=1.0),
)


def model_of(run: Run, model: str = "mlp", **options: Any) -> nn.Module:
    return MODELS[model](run.task.vocabulary, run.task.inputs, **options)


def ensemble_of(
    runs: Sequence[Run], model: str = "mlp", *, dtype: torch.dtype = torch.float64, device: str = "cpu", **options: Any
) -> Ensemble:
    builds = [partial(model_of, run, model, **options) for run in runs]
    return Ensemble(builds, [run.seed for run in runs], device=device, dtype=dtype)


def plan_of(runs: Sequence[Run], *, exponent: bool = True, **options: Any) -> Plan:
    """Return a plan that gives each run its own settings; without `exponent` heads keep what they were built with."""
    own = {name: [getattr(run, name) for run in runs] for name in ("epochs", "learning_rate", "weight_decay")}
    if exponent:
        own["exponent"] = [run.exponent for run in runs]
    return Plan(**{**own, **options})


def train_alone(model: nn.Module, run: Run, plan: Plan) -> dict[str, list[float]]:
    """Train a model in place by the plain loop with the settings of its run; return its curves."""
    if plan.exponent is not None:
        model.head.exponent = run.exponent
    names = ("epochs", "learning_rate", "weight_decay")
    own = replace(plan, snapshots=(), exponent=None, **{name: getattr(run, name) for name in names})
    return fit_plain(model, run.split, own, run.seed)


def copies(ensemble: Ensemble) -> list[nn.Module]:
    return [copy.deepcopy(model) for model in ensemble]


def assert_same_parameters(got: Iterable[nn.Module], want: Iterable[nn.Module], tolerance: float = 1e-9) -> None:
    for run, (one, other) in enumerate(zip(got, want, strict=True)):
        expected = dict(other.named_parameters())
        for name, parameter in one.named_parameters():
            message: Callable[[str], str] = lambda text, place=f"run {run}, {name}": f"{place}: {text}"  # noqa: E731
            torch.testing.assert_close(parameter, expected[name], rtol=tolerance, atol=tolerance, msg=message)


def assert_same_curves(history: History, run: int, curves: dict[str, list[float]], tolerance: float = 1e-6) -> None:
    """Compare one run's curves, which are float32, with those of its plain twin, and see that nothing comes after."""
    for name in CURVES:
        got, want = getattr(history, name)[run], np.array(curves[name])
        np.testing.assert_allclose(got[: len(want)], want, rtol=tolerance, atol=tolerance, err_msg=f"run {run}, {name}")
        assert np.isnan(got[len(want) :]).all(), f"run {run}, {name} goes on after its last epoch"


def assert_identical(got: History, want: History) -> None:
    """Compare two histories bit by bit."""
    for name in (*CURVES, "snapshots", "snapshot_epochs", "epochs"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name), err_msg=name)
    assert got.diverged_at == want.diverged_at
    assert got.waste == want.waste
