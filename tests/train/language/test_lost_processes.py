"""One of two processes is killed at any step; torchrun starts both again, and the numbers stay the same."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from train.language.dying import ENGINES
from train.language.tiny import curve, weights

SEED = int(os.environ.get("HARMAX_TEST_SEED", random.SystemRandom().randrange(10**6)))


@pytest.mark.slow
def test_after_a_process_is_lost_training_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    worker = str(Path(__file__).with_name("dying.py"))
    command = [*torchrun, "--max-restarts", str(len(ENGINES)), worker, str(tmp_path), str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    for engine in ENGINES:
        note = f"{engine}, HARMAX_TEST_SEED={SEED}"
        assert (tmp_path / f"{engine} died").exists(), note
        assert curve(tmp_path / f"killed-{engine}") == curve(tmp_path / f"undisturbed-{engine}"), note
        found, wanted = (weights(tmp_path / f"{name}-{engine}") for name in ("killed", "undisturbed"))
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), note
