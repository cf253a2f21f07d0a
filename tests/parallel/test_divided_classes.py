"""Ranks that divide the classes among themselves compute what one process computes."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from parallel.cases import CASES, LARGE, RANKS, TABLES, make, solve, tabulate
from parallel.heads import HEADS, LAYOUTS


def run_worker(folder: Path, what: str) -> Path:
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), str(folder), what]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_worker(tmp_path_factory.mktemp("ranks"), "small")


def of_rank(folder: Path, name: str, ranks: int, rank: int) -> Any:
    return torch.load(folder / f"{name}-{ranks}-{rank}.pt", weights_only=True)


def assert_equal(got: dict[str, Tensor], wanted: dict[str, Tensor], exact: dict[str, Tensor], case: str) -> None:
    """Compare with one process: to one part in a million, and where its own rounding is larger, to that too.

    Parts are of the largest number of a kind, because a gradient is a sum whose terms cancel. With an exponent of 30
    the gradients of one process itself are off by up to 7e-6.
    """
    assert got.keys() == wanted.keys() == exact.keys()
    for name, want in wanted.items():
        if not want.is_floating_point():
            assert torch.equal(got[name], want), f"{case}, {name}"
            continue
        true = exact[name]
        rounding = (want - true).abs().nan_to_num(0.0).max().item()
        size = true[true.isfinite()].abs().max().item()
        torch.testing.assert_close(
            got[name], want, rtol=0.0, atol=1e-6 * size + rounding, msg=lambda m, n=name: f"{case}, {n}: {m}"
        )


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_one_process(found: Path, name: str, ranks: int) -> None:
    case = CASES[name]
    wanted, exact = solve(case, make(case)), solve(case, make(case, torch.float64))
    for rank in range(ranks):
        assert_equal(of_rank(found, "compute_losses", ranks, rank)[name], wanted, exact, f"rank {rank}")


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", TABLES)
def test_log_probabilities_and_entropy_are_those_of_one_process(found: Path, name: str, ranks: int) -> None:
    case = CASES[name]
    wanted, exact = tabulate(case, make(case)), tabulate(case, make(case, torch.float64))
    for rank in range(ranks):
        assert_equal(of_rank(found, "compute_tables", ranks, rank)[name], wanted, exact, f"rank {rank}")


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", HEADS)
def test_a_parallel_head_trains_as_one_process_does(found: Path, kind: str, layout: str, ranks: int) -> None:
    for rank in range(ranks):
        results = of_rank(found, "compare_heads", ranks, rank)[f"{kind}, {layout}"]
        for way, (got, wanted, exact) in results.items():
            assert_equal(got, wanted, exact, f"{way}, rank {rank}")


@pytest.mark.parametrize("ranks", RANKS)
def test_the_fused_loss_takes_weights_as_fsdp_stores_them(found: Path, ranks: int) -> None:
    assert_equal(*of_rank(found, "compare_heads", ranks, 0)["fsdp"]["fused"], "fsdp")


MESSAGES = {
    "other exponents": r"ValueError: `exponent` must be the same on all ranks .* got 3 on rank 0 and 4 on rank 1; give",
    "other exponents of log-probabilities": "`exponent` must be the same on all ranks",
    "a bad exponent on one rank": "`exponent` must be a positive number|but rank 0 has refused its own; read the error",
    "a bad exponent of log-probabilities": "`exponent` must be a positive number|but rank 0 has refused its own",
    "a prior on one rank": "the number of priors must be the same on all ranks .* got 1 on rank 0 and 0 on rank 1",
    "a prior on one rank, log-probabilities": "the number of priors must be the same on all ranks",
    "class weights on one rank": "the number of class weights must be the same .* got 12 on rank 0 and 0 on rank 1",
    "probabilities on one rank": "the dimensions of `target` must be the same on all ranks .* got 2 on rank 0 and 1 on",
    "other targets": "the sum of `target` must be the same on all ranks",
    "fewer classes than ranks": "must have at least as many classes as ranks divide them",
    "a head with fewer classes": "must have at least as many classes as ranks divide them",
    "a linear head": "TypeError: ClassParallel must be given a harmonic head, got Linear",
    "class means of divided centers": "TypeError: .* call init_from_class_means before parallelize_module",
    "plain centers": "TypeError: `linear_weight` must be a DTensor, as `input` is, got a plain tensor",
    "divided features": "must be divided along its classes",
    "two dimensions": "must be on one mesh with one dimension",
    "another implementation": "`impl` must be 'auto' or 'chunked' for centers that ranks divide",
    "a target out of range": "`target` must hold class indices from 0 to 11",
    "after all of them": "no error: 1.0",
}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("mistake", MESSAGES)
def test_what_cannot_be_right_is_an_error_on_every_rank(found: Path, mistake: str, ranks: int) -> None:
    for rank in range(ranks):
        message = of_rank(found, "make_mistakes", ranks, rank)[mistake]
        assert re.search(MESSAGES[mistake], message), message


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_worker(tmp_path_factory.mktemp("large"), "large")


@pytest.mark.slow
def test_a_large_vocabulary_is_equal_and_needs_less_memory_on_more_ranks(large: Path) -> None:
    (case,) = LARGE.values()
    wanted, exact = solve(case, make(case), impl="chunked"), solve(case, make(case, torch.float64), impl="chunked")
    memory = []
    for ranks in RANKS:
        parts = [of_rank(large, "compute_large", ranks, rank)["50257 classes"] for rank in range(ranks)]
        memory.append([part.pop("memory") for part in parts])
        for part in parts:
            assert_equal(part, wanted, exact, f"{ranks} ranks")
    matrix = 4 * case.rows * case.classes
    print({ranks: found[0] for ranks, found in zip(RANKS, memory, strict=True)})
    for two in memory[0]:
        for four in memory[1]:
            assert four["peak"] < 0.6 * two["peak"]
            assert four["largest"] < 0.6 * two["largest"] < 0.3 * matrix
