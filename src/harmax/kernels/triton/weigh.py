"""Step 6: the second pass over a block of products, which writes gradient weights G over them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from harmax.kernels.triton import tiles
from harmax.kernels.triton.arithmetic import log2, rounded
from harmax.kernels.triton.launch import Arguments, Launcher, programs
from harmax.kernels.triton.near import Pairs, distances
from harmax.kernels.triton.tables import (
    FAR_FACTOR,
    FAR_INVERSE,
    FAR_SOFT,
    FAR_TARGET,
    FAR_TARGET_G,
    FAR_TWICE,
    SUM_EXACT,
    SUM_ROUNDED,
    TERM_FACTOR,
    TERM_FLOOR,
    TERM_INVERSE,
    TERM_SCALE,
    TERM_TARGET_G,
    TERM_TAU,
    Classes,
    Rows,
)


class Parts(NamedTuple):
    """Sums of the weights over parts of a block, which `sums.py` adds up."""

    row_parts: Tensor
    """(2, column blocks, R): of what was written, and of the same before rounding."""
    column_parts: Tensor
    """(row groups, C): of what was written."""


def write_weights(
    launch: Launcher,
    product_RC: Tensor,
    weight_RC: Tensor,
    rows: Rows,
    classes: Classes,
    settings: Arguments,
    *,
    first: int,
    borrow: Callable[..., Tensor],
) -> Parts:
    """Write weights over a block of products, whose first column is class `first`. `borrow` gives float32 memory."""
    count, width = product_RC.shape
    whole = tiles.pitch(width)
    blocks = -(-whole // tiles.TILE["BN"])
    # Enough programs to keep the device busy, each with enough rows to pay for reading its columns' data.
    groups = max(1, min(count // (8 * tiles.TILE["BM"]), -(-tiles.PROGRAMS // blocks)))
    group_rows = -(-count // (groups * tiles.TILE["BM"])) * tiles.TILE["BM"]
    groups = -(-count // group_rows)
    parts = Parts(borrow(2, blocks, count), product_RC.new_empty(groups, whole, dtype=torch.float32))
    block = {"P": product_RC, "G": weight_RC, "p_stride": product_RC.stride(0), "first": first}
    known = (block, rows.arguments, classes.arguments, settings)
    launch(
        weigh,
        (blocks, groups),
        *known,
        ROW_PARTS=parts.row_parts,
        COLUMN_PARTS=parts.column_parts,
        columns=whole,
        group_rows=group_rows,
        size=product_RC.shape,
        **tiles.TILE,
    )
    grid = programs(count, tiles.NEAR_TILE["BM"])
    launch(weigh_near, grid, *known, columns=width, size=product_RC.shape, **tiles.NEAR_TILE)
    return parts


@triton.jit
def weigh(
    P, G, p_stride, W_NORM, W_FACTOR, SHARE, TERMS, FAR, NEAR_ROW, ROW_PARTS, COLUMN_PARTS, rows, stride, columns,
    first, group_rows, EXPONENT, SMOOTHED: tl.constexpr, FAST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write G over the products of rows without near pairs. A program has some columns and goes down a group of rows.

    COLUMN_PARTS has sums of G as rounded: (sum G) w - G^T X is then a sum of G (w - x), whatever the rounding of G.
    ROW_PARTS has sums along rows, as rounded and before rounding; the target's G is rounded in both. Rows with a near
    pair add nothing. Columns beyond the last class fill the last tile: there W_NORM is infinite and P finite.
    """
    top = tl.program_id(1) * group_rows
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (j < columns)[None, :]
    half = 0.5 * tl.load(EXPONENT)
    w_norm = tl.load(W_NORM + first + j, mask=j < columns, other=float("inf"))[None, :]
    w_factor = tl.load(W_FACTOR + first + j, mask=j < columns, other=0.0)[None, :]
    sums = tl.zeros([BM, BN], tl.float32)
    lines = tl.arange(0, BM)[:, None]
    tile = lines * p_stride + j[None, :]
    last = tl.minimum(group_rows, rows - top)
    p_next = tl.load(P + top.to(tl.int64) * p_stride + tile, mask=(lines < last) & inside, other=0.0)
    for start in range(0, group_rows, BM):
        p = p_next.to(tl.float32)
        below = P + (top + start + BM).to(tl.int64) * p_stride
        # The next tile is loaded while this one is computed.
        p_next = tl.load(below + tile, mask=(start + BM + lines < last) & inside, other=0.0)
        i, here = top + start + lines, start + lines < last
        far = here & (tl.load(NEAR_ROW + i, mask=here, other=1) == 0)
        inverse = tl.load(FAR + FAR_INVERSE * stride + i, mask=here, other=1.0)
        soft = tl.load(FAR + FAR_SOFT * stride + i, mask=here, other=1.0)
        twice = tl.load(FAR + FAR_TWICE * stride + i, mask=here, other=0.0)
        factor = tl.load(FAR + FAR_FACTOR * stride + i, mask=here, other=0.0)
        target_g = tl.load(FAR + FAR_TARGET_G * stride + i, mask=here, other=0.0)
        target = tl.load(FAR + FAR_TARGET * stride + i, mask=here, other=0.0).to(tl.int32, bitcast=True)
        if FAST:
            # One multiplication less per element, and one rounding more.
            ratio = (soft + inverse * w_norm) - twice * (p * w_factor)
        else:
            ratio = ((soft + w_norm) - twice * (p * w_factor)) * inverse
        log_ratio = log2(ratio, FAST)
        if SMOOTHED:
            share = tl.load(SHARE + first + j, mask=j < columns, other=0.0)[None, :]
            tau = tl.load(TERMS + TERM_TAU * stride + i, mask=far, other=0.0)
            scale = tl.load(TERMS + TERM_SCALE * stride + i, mask=far, other=0.0) * inverse
            g = scale / ratio * (share - tau * factor * tl.exp2(-half * log_ratio))
        else:
            g = factor * tl.exp2(-(half + 1.0) * log_ratio)
        # The product's value for the target is overwritten.
        g = tl.where((first + j)[None, :] == target, target_g, g)
        wide = rounded(g, G, FAST)
        sums += wide
        place_row = ROW_PARTS + tl.program_id(0) * rows + i
        tl.store(place_row, tl.sum(wide, 1, keep_dims=True), mask=here)
        tl.store(place_row + tl.num_programs(0) * rows, tl.sum(g, 1, keep_dims=True), mask=here)
        # G may share the memory of P: a thread writes only where it has read.
        place = G + (top + start).to(tl.int64) * p_stride + tile
        tl.store(place, wide.to(G.dtype.element_ty), mask=far & inside)
    tl.store(COLUMN_PARTS + tl.program_id(1).to(tl.int64) * columns + j, tl.sum(sums, 0), mask=j < columns)


