"""Many processes do what one does; `worker.py` is what they run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from harmax.train.checkpoint import find_checkpoints
from harmax.train.language.model import build_model
from harmax.train.language.train import pretrain
from train.language.tiny import assert_same_up_to_rounding, curve, spec, weights

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(Path(__file__).with_name("worker.py")), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    pretrain(spec(), root / "single", device="cpu")
    return root


@pytest.mark.parametrize("name", ["ddp2", "fsdp2", "tp2", "ddp4", "fsdp4"])
def test_more_processes_train_the_same_model(runs: Path, name: str) -> None:
    assert_same_up_to_rounding(runs / name, runs / "single")


def test_an_untied_linear_head_is_sharded_too(runs: Path, tmp_path: Path) -> None:
    pretrain(spec(head="linear", tied=False), tmp_path, device="cpu")
    assert_same_up_to_rounding(runs / "linear-fsdp2", tmp_path)


@pytest.mark.parametrize("engine", ["ddp", "fsdp", "tp"])
def test_one_process_goes_on_with_a_checkpoint_of_two(runs: Path, engine: str) -> None:
    output = runs / f"half-{engine}"
    assert [found.step for found in find_checkpoints(output / "checkpoints")] == [4, 7]
    before = curve(output)
    pretrain(spec(), output, device="cpu")
    assert curve(output)[:7] == before
    assert_same_up_to_rounding(output, runs / "single")


def test_two_processes_go_on_with_a_checkpoint_of_four_that_divided_heads_and_tokens(
    runs: Path, tmp_path: Path
) -> None:
    pretrain(spec(n_head=4), tmp_path, device="cpu")
    assert_same_up_to_rounding(runs / "four-then-two", tmp_path)


def test_other_heads_are_divided_too(runs: Path, tmp_path: Path) -> None:
    pretrain(spec(head="linear"), tmp_path / "linear", device="cpu")
    assert_same_up_to_rounding(runs / "linear-tp", tmp_path / "linear")
    pretrain(spec(learn_exponent=True, steps=12), tmp_path / "learned", device="cpu")
    assert_same_up_to_rounding(runs / "learned-tp", tmp_path / "learned")


def test_attention_heads_that_processes_cannot_divide_are_refused_on_each(runs: Path) -> None:
    for rank in range(2):
        message = (runs / f"heads-{rank}.txt").read_text()
        assert "`n_head` (1) must be a multiple of the number of processes (2) with engine tp" in message


def test_a_learned_exponent_is_sharded_and_goes_on_bit_for_bit(runs: Path, tmp_path: Path) -> None:
    pretrain(spec(learn_exponent=True, steps=12), tmp_path, device="cpu")
    assert_same_up_to_rounding(runs / "learned", tmp_path)
    found, wanted = weights(runs / "learned-parts"), weights(runs / "learned")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    start = build_model(spec(learn_exponent=True)).lm_head.log_exponent
    assert abs(wanted["lm_head.log_exponent"] - start) > 0.01


def test_all_processes_hear_that_one_could_not_write(runs: Path) -> None:
    message = (runs / "full.txt").read_text()
    assert "the checkpoint of step 8 could not be written" in message
    assert "process 0" in message
    assert "the last good one (step 4) is kept" in message
    assert [path.name for path in (runs / "full" / "checkpoints").iterdir()] == ["step-00000004"]


def test_all_processes_hear_of_a_weight_that_is_no_number(runs: Path) -> None:
    message = (runs / "spoiled.txt").read_text()
    assert "non-finite weights or optimizer state after step 8; the checkpoint of step 4 is kept" in message
    assert [path.name for path in (runs / "spoiled" / "checkpoints").iterdir()] == ["step-00000004"]


@contextmanager
def environment_of(**variables: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def test_an_engine_that_does_not_fit_the_launch(tmp_path: Path) -> None:
    with environment_of(WORLD_SIZE="2"), pytest.raises(ValueError, match="must be ddp or fsdp with 2 processes"):
        pretrain(spec(), tmp_path)
    with pytest.raises(ValueError, match="must be started by torchrun"):
        pretrain(spec(engine="ddp"), tmp_path)
