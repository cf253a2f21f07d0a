"""Memory that runs out in the middle of a step: a clear error, and the last checkpoint whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from harmax.train.checkpoint import find_checkpoints
from harmax.train.language.train import pretrain
from train.language.tiny import curve, spec

LARGE = {"sequences": 64, "micro_batch": 64, "context": 64, "n_embd": 32, "vocab": 5000}

FULL = """
import re, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from harmax.train.language.train import pretrain
from train.language.tiny import spec
from train.test_memory import LARGE

def limit(record):
    if record["step"] == 6:  # from here on no large piece of memory is given out
        used = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (used, used))

try:
    pretrain(spec(**LARGE, steps=8), sys.argv[1], device="cpu", progress=limit)
except MemoryError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of other systems cannot be limited like this")
def test_a_step_that_finds_no_memory_is_named_and_the_last_checkpoint_is_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path / "run"), str(Path(__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.startswith("the memory of cpu must hold step 7"), done.stderr
    assert "can't allocate memory: you tried to allocate" in done.stdout
    assert "the checkpoint of step 4 is kept: free memory, or give" in done.stdout
    assert find_checkpoints(tmp_path / "run/checkpoints")[-1].step == 4
    for name in ("run", "undisturbed"):
        pretrain(spec(**LARGE, steps=8), tmp_path / name, device="cpu")
    assert curve(tmp_path / "run") == curve(tmp_path / "undisturbed")
