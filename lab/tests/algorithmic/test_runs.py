"""The runs of the algorithmic section: protocols, stacked training, and what is said about the data."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harmax_lab.algorithmic import anchors, runs
from harmax_lab.algorithmic.protocols import settings
from harmax_lab.algorithmic.runs import AlgorithmicSpec
from harmax_lab.algorithmic.training import RunCell, snapshot_epochs, split_of, task_of, train
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.store import CellResult
from harmax_lab.tasks import audit
from planted_runs import like_the_authors

SPEC = AlgorithmicSpec(seeds=tuple(range(10)))


def verdicts(spec: AlgorithmicSpec, results: Any) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in runs.EXPERIMENT.summarize(spec, results).verdicts}


def with_metrics(result: CellResult, **changes: Any) -> CellResult:
    return replace(result, metrics={**result.metrics, **changes})


def build(protocol: str, model: str, head: str) -> torch.nn.Module:
    cell = RunCell(protocol, "modular_addition", model, head, 0.8, 0)
    return settings(protocol, model, head, epochs=1).build(task_of(cell), model, head)


def test_the_authors_protocol_ties_all_but_the_harmonic_transformer() -> None:
    for arm in runs.ARMS:
        model = build("authors", *arm)
        assert (model.embedding is model.head.weight) == (arm != ("transformer", "harmonic"))


def test_in_the_authors_protocol_only_the_standard_mlp_has_an_output_bias() -> None:
    for arm in runs.ARMS:
        assert (getattr(build("authors", *arm).head, "bias", None) is not None) == (arm == ("mlp", "linear"))


def test_the_matched_protocol_differs_between_heads_in_the_head_alone() -> None:
    for model in ("mlp", "transformer"):
        standard, harmonic = (settings("matched", model, head, epochs=5) for head in ("linear", "harmonic"))
        assert standard == harmonic
        shapes = [
            {name: tuple(value.shape) for name, value in build("matched", model, head).named_parameters()}
            for head in ("linear", "harmonic")
        ]
        assert shapes[0] == shapes[1]
    assert settings("matched", "mlp", "harmonic", epochs=5).softening == 0


def test_only_the_authors_transformers_are_penalized_and_tested_with_dropout() -> None:
    for protocol in ("authors", "matched"):
        for model, head in runs.ARMS:
            how = settings(protocol, model, head, epochs=5)
            theirs = (protocol, model) == ("authors", "transformer")
            assert (how.penalty > 0) == how.dropout_in_tests == theirs
            assert how.weight_decay == (5e-3 if model == "transformer" else 1e-2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("author", "mlp", "linear"), "'authors'"),
        (("authors", "mpl", "linear"), "'mlp'"),
        (("authors", "mlp", "l"), "l"),
    ],
)
def test_unknown_words_name_the_nearest(arguments: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(*arguments, epochs=1)


def test_the_full_profile_is_the_papers() -> None:
    full = runs.EXPERIMENT.profiles["full"]
    assert full.seeds == tuple(int(seed) for seed in np.linspace(0, 1000, 20))
    assert {full.epochs(task, "mlp") for task in full.tasks} == {7000}
    assert {full.epochs(task, "transformer") for task in full.tasks} == {10_000}
    assert 7000 in snapshot_epochs(10_000, full.snapshots)  # where the authors' code ends
    assert len(runs.cells(full)) == 2 * 5 * 4 * 20


@pytest.mark.parametrize(("epochs", "count"), [(7000, 48), (10_000, 48), (60, 48), (48, 48), (2, 48), (1, 2)])
def test_snapshots_start_before_training_end_with_it_and_get_sparser(epochs: int, count: int) -> None:
    found = snapshot_epochs(epochs, count)
    assert (found[0], found[-1]) == (0, epochs)
    steps = np.diff(found)
    assert (steps > 0).all()
    assert len(found) <= count + 3
    assert len(found) >= min(count, epochs + 1)
    assert steps[-len(steps) // 4 :].mean() >= steps[: len(steps) // 4 + 1].mean()


def trained(cells: list[RunCell], folder: Path, epochs: int = 2) -> dict[RunCell, CellResult]:
    how = lambda cell: settings(cell.protocol, cell.model, cell.head, epochs=epochs)  # noqa: E731
    return dict(train(cells, how, Context(folder), snapshots=4))


def test_a_cell_comes_out_alone_as_it_does_among_others(tmp_path: Path) -> None:
    others = [
        RunCell("authors", task, "mlp", "harmonic", 0.8, seed)
        for task in ("permutation", "genealogy")
        for seed in (3, 4)
    ]
    cell = RunCell("authors", "modular_addition", "mlp", "harmonic", 0.8, 4)
    among, alone = trained([*others, cell], tmp_path / "a")[cell], trained([cell], tmp_path / "b")[cell]
    for name in ("train_loss", "test_loss"):
        np.testing.assert_allclose(among.curves[name], alone.curves[name], rtol=1e-4)
    np.testing.assert_allclose(among.arrays["embedding"], alone.arrays["embedding"], rtol=1e-3, atol=1e-5)


def test_what_a_cell_stores(tmp_path: Path) -> None:
    cell = RunCell("authors", "genealogy", "mlp", "linear", 0.5, 7)
    found = trained([cell], tmp_path)[cell]
    shown = task_of(cell).shown
    assert found.arrays["embedding"].shape == (3, len(shown), 16)
    assert found.arrays["snapshot_epoch"].tolist() == [0, 1, 2]
    how = settings("authors", "mlp", "linear", epochs=2)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        start = how.build(task_of(cell), "mlp", "linear").embedding.detach().numpy()[shown]
    np.testing.assert_allclose(found.arrays["embedding"][0], start, rtol=1e-6)
    assert not np.allclose(found.arrays["embedding"][-1], start)
    assert {name: curve.shape for name, curve in found.curves.items()} == dict.fromkeys(found.curves, (2,))
    assert {curve.dtype for curve in found.curves.values()} == {np.dtype(np.float32)}
    assert found.metrics["leak"] == audit(split_of(cell)).leak
    assert found.metrics["train_rows"] == 500
    assert found.metrics["exponent"] is None
    assert found.metrics["tied"] is True


def test_every_claim_can_hold() -> None:
    found = verdicts(SPEC, like_the_authors(SPEC))
    assert set(found.values()) == {REPRODUCED}


BREAKS: dict[str, Callable[[RunCell, CellResult], CellResult]] = {
    "authors_leak": lambda cell, result: (
        with_metrics(result, leak=0.60) if (cell.protocol, cell.task) == ("authors", "modular_addition") else result
    ),
    "matched_leak": lambda cell, result: (
        with_metrics(result, leak=0.005) if (cell.protocol, cell.seed) == ("matched", 9) else result
    ),
    "all_finite": lambda cell, result: with_metrics(result, diverged_at=3) if cell.seed == 2 else result,
}


@pytest.mark.parametrize("claim", [claim.id for claim in runs.CLAIMS if claim.control])
def test_each_claim_can_break_alone(claim: str) -> None:
    results = {cell: BREAKS[claim](cell, result) for cell, result in like_the_authors(SPEC).items()}
    found = verdicts(SPEC, results)
    assert [name for name, verdict in found.items() if verdict == NOT_REPRODUCED] == [claim]


def test_few_seeds_do_not_decide_a_share() -> None:
    few = replace(SPEC, seeds=(0, 1))
    found = verdicts(few, like_the_authors(few))
    assert found["authors_leak"] == NOT_DECIDED
    assert found["all_finite"] == NOT_DECIDED
    assert found["matched_leak"] == REPRODUCED


@pytest.mark.parametrize("epochs", [{"mlp_epochs": 6999}, {"transformer_epochs": 7000}])
def test_runs_that_are_shorter_than_the_papers_are_said_to_be(epochs: dict[str, int]) -> None:
    spec = replace(SPEC, **epochs)
    (model,) = (name.removesuffix("_epochs") for name in epochs)
    for cell in runs.cells(spec):
        assert bool(spec.short_of([cell])) == (cell.model == model)
    assert SPEC.short_of(runs.cells(SPEC)) == ""
    both = replace(SPEC, mlp_epochs=5, transformer_epochs=6).short_of(runs.cells(SPEC))
    words = "5 of the paper's 7000 epochs of MLPs and 6 of the paper's 10000 epochs of transformers"
    assert both == f"Only {words} were run."


def test_the_tables_count_what_diverged() -> None:
    results = like_the_authors(SPEC)
    cell = RunCell("matched", "lattice", "mlp", "harmonic", 0.8, 1)
    results[cell] = with_metrics(results[cell], diverged_at=5)
    (row,) = [
        row
        for row in runs.EXPERIMENT.summarize(SPEC, results).tables[1].rows
        if (row["protocol"], row["task"], row["model"]) == ("matched", "Lattice", "harmonic MLP")
    ]
    assert (row["runs"], row["diverged"], row["test accuracy"]) == (10, 1, 1.0)


def test_the_anchors_name_every_task_and_model() -> None:
    assert set(anchors.ARMS) == set(runs.ARMS)
    assert set(anchors.LEAK) == set(anchors.EXPLAINED_VARIANCE) == set(runs.TITLES)
    assert set(anchors.REACHED) == {(task, arm) for task in runs.TITLES for arm in runs.ARMS}


def test_a_long_training_goes_on_from_its_partial_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmax_lab.ensemble.checkpoint.EVERY_SECONDS", 0.0)
    cell = RunCell("matched", "permutation", "mlp", "linear", 0.8, 0)
    seen: list[float] = []

    def stop(fraction: float, message: str = "", /) -> None:
        if fraction >= 0.5:
            raise KeyboardInterrupt

    def note(fraction: float, message: str = "", /) -> None:
        seen.append(fraction)

    def go(scratch: Path, progress: Any) -> CellResult:
        how = settings("matched", "mlp", "linear", epochs=80)
        return dict(train([cell], lambda cell: how, Context(scratch, progress=progress)))[cell]

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", stop)
    resumed, whole = go(tmp_path / "cut", note), go(tmp_path / "whole", lambda fraction, message="": None)
    assert seen[0] >= 0.5
    for kind in ("curves", "arrays"):
        for name, expected in getattr(whole, kind).items():
            np.testing.assert_array_equal(getattr(resumed, kind)[name], expected)
