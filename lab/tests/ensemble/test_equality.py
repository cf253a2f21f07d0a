"""`fit` against its specification, a plain loop with torch.optim.AdamW: a run ends where it would have ended alone."""

from collections.abc import Callable
from itertools import combinations, product
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ensemble.plain import fit_plain
from ensemble.twins import (
    MIXED,
    Run,
    assert_same_curves,
    assert_same_parameters,
    copies,
    ensemble_of,
    model_of,
    plan_of,
    train_alone,
)
from harmax_lab.ensemble import Ensemble, Plan, fit
from harmax_lab.ensemble.trainer import Trainer
from harmax_lab.losses import LOSSES, LossHead
from harmax_lab.models import MODELS

PLAIN: dict[str, Any] = {}
DIFFERENT = {"penalty": 0.5, "dropout_in_tests": True, "batch_size": 13, "exact": True}


def assert_each_as_alone(ensemble: Ensemble, plan: Plan) -> None:
    alone = copies(ensemble)
    history = fit(ensemble, [run.split for run in MIXED], plan)
    for number, (twin, run) in enumerate(zip(alone, MIXED, strict=True)):
        assert_same_curves(history, number, train_alone(twin, run, plan))
    assert_same_parameters(ensemble, alone)
    assert history.diverged_at == [None] * len(MIXED)


# Transformers take a second to trace: half of their combinations, in which still every two settings meet.
COMBINATIONS = [
    (model, head, tied, options)
    for model, head, tied, options in product(MODELS, ("harmonic", "linear"), (True, False), (PLAIN, DIFFERENT))
    if model == "mlp" or ((head == "linear") + tied + (options is PLAIN)) % 2
]


@pytest.mark.parametrize(("model", "head", "tied", "options"), COMBINATIONS)
def test_every_run_ends_where_it_would_have_ended_alone(
    model: str, head: str, tied: bool, options: dict[str, Any]
) -> None:
    own = {"softening": 1e-4} if head == "harmonic" else {"bias": True}
    size = {"layers": 1} if model == "transformer" else {}  # more would only take longer to trace
    ensemble = ensemble_of(MIXED, model, head=head, tied=tied, **own, **size)
    assert_each_as_alone(ensemble, plan_of(MIXED, exponent=head == "harmonic", **options))


def test_the_papers_transformer_too() -> None:
    ensemble = ensemble_of(MIXED, "transformer", tied=False, exponent=2.0, softening=1e-4)
    assert_each_as_alone(ensemble, plan_of(MIXED, exponent=False, **DIFFERENT))


@pytest.mark.parametrize("head", [head for head in LOSSES if head not in ("harmonic", "linear")])
def test_every_other_loss_can_be_trained_in_an_ensemble(head: str) -> None:
    assert_each_as_alone(ensemble_of(MIXED, head=head, tied=False), plan_of(MIXED, exponent=False))


@pytest.mark.parametrize(("model", "head"), [("mlp", "center"), ("transformer", "arcface")])
def test_losses_of_their_own_with_a_tied_embedding_too(model: str, head: str) -> None:
    assert issubclass(LOSSES[head], LossHead)
    size = {"layers": 1} if model == "transformer" else {}
    ensemble = ensemble_of(MIXED, model, head=head, **size)
    assert_each_as_alone(ensemble, plan_of(MIXED, exponent=False, **DIFFERENT))


def test_a_loss_that_changes_over_the_training_counts_the_updates_of_each_run() -> None:
    """Some of these runs have fewer batches an epoch than others, and stand still in between."""
    ensemble = ensemble_of(MIXED, head="large_margin", tied=False, annealing_base=5.0, annealing_rate=0.01)
    assert_each_as_alone(ensemble, plan_of(MIXED, exponent=False, batch_size=8))


@pytest.mark.parametrize("head", ["cosface", "supcon"])
def test_a_loss_of_its_own_is_in_the_training_and_not_in_the_test(head: str) -> None:
    runs = [Run()]
    ensemble = ensemble_of(runs, head=head, tied=False)
    history = fit(ensemble, [Run().split], Plan(epochs=1, learning_rate=0.0, weight_decay=0.0, batch_size=20))
    model, rows = ensemble[0], {side: torch.from_numpy(getattr(Run().split, side)) for side in ("train", "test")}
    entropy = {
        side: torch.nn.functional.cross_entropy(model(some[:, :-1]), some[:, -1]).item() for side, some in rows.items()
    }
    assert history.test_loss[0, 0] == pytest.approx(entropy["test"], rel=1e-5)
    assert history.train_loss[0, 0] > 1.1 * entropy["train"]


