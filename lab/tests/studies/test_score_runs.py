"""Scores of a run: its last tenth of epochs, and rows as its head sees them."""

# K shown tokens, D features

from typing import Any

import numpy as np
import pytest

from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.score_runs import DIRECTIONS, SCORES, scores_of, structure_score
from harmax_lab.tasks import TASKS, find_task


def cell_of(head: str, task: str = "modular_addition") -> RunCell:
    return RunCell("matched", task, "mlp", head, 0.8, 0)


def run_of(embedding_KD: np.ndarray, *, accuracy: Any = (1.0,) * 30, **arrays: np.ndarray) -> CellResult:
    curves = {"train_accuracy": np.ones(len(accuracy)), "test_accuracy": np.array(accuracy, dtype=np.float32)}
    return CellResult(curves, {"embedding": embedding_KD[None].astype(np.float32), **arrays}, {"diverged_at": None})


def circle(length: float = 1.0) -> np.ndarray:
    angle = 2 * np.pi * find_task("modular_addition").structure.values / 31
    return length * np.stack([np.cos(angle), np.sin(angle)], 1) @ np.eye(2, 16)


def test_accuracy_is_that_of_the_last_tenth() -> None:
    found = scores_of(cell_of("linear"), run_of(circle(), accuracy=[0.0] * 18 + [0.5, 1.0]))
    assert found["accuracy"] == 0.75
    assert scores_of(cell_of("linear"), run_of(circle(), accuracy=[0.2, 0.4]))["accuracy"] == pytest.approx(0.4)


@pytest.mark.parametrize("head", ["linear", *sorted(DIRECTIONS)])
def test_rows_are_measured_as_the_head_sees_them(head: str) -> None:
    length = np.random.default_rng(0).uniform(0.1, 9, size=(31, 1))
    found = scores_of(cell_of(head), run_of(length * circle()))
    assert found["structure_raw"] < 0.9
    if head in DIRECTIONS:
        assert found["structure"] == pytest.approx(1)
    else:
        assert found["structure"] == found["structure_raw"]
    noise = np.random.default_rng(1).normal(size=(31, 16))
    noise[0] *= 1e4
    variance = scores_of(cell_of(head), run_of(noise))["variance"]
    assert (variance < 0.5) == (head in DIRECTIONS)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("head", ["linear", "arcface"])
def test_a_constant_embedding_shows_nothing(task: str, head: str) -> None:
    row, tokens = np.random.default_rng(0).normal(size=(1, 16)), len(find_task(task).shown)
    last_bits = 1 + 1e-7 * np.random.default_rng(1).uniform(-1, 1, size=(tokens, 16))
    for same in (np.zeros((tokens, 16)), np.repeat(row, tokens, 0), row * last_bits):
        found = scores_of(cell_of(head, task), run_of(same, accuracy=[0.5] * 30))
        assert {name: found[name] for name in SCORES} == {"structure": 0, "variance": 0, "accuracy": 0.5}
        assert found["structure_raw"] == 0


def test_the_plane_is_judged_without_what_it_hides() -> None:
    circles = circle() + 0.5 * circle()[np.argsort(np.arange(31) * 3 % 31)] @ np.roll(np.eye(16), 2, axis=1)
    found = scores_of(cell_of("linear"), run_of(circles))
    assert found["structure"] == pytest.approx(0.8, abs=0.01)
    assert found["plane"] == pytest.approx(1, abs=1e-6)


def test_one_direction_is_constant_to_a_head_that_sees_directions() -> None:
    line = np.linspace(1, 2, 31)[:, None] * np.ones((1, 16))
    found = scores_of(cell_of("cosface"), run_of(line))
    assert found["structure"] == found["variance"] == 0
    assert found["structure_raw"] == structure_score(find_task("modular_addition").structure, line.astype(np.float32))
    assert found["structure_raw"] > 0.1
    assert scores_of(cell_of("linear"), run_of(line))["variance"] == pytest.approx(1)


@pytest.mark.parametrize("task", TASKS)
def test_what_is_nearly_constant_still_has_a_score(task: str) -> None:
    tokens = len(find_task(task).shown)
    one_apart = np.zeros((tokens, 16))
    one_apart[3] = 1
    two = np.ones((tokens, 16)) * (1 + (np.arange(tokens) % 2))[:, None]
    for rows in (one_apart, two):
        for head in ("linear", "arcface"):
            found = scores_of(cell_of(head, task), run_of(rows))
            assert all(np.isfinite(found[name]) and -1 <= found[name] <= 1 for name in (*SCORES, "structure_raw"))


def test_centers_are_measured_beside_the_embedding() -> None:
    noise = np.random.default_rng(0).normal(size=(31, 16))
    found = scores_of(cell_of("supcon"), run_of(noise, centers=circle()[None].astype(np.float32)))
    assert found["center_structure"] == pytest.approx(1)
    assert found["structure"] < 0.5
    assert scores_of(cell_of("linear"), run_of(noise))["center_structure"] is None
    broken = run_of(np.full((31, 16), np.nan), centers=circle()[None])
    assert scores_of(cell_of("supcon"), broken) == {
        **dict.fromkeys((*SCORES, "structure_raw", "plane"), 0.0),
        **dict.fromkeys(("center_structure", "train_epoch", "test_epoch")),
    }