@triton.jit
def weigh_near(
    P, G, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, SHARE, TARGET, TERMS, NEAR_ROW, ANY_NEAR, SLOT, SLOT_G, COUNT,
    SUMS, X, W, x_stride, w_stride, rows, stride, columns, first, features, ignore_index, EXPONENT, softening, near,
    SMOOTHED: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write G over the products of rows that `weigh` left out, and add their sums to SUMS."""
    if tl.load(ANY_NEAR) == 0:
        return
    half = 0.5 * tl.load(EXPONENT)
    pairs = Pairs(P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, X, W, x_stride, w_stride, features)
    for row in range(tl.program_id(0) * BM, tl.minimum(rows, tl.program_id(0) * BM + BM)):
        if tl.load(NEAR_ROW + row) != 0:
            target = tl.load(TARGET + row)
            target = tl.where(target == ignore_index, 0, target)
            inverse = tl.load(TERMS + TERM_INVERSE * stride + row)
            floor = tl.load(TERMS + TERM_FLOOR * stride + row)
            factor = tl.load(TERMS + TERM_FACTOR * stride + row)
            target_g = tl.where(tl.load(SLOT + row * SLOTS) >= 0, 0.0, tl.load(TERMS + TERM_TARGET_G * stride + row))
            target_g = target_g.to(G.dtype.element_ty).to(tl.float32)
            count = tl.load(COUNT + row)
            rounded_sum = tl.load(SUMS + SUM_ROUNDED * stride + row)
            exact_sum = tl.load(SUMS + SUM_EXACT * stride + row)
            for start in range(0, columns, BN):
                s, _, j = distances(pairs, row, start, first, columns, target, near, BN, BD)
                t = tl.maximum(s, floor, propagate_nan=tl.PropagateNan.ALL) + softening
                log_ratio = tl.log2(t * inverse)
                if SMOOTHED:
                    share = tl.load(SHARE + j, mask=s < float("inf"), other=0.0)
                    tau = tl.load(TERMS + TERM_TAU * stride + row)
                    scale = tl.load(TERMS + TERM_SCALE * stride + row)
                    g = scale / t * (share - tau * factor * tl.exp2(-half * log_ratio))
                else:
                    g = factor * tl.exp2(-(half + 1.0) * log_ratio)
                # The gradient of a distance of zero is zero, however large its weight.
                g = tl.where(s == 0, 0.0, g)
                for slot in range(1, count):
                    mine = j == tl.load(SLOT + row * SLOTS + slot)
                    if tl.max(mine.to(tl.int32)) > 0:
                        tl.store(SLOT_G + row * SLOTS + slot, tl.sum(tl.where(mine, g, 0.0)))
                        g = tl.where(mine, 0.0, g)
                g = tl.where(j == target, target_g, g)
                written = g.to(G.dtype.element_ty)
                exact_sum += tl.sum(g)
                rounded_sum += tl.sum(written.to(tl.float32))
                tl.debug_barrier()  # G may share the memory of P: all threads read before any of them writes
                place = G + tl.cast(row, tl.int64) * p_stride + (j - first)
                tl.store(place, written, mask=j < first + columns)
            tl.store(SUMS + SUM_ROUNDED * stride + row, rounded_sum)
            tl.store(SUMS + SUM_EXACT * stride + row, exact_sum)
