"""The same call gives the same numbers: twice, whatever was drawn before, and across an interruption."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ensemble.twins import MIXED, TASKS, Run, assert_identical, assert_same_parameters, ensemble_of, plan_of
from harmax_lab.ensemble import Job, Plan, fit, fit_all
from harmax_lab.ensemble.trainer import BLOCK, Trainer

RUNS = (Run(seed=0), Run(TASKS["sums"], seed=1))
SPLITS = [run.split for run in RUNS]
EPOCHS = 3 * BLOCK - 5
LONG = Plan(epochs=EPOCHS, batch_size=100, snapshots=[0, 3, BLOCK, 2 * BLOCK + 1, EPOCHS], compile=False)


def test_twice_the_same_call_gives_the_same_bits() -> None:
    before = torch.get_rng_state()
    first, second = (ensemble_of(MIXED, "transformer", layers=1, dtype=torch.float32) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    splits, plan = [run.split for run in MIXED], plan_of(MIXED, dropout_in_tests=True, batch_size=100)
    want = fit(first, splits, plan)
    torch.manual_seed(123)  # what was drawn before does not matter, nor is anything drawn from torch
    state = torch.get_rng_state()
    assert_identical(fit(second, splits, plan), want)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_parameters(second, first, tolerance=0.0)


def test_a_seed_is_all_that_tells_runs_apart() -> None:
    runs = [Run(seed=0), Run(seed=0), Run(seed=1)]
    losses = fit(ensemble_of(runs), [Run().split] * 3, Plan(epochs=2)).train_loss
    np.testing.assert_array_equal(losses[0], losses[1])
    assert (losses[0] != losses[2]).all()


class Interrupter:
    """Progress that presses Ctrl-C at a fraction, and remembers what it was told."""

    def __init__(self, at: float = 2.0) -> None:
        self.at = at
        self.fractions: list[float] = []

    def __call__(self, fraction: float, words: str) -> None:
        self.fractions.append(fraction)
        if fraction >= self.at:
            raise KeyboardInterrupt


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmax_lab.ensemble.checkpoint.EVERY_SECONDS", 0.0)


def interrupted(folder: Path, *, at: float) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(ensemble_of(RUNS), SPLITS, LONG, progress=Interrupter(at), checkpoint=folder)


@pytest.mark.usefixtures("always_due")
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = ensemble_of(RUNS)
    want = fit(whole, SPLITS, LONG)
    for at in (0.3, 0.7):
        interrupted(tmp_path / "scratch", at=at)
        assert len(list((tmp_path / "scratch").iterdir())) == 1
    ensemble, told = ensemble_of(RUNS), Interrupter()
    got = fit(ensemble, SPLITS, LONG, progress=told, checkpoint=tmp_path / "scratch")
    assert_identical(got, want)
    assert_same_parameters(ensemble, whole, tolerance=0.0)
    assert min(told.fractions) >= 0.7, "it started again"
    assert not list((tmp_path / "scratch").iterdir())


def test_a_checkpoint_is_not_due_at_once(tmp_path: Path) -> None:
    interrupted(tmp_path / "scratch", at=0.3)
    assert not (tmp_path / "scratch").exists()


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harmax_lab.ensemble.checkpoint.EVERY_SECONDS", 0.0)
        interrupted(folder, at=0.7)
    return folder


OTHERS: dict[str, tuple[Sequence[Run], Plan, dict[str, Any]]] = {
    "plan": (RUNS, replace(LONG, learning_rate=3e-3), {}),
    "cut of the same rows": ([replace(run, train_fraction=0.7) for run in RUNS], LONG, {}),
    "type": (RUNS, LONG, {"dtype": torch.float32}),
    "exponent": (RUNS, LONG, {"exponent": 8.0}),
    "head": (RUNS, LONG, {"head": "linear"}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_training_does_not_pick_up_the_state(other: str, left_behind: Path, tmp_path: Path) -> None:
    runs, plan, options = OTHERS[other]
    folder = tmp_path / "scratch"
    shutil.copytree(left_behind, folder)
    told = Interrupter()
    fit(ensemble_of(runs, **options), [run.split for run in runs], plan, progress=told, checkpoint=folder)
    assert min(told.fractions) <= BLOCK / EPOCHS, "it went on from where the other one was interrupted"
    assert [path.name for path in folder.iterdir()] == [path.name for path in left_behind.iterdir()]


@pytest.mark.usefixtures("always_due")
def test_jobs_resume_each_from_its_own_state(tmp_path: Path) -> None:
    def jobs() -> list[Job]:
        return [Job(ensemble_of(RUNS, head=head), SPLITS, LONG) for head in ("linear", "harmonic")]

    want = [history for _, history in fit_all(jobs())]
    with pytest.raises(KeyboardInterrupt):
        list(fit_all(jobs(), progress=Interrupter(0.7), checkpoint=tmp_path))
    for got, history in zip(fit_all(jobs(), checkpoint=tmp_path), want, strict=True):
        assert_identical(got[1], history)


@pytest.mark.usefixtures("always_due")
def test_parts_that_were_done_are_not_trained_again(tmp_path: Path) -> None:
    runs = [Run(seed=seed) for seed in range(2)]
    splits = [run.split for run in runs]
    one_run = Trainer(ensemble_of(runs[:1]), splits[:1], LONG).peak_bytes()
    plan = replace(LONG, memory=one_run * 3 // 2)
    with pytest.raises(KeyboardInterrupt):
        fit(ensemble_of(runs), splits, plan, progress=Interrupter(0.8), checkpoint=tmp_path)
    told = Interrupter()
    history = fit(ensemble_of(runs), splits, plan, progress=told, checkpoint=tmp_path)
    assert np.isfinite(history.train_loss).all()
    assert min(told.fractions) >= 0.5


@pytest.mark.usefixtures("always_due")
def test_a_state_is_kept_until_the_results_are_safe(tmp_path: Path) -> None:
    jobs = fit_all([Job(ensemble_of(RUNS), SPLITS, LONG)], checkpoint=tmp_path)
    next(jobs)
    assert list(tmp_path.iterdir()), "whoever stores the history may still be interrupted"
    assert list(jobs) == []
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("always_due")
def test_a_damaged_state_is_told_and_left_behind(tmp_path: Path) -> None:
    want = fit(ensemble_of(RUNS), SPLITS, LONG)
    with pytest.raises(KeyboardInterrupt):
        fit(ensemble_of(RUNS), SPLITS, LONG, progress=Interrupter(0.5), checkpoint=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.warns(UserWarning, match="is unreadable .* training starts over"):
        got = fit(ensemble_of(RUNS), SPLITS, LONG, checkpoint=tmp_path)
    assert_identical(got, want)
