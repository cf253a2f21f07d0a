"""A finished gradient times the upstream gradient of the loss."""

import triton
import triton.language as tl
from torch import Tensor

from harmax.kernels.triton.launch import Launcher, programs

BLOCK = 4096


def scale_gradient(gradient: Tensor, factor: Tensor) -> Tensor:
    """Multiply in place by a scalar that only the device knows. It is mostly 1; then nothing is read or written."""
    if gradient.numel():
        shape = ("scale", gradient.dtype, gradient.numel(), gradient.data_ptr() % 16, factor.dtype)
        launch = Launcher(shape, gradient.device)
        grid = programs(gradient.numel(), BLOCK)
        launch(scale_in_place, grid, V=gradient, FACTOR=factor, size_of_v=gradient.numel(), BN=BLOCK)
    return gradient


@triton.jit
def scale_in_place(V, FACTOR, size_of_v, BN: tl.constexpr):
    """Multiply by a scalar on the device, unless it is 1."""
    factor = tl.load(FACTOR)
    if factor != 1.0:
        i = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
        v = tl.load(V + i, mask=i < size_of_v)
        tl.store(V + i, (v.to(tl.float32) * factor).to(V.dtype.element_ty), mask=i < size_of_v)
