"""How much memory training takes is known before any is taken, and what does not fit is trained in parts."""

import gc
import re
import weakref
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest

from ensemble.twins import CURVES, MIXED, TASKS, Run, assert_same_parameters, ensemble_of, plan_of
from harmax.bench.measure import peak_mib
from harmax_lab.ensemble import Plan, fit
from harmax_lab.ensemble.trainer import Trainer


def predicted(runs: Sequence[Run], plan: Plan, **options: Any) -> int:
    return Trainer(ensemble_of(runs, **options), [run.split for run in runs], plan).peak_bytes()


def test_the_prediction_grows_linearly_with_the_runs() -> None:
    few, many = (predicted([Run(seed=seed) for seed in range(runs)], Plan(epochs=1)) for runs in (3, 12))
    assert many == pytest.approx(4 * few, rel=0.02)


@pytest.mark.parametrize(
    ("model", "head", "batch_size", "evaluate"),
    [
        ("mlp", "harmonic", 16, True),
        ("mlp", "linear", 80, False),
        ("transformer", "harmonic", 80, False),
    ],
)
def test_training_takes_what_was_predicted(model: str, head: str, batch_size: int, evaluate: bool) -> None:
    runs = [Run(TASKS["sums"], seed=seed) for seed in range(8)]
    plan = Plan(epochs=2, batch_size=batch_size, snapshots=[0, 1, 2], evaluate=evaluate, compile=False)
    size = {"layers": 1} if model == "transformer" else {}
    trainer = Trainer(ensemble_of(runs, model, head=head, **size), [run.split for run in runs], plan)

    def train() -> None:
        trainer.start()
        trainer.enqueue()
        trainer.collect()

    share = peak_mib(train, "cpu") * 2**20 / trainer.peak_bytes()
    assert 0.5 < share <= 1


def test_what_does_not_fit_is_trained_in_parts_with_the_same_numbers() -> None:
    splits = [run.split for run in MIXED]
    plan = plan_of(MIXED, snapshots=[0, 2])
    whole, parts = ensemble_of(MIXED), ensemble_of(MIXED)
    want = fit(whole, splits, plan)
    small = replace(plan, memory=predicted(MIXED, plan) * 3 // 5)
    with pytest.raises(MemoryError, match="2 runs fit"):
        fit(ensemble_of(MIXED), splits, replace(small, split=False))
    got = fit(parts, splits, small)
    assert_same_parameters(parts, whole)
    for name in (*CURVES, "snapshots"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-6, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(got.epochs, want.epochs)
    np.testing.assert_array_equal(got.snapshot_epochs, want.snapshot_epochs)


@pytest.mark.parametrize("snapshots", [[0, 3, 4], [4]])
def test_a_part_that_ends_early_shows_its_final_embedding_from_then_on(snapshots: list[int]) -> None:
    runs = [Run(seed=0, epochs=2), Run(seed=1, epochs=4)]
    splits = [run.split for run in runs]
    plan = plan_of(runs, snapshots=snapshots)
    ensemble = ensemble_of(runs)
    history = fit(ensemble, splits, replace(plan, memory=predicted(runs, plan) * 3 // 4))
    assert history.snapshot_epochs.tolist() == snapshots
    for model, kept in zip(ensemble, history.snapshots, strict=True):
        np.testing.assert_allclose(kept[-1], model.embedding.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_without_leave_to_split_the_largest_number_of_runs_is_named() -> None:
    runs = [Run(seed=seed) for seed in range(6)]
    splits = [run.split for run in runs]
    plan = Plan(epochs=1, split=False, memory=predicted(runs, Plan(epochs=1)) * 3 // 4)
    with pytest.raises(MemoryError, match="the memory must hold 6 runs") as error:
        fit(ensemble_of(runs), splits, plan)
    largest = int(re.search(r"take at most (\d+), or split=True", str(error.value))[1])
    assert largest == 4
    assert fit(ensemble_of(runs[:largest]), splits[:largest], plan).train_loss.shape == (4, 1)
    with pytest.raises(MemoryError, match=f"take at most {largest}"):
        fit(ensemble_of(runs[: largest + 1]), splits[: largest + 1], plan)


@pytest.mark.parametrize("split", [True, False])
def test_where_not_one_run_fits_nothing_is_trained(split: bool) -> None:
    ensemble = ensemble_of([Run()] * 2)
    before = [model.embedding.clone() for model in ensemble]
    with pytest.raises(MemoryError, match="0 runs fit; use smaller batches or another device"):
        fit(ensemble, [Run().split] * 2, Plan(epochs=1, memory=1000, split=split))
    assert all((model.embedding == old).all() for model, old in zip(ensemble, before, strict=True))


def test_the_memory_that_is_free_is_the_limit_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmax_lab.ensemble.memory.open", lambda path: StringIO("MemAvailable: 100 kB"), raising=False)
    with pytest.raises(MemoryError, match=r"got 0\.1 MiB on cpu"):
        fit(ensemble_of([Run()]), [Run().split], Plan(epochs=1))


def test_a_part_gives_its_memory_back_before_the_next_takes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[weakref.ref[Trainer]] = []
    start = Trainer.start

    def watched(trainer: Trainer, *resumed: Any) -> None:
        assert not any(earlier() for earlier in starts)
        starts.append(weakref.ref(trainer))
        start(trainer, *resumed)

    monkeypatch.setattr(Trainer, "start", watched)
    runs = [Run(seed=seed) for seed in range(4)]
    plan = Plan(epochs=1)
    # Cycles would be found by the collector some time, which may be too late.
    gc.collect()
    gc.disable()
    try:
        fit(ensemble_of(runs), [run.split for run in runs], replace(plan, memory=predicted(runs, plan) // 3))
    finally:
        gc.enable()
    assert len(starts) == 4
