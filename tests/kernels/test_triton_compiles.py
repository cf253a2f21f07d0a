"""The kernels of the fused loss compile for a GPU, on a machine without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="is for Linux")
KERNELS = {
    "find_center",
    "prepare",
    "prepare_prior",
    "begin",
    "statistics",
    "statistics_near",
    "finish",
    "weigh",
    "weigh_near",
    "add_sums",
    "finish_rows",
    "finish_columns",
    "scale_in_place",
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_kernel_compiles_for_a_gpu(dtype, tmp_path):
    script = Path(__file__).with_name("compile_for_gpu.py")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    run = subprocess.run(
        [sys.executable, script, dtype], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr[-3000:]
    sizes = dict(line.split() for line in run.stdout.splitlines())
    assert set(sizes) >= KERNELS
    assert all(int(size) > 1000 for size in sizes.values())
