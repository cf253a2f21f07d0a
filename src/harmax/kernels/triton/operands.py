"""Step 1: the operands of the products, which are x and w less a common center, scaled and rounded.

Subtracting a common vector leaves distances unchanged and avoids cancellation.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from harmax.kernels.triton import tiles
from harmax.kernels.triton.launch import Launcher, programs


class Operand(NamedTuple):
    """A matrix as it is multiplied, with the squared norms of its rows and the factors that undo their scale."""

    matrix: Tensor
    norm: Tensor
    factor: Tensor


def find_common_center(launch: Launcher, w_VD: Tensor, width: int) -> Tensor:
    """The mean of a sample of the centers if it is larger than their spread, else 0, (D,)."""
    classes, features = w_VD.shape
    center_D = w_VD.new_empty(features, dtype=torch.float32)
    step = max(1, classes // tiles.CENTER_SAMPLE)
    launch(
        find_center,
        (1,),
        W=w_VD,
        OUT=center_D,
        w_stride=w_VD.stride(0),
        step=step,
        count=min(tiles.CENTER_SAMPLE, -(-classes // step)),
        features=features,
        BS=tiles.CENTER_SAMPLE,
        BD=min(64, width),
        num_warps=8,
    )
    return center_D


def make_operand(launch: Launcher, v: Tensor, center_D: Tensor, copy: Tensor, width: int, *, of_w: bool) -> Operand:
    """Write a matrix into `copy`, in the products' dtype, as it is multiplied."""
    norm, factor = (v.new_empty(tiles.pitch(len(v)), dtype=torch.float32) for _ in range(2))
    launch(
        prepare,
        programs(len(v), tiles.ROWS),
        V=v,
        CENTER=center_D,
        COPY=copy,
        NORM=norm,
        FACTOR=factor,
        v_stride=v.stride(0),
        rows=len(v),
        features=v.shape[1],
        SCALED=copy.dtype == torch.float16,
        BR=tiles.ROWS,
        BD=width,
        size=(of_w,),
    )
    return Operand(copy, norm, factor)


@triton.jit
def find_center(W, OUT, w_stride, step, count, features, BS: tl.constexpr, BD: tl.constexpr):
    """Write the mean of every `step`-th center if it is larger than their spread, else 0."""
    i, d = tl.arange(0, BS), tl.arange(0, BD)
    size = tl.zeros([BS, BD], tl.float32)
    mean_size = tl.zeros([BD], tl.float32)
    for start in range(0, features, BD):
        inside = (i < count)[:, None] & (start + d < features)[None, :]
        place = W + (i.to(tl.int64) * step * w_stride)[:, None] + (start + d)[None, :]
        w = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(w, 0) / count
        tl.store(OUT + start + d, mean, mask=start + d < features)
        size += w * w
        mean_size += mean * mean
    # The spread is the mean square less the square of the mean.
    if 2 * tl.sum(mean_size) * count <= tl.sum(tl.sum(size, 1)):
        for start in range(0, features, BD):
            tl.store(OUT + start + d, tl.zeros([BD], tl.float32), mask=start + d < features)


@triton.jit
def prepare(
    V, CENTER, COPY, NORM, FACTOR, v_stride, rows, features,
    SCALED: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Copy some rows, less the center, in the products' dtype, scaled by powers of two; store squared norms and scales.

    float16 has enough mantissa (a bfloat16 fits in whole) but not enough range: rows are scaled to norms of 64 to 128.
    """
    i = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    here, d = i < rows, tl.arange(0, BD)
    sums = tl.zeros([BR, BD], tl.float32)
    for start in range(0, features, BD):
        inside = here[:, None] & (start + d < features)[None, :]
        v = tl.load(V + i[:, None] * v_stride + (start + d)[None, :], mask=inside, other=0.0).to(tl.float32)
        v -= tl.load(CENTER + start + d, mask=start + d < features, other=0.0)[None, :]
        sums += v * v
    norm = tl.sum(sums, 1)
    scale = tl.full([BR], 1.0, tl.float32)
    if SCALED:
        # The negated exponent bits of sqrt(norm). Rows of zeros or infinities are not scaled.
        bits = (tl.sqrt(norm).to(tl.int32, bitcast=True) >> 23) & 255
        bits = tl.where((bits > 0) & (bits < 255), bits, 133)
        bits = tl.minimum(tl.maximum(2 * 127 + 6 - bits, 1), 254)
        scale = (bits << 23).to(tl.float32, bitcast=True)
    sums = tl.zeros([BR, BD], tl.float32)
    for start in range(0, features, BD):
        inside = here[:, None] & (start + d < features)[None, :]
        v = tl.load(V + i[:, None] * v_stride + (start + d)[None, :], mask=inside, other=0.0).to(tl.float32)
        v -= tl.load(CENTER + start + d, mask=start + d < features, other=0.0)[None, :]
        rounded = (v * scale[:, None]).to(COPY.dtype.element_ty)
        tl.store(COPY + i[:, None] * features + (start + d)[None, :], rounded, mask=inside)
        # The norm of the rounded vector, so that norms and products belong to the same vectors.
        back = rounded.to(tl.float32) / scale[:, None]
        sums += tl.where(inside, back * back, 0.0)
    tl.store(NORM + i, tl.sum(sums, 1), mask=here)
    tl.store(FACTOR + i, 1.0 / scale, mask=here)
