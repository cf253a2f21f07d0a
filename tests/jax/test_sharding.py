"""A loss whose classes, rows or both are split over devices is the loss of one device, with the same gradients."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("on_four_devices.py")
NAMES = ("loss", "logsumexp", "hit", "dx", "dw", "dexponent", "dprior")
SPLITS = [("indices", "rows"), ("indices", "both"), ("smoothed", "classes"), ("probabilities", "both")]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the program found; it has four devices because it says so before it starts JAX."""
    path = tmp_path_factory.mktemp("devices") / "found.npz"
    command = [sys.executable, "-W", "error", PROGRAM, path, *(f"{case}/{mesh}" for case, mesh in SPLITS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "mesh"), SPLITS)
def test_split_over_devices_nothing_changes(found, case, mesh):
    for place, name in enumerate(NAMES):
        got, want = found[f"{case}/{mesh}/{place}"], found[f"{case}/None/{place}"]
        if name == "hit":
            assert want.any()
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max(), err_msg=name)


@pytest.mark.slow
def test_what_is_not_split_is_refused(found):
    assert "`class_axis` must be a mesh axis along which `linear_weight` is split, got 'model'" in str(found["classes"])
    assert "`batch_axis` must be a mesh axis along which `input` is split, got 'data'" in str(found["rows"])
