"""Launches take what a kernel's parameters name, the first time and when the compiled kernel is remembered."""

import pytest
import torch

pytest.importorskip("triton", reason="is for Linux")
import triton
import triton.language as tl

from harmax.kernels.triton.launch import Launcher, programs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@triton.jit
def _subtract(A, B, OUT, count, BN: tl.constexpr):
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    a, b = tl.load(A + i, mask=i < count), tl.load(B + i, mask=i < count)
    tl.store(OUT + i, a - b, mask=i < count)


def test_arguments_are_found_by_name_in_any_group():
    for _ in range(2):  # on a GPU the second launch is that of a remembered kernel
        a, b, out = torch.rand(3, 20, device=DEVICE).unbind()
        launch = Launcher("subtract", DEVICE)
        launch(_subtract, programs(20, 16), {"B": b, "unused": a}, {"A": b, "OUT": out}, A=a, count=20, BN=16)
        torch.testing.assert_close(out, a - b)


def test_a_missing_argument_is_named():
    a = torch.rand(20, device=DEVICE)
    with pytest.raises(TypeError, match="`B` must be given to launch _subtract, got no value"):
        Launcher("missing", DEVICE)(_subtract, programs(20, 16), {"A": a}, OUT=a, count=20, BN=16)
