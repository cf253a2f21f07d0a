"""A command that is killed, or told to end, goes on as if nothing had been."""

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harmax.train import PretrainSpec
from harmax.train.checkpoint import find_checkpoints
from harmax.train.language.train import pretrain
from train.language.tiny import curve, flags, last_whole_line, spec, weights

SEED = int(os.environ.get("HARMAX_TEST_SEED", random.SystemRandom().randrange(10**6)))
FOREVER = spec(steps=10**6, decay_steps=20, evaluate_every=7, checkpoint_every=3)  # none is too slow to stop it
CLUSTER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@contextmanager
def running(
    settings: PretrainSpec, output: Path, *launcher: str, until: int
) -> Iterator[tuple[subprocess.Popen, list]]:
    """Start the command, and hand it over, with what it has said, when it has shown a step."""
    command = [sys.executable, *launcher, "-m", "harmax", "pretrain", *flags(settings)]
    command += ["--device", "cpu", "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        said = []
        try:
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line.rstrip("\n"))
                if line.startswith(f"step {until}/"):
                    break
            else:
                raise AssertionError("\n".join(said))
            yield process, said
        finally:
            process.kill()


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    step = random.Random(SEED).randrange(1, 40)
    with running(FOREVER, tmp_path / "killed", until=step) as (process, _):
        process.kill()
    assert process.returncode == -signal.SIGKILL
    reached = last_whole_line(tmp_path / "killed")["step"]
    assert reached >= step
    for name in ("killed", "undisturbed"):
        pretrain(replace(FOREVER, steps=reached + 5), tmp_path / name, device="cpu")
    note = f"killed after step {reached}; HARMAX_TEST_SEED={SEED} kills it near there again"
    assert curve(tmp_path / "killed") == curve(tmp_path / "undisturbed"), note
    found, wanted = weights(tmp_path / "killed"), weights(tmp_path / "undisturbed")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted), note


@pytest.mark.slow
def test_all_processes_stop_when_torchrun_is_told_to_end_and_one_speaks(tmp_path: Path) -> None:
    with running(replace(FOREVER, engine="ddp"), tmp_path, *CLUSTER, until=3) as (process, said):
        process.terminate()
        said += process.communicate()[1].splitlines()
    assert process.returncode != 0
    (stop,) = (match for line in said if (match := re.match(r"harmax: stopped; .* resumes after step (\d+)\.", line)))
    assert find_checkpoints(tmp_path / "checkpoints")[-1].step == int(stop[1])
    shown = [line.split("/")[0] for line in said if line.startswith("step ")]
    assert shown == [f"step {line['step']}" for line in curve(tmp_path)], "each step once"


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["pretrain", "vision"])
def test_a_closed_pipe_does_not_stop_a_training_and_is_no_success(tmp_path: Path, verb: str) -> None:
    words = {"pretrain": "--steps 5 --warmup 1 --n-layer 1", "vision": "--epochs 1"}[verb]
    command = f"{sys.executable} -m harmax {verb} smoke {words} --device cpu --output {tmp_path / 'run'}"
    script = f"{command} 2>&1 | grep --max-count 1 '^step 1/'; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert len(done.stdout.splitlines()) == 1
    assert done.returncode == 128 + signal.SIGPIPE
    last = {"pretrain": 5, "vision": 16}[verb]
    assert find_checkpoints(tmp_path / "run" / "checkpoints")[-1].step == last
    assert last_whole_line(tmp_path / "run")["step"] == last
    assert (tmp_path / "run" / "model" / "config.json").is_file()
