"""Ensembles on a GPU, recorded as a graph and side by side: python -m pytest -m gpu."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ensemble.plain import fit_plain
from ensemble.twins import (
    CURVES,
    MIXED,
    Run,
    assert_identical,
    assert_same_curves,
    assert_same_parameters,
    copies,
    ensemble_of,
    plan_of,
    train_alone,
)
from harmax_lab.ensemble import Job, Plan, fit, fit_all
from harmax_lab.ensemble.trainer import GPU_BLOCK as BLOCK
from harmax_lab.ensemble.trainer import Trainer
from harmax_lab.tasks import find_task, make_split

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SPLITS = [run.split for run in MIXED]


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_every_run_ends_where_the_plain_loop_on_the_cpu_does(model: str, compile: bool) -> None:
    ensemble = ensemble_of(MIXED, model, device="cuda", tied=False, softening=1e-4)
    alone = copies(ensemble)
    plan = plan_of(MIXED, penalty=0.5, dropout_in_tests=True, batch_size=13, compile=compile)
    history = fit(ensemble, SPLITS, plan)
    assert history.compiled == compile
    for number, (twin, run) in enumerate(zip(alone, MIXED, strict=True)):
        assert_same_curves(history, number, train_alone(twin, run, plan))
    assert_same_parameters(ensemble, alone, tolerance=1e-8)


def test_twice_the_same_call_gives_the_same_bits() -> None:
    runs = [Run(seed=seed) for seed in range(50)]
    splits, plan = [run.split for run in runs], Plan(epochs=2 * BLOCK, snapshots=[0, BLOCK, 2 * BLOCK])
    one, other = (ensemble_of(runs, "transformer", device="cuda", dtype=torch.float32) for _ in range(2))
    assert_identical(fit(one, splits, plan), fit(other, splits, plan))
    assert_same_parameters(one, other, tolerance=0.0)


def test_few_training_rows_and_many_to_test() -> None:
    # 900 tests on 127 classes of 16 numbers: elsewhere too many for differences to be formed outright.
    run = Run(find_task("genealogy", protocol="authors"))
    split = make_split(run.task, run.seed, train_fraction=0.1)
    ensemble = ensemble_of([run], device="cuda", exponent=2.0)
    (twin,) = copies(ensemble)
    plan = Plan(epochs=3)
    history = fit(ensemble, [split], plan)
    assert_same_curves(history, 0, fit_plain(twin, split, plan, run.seed))


def test_torchs_own_random_numbers_are_left_alone() -> None:
    torch.cuda.init()
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    fit(ensemble_of(MIXED, "transformer", layers=1, device="cuda"), SPLITS, plan_of(MIXED))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(torch.cuda.get_rng_state(), before[1])


def jobs(device: str = "cuda") -> list[Job]:
    plans = [Plan(epochs=epochs, snapshots=[0, epochs]) for epochs in (3 * BLOCK, 5, BLOCK)]
    heads = ("harmonic", "linear", "l2")
    return [
        Job(ensemble_of(MIXED, head=head, device=device), SPLITS, plan) for head, plan in zip(heads, plans, strict=True)
    ]


def test_side_by_side_is_as_alone() -> None:
    asked, alone = jobs(), jobs()
    done = list(fit_all(asked))
    assert sorted(asked.index(job) for job, _ in done) == [0, 1, 2]
    for job, history in done:
        twin = alone[asked.index(job)]
        assert_identical(history, fit(*twin))
        assert_same_parameters(job.ensemble, twin.ensemble, tolerance=0.0)


def test_an_error_in_one_job_is_raised() -> None:
    good = jobs()[0]
    with pytest.raises(ValueError, match="`exponent` must be None"):
        list(fit_all([good, Job(ensemble_of(MIXED, head="linear", device="cuda"), SPLITS, plan_of(MIXED))]))


def test_an_interrupted_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmax_lab.ensemble.checkpoint.EVERY_SECONDS", 0.0)

    def interrupt(fraction: float, words: str) -> None:
        if fraction > 0.5:
            raise KeyboardInterrupt

    want = fit(*jobs()[0])
    with pytest.raises(KeyboardInterrupt):
        fit(*jobs()[0], progress=interrupt, checkpoint=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    ensemble, splits, plan = jobs()[0]
    assert_identical(fit(ensemble, splits, plan, checkpoint=tmp_path), want)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "head", "options"),
    [
        ("mlp", "harmonic", {}),
        pytest.param("mlp", "linear", {"batch_size": 80, "evaluate": False}),
        pytest.param("transformer", "harmonic", {"batch_size": 80, "evaluate": False}),
    ],
)
def test_training_takes_no_more_memory_than_predicted(model: str, head: str, options: dict[str, Any]) -> None:
    runs = [Run(find_task("modular_addition"), seed=seed) for seed in range(1000)]
    ensemble = ensemble_of(runs, model, head=head, device="cuda", dtype=torch.float32)
    trainer = Trainer(ensemble, [run.split for run in runs], Plan(epochs=2, snapshots=[0, 2], compile=False, **options))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    trainer.start()
    trainer.enqueue()
    trainer.collect()
    # cuBLAS keeps a workspace for each stream it is used on.
    peak = torch.cuda.max_memory_allocated() - before - 2 * 2**25
    assert 0.3 < peak / trainer.peak_bytes() <= 1


def test_what_does_not_fit_is_trained_in_parts() -> None:
    plan = plan_of(MIXED)
    whole, parts = (ensemble_of(MIXED, device="cuda") for _ in range(2))
    want = fit(whole, SPLITS, plan)
    trainer = Trainer(ensemble_of(MIXED, device="cuda"), SPLITS, plan)
    growing = trainer.peak_bytes() - trainer.fixed_bytes
    got = fit(parts, SPLITS, plan_of(MIXED, memory=trainer.fixed_bytes + growing * 3 // 5))
    assert_same_parameters(parts, whole)
    for name in CURVES:
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-6, atol=1e-6)