def test_data_too_large_for_differences_elsewhere_hide_nothing_from_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harmax.kernels.distance.DIRECT_ELEMENTS", 0)
    ensemble = ensemble_of(MIXED)
    trainer = Trainer(ensemble, [run.split for run in MIXED], plan_of(MIXED))
    for traced in trainer.functions:
        assert not [node for node in traced.graph.graph.nodes if "harmax" in str(node.target)]
    assert_each_as_alone(ensemble, plan_of(MIXED))


def test_compiled_is_the_same() -> None:
    results = []
    for compiled in (False, True):
        ensemble = ensemble_of(MIXED, softening=1e-4, hidden=8)
        results.append((ensemble, fit(ensemble, [run.split for run in MIXED], plan_of(MIXED, compile=compiled))))
    (plain, want), (ensemble, got) = results
    assert (want.compiled, got.compiled) == (False, True)
    assert_same_parameters(ensemble, plain)
    for name in ("train_loss", "test_loss", "train_accuracy", "test_accuracy"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-6, atol=1e-6)


def broken_compiler(error: Exception) -> Callable[..., NoReturn]:
    def compile(*_: object, **__: object) -> NoReturn:
        raise error

    return compile


def test_where_no_compiler_works_training_goes_on_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = MIXED[:2]
    want = fit(ensemble_of(runs), [run.split for run in runs], plan_of(runs, compile=False))
    monkeypatch.setattr("torch._inductor.compile", broken_compiler(FileNotFoundError("no g++ here")))
    ensemble = ensemble_of(runs)
    with pytest.warns(UserWarning, match=r"torch.compile failed \(no g\+\+ here\); training goes on"):
        got = fit(ensemble, [run.split for run in runs], plan_of(runs, compile=True))
    assert not got.compiled
    np.testing.assert_array_equal(got.train_loss, want.train_loss)


def test_an_error_that_is_not_the_compilers_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.compile", broken_compiler(ZeroDivisionError("yours")))
    with pytest.raises(ZeroDivisionError, match="yours"):
        fit(ensemble_of([Run()]), [Run().split], Plan(epochs=1, compile=True))


def test_short_trainings_are_not_compiled() -> None:
    assert not fit(ensemble_of([Run()]), [Run().split], Plan(epochs=1)).compiled


class Listener(nn.Module):
    """A model that keeps what it was shown in training."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.embedding = model, model.embedding
        self.rows: list[Tensor] = []
        self.keys: list[int] = []

    def forward(self, tokens: Tensor, key: Tensor | None = None) -> Tensor:
        if torch.is_grad_enabled():
            self.rows.append(tokens)
            self.keys.append(int(key))
        return self.model(tokens)


def test_every_epoch_shows_each_row_once_in_an_order_of_its_own() -> None:
    rows = Run().split.train[:, :-1].tolist()
    orders = [rows]
    for seed in (0, 1):
        listener = Listener(model_of(Run()))
        fit_plain(listener, Run().split, Plan(epochs=3, batch_size=8), seed)
        assert [len(batch) for batch in listener.rows] == [8, 8, 4] * 3
        assert len(set(listener.keys)) == 9
        orders += [torch.cat(listener.rows[start : start + 3]).tolist() for start in (0, 3, 6)]
    assert all(sorted(order) == sorted(rows) for order in orders)
    assert all(one != other for one, other in combinations(orders, 2))


def test_test_curves_are_optional() -> None:
    want = fit(ensemble_of(MIXED), [run.split for run in MIXED], plan_of(MIXED))
    got = fit(ensemble_of(MIXED), [run.split for run in MIXED], plan_of(MIXED, evaluate=False))
    np.testing.assert_array_equal(got.train_loss, want.train_loss)
    assert np.isnan(got.test_loss).all()
    assert np.isnan(got.test_accuracy).all()
    assert got.diverged_at == [None] * len(MIXED)
