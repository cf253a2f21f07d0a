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
    FAR_REFERENCE,
    FAR_SOFT,
    FAR_TARGET,
    FAR_TARGET_G,
    FAR_TARGET_PULL,
    FAR_TWICE,
    SUM_EXACT,
    SUM_ROUNDED,
    TERM_FACTOR,
    TERM_FLOOR,
    TERM_INVERSE,
    TERM_MASS,
    TERM_SCALE,
    TERM_TARGET_G,
    TERM_TARGET_PULL,
    TERM_TAU,
    Classes,
    Rows,
)

PRIOR_REGISTERS = 112
"""Registers of a thread with a prior and float16 products. Without a prior the compiler takes 96.

Without this limit it takes 141, and seven programs fit on a multiprocessor instead of nine.
"""


class Parts(NamedTuple):
    """Sums of the weights over parts of a block, which `sums.py` adds up."""

    row_parts: Tensor
    """(2, column blocks, R): of what was written, and of the same before rounding."""
    column_parts: Tensor
    """(row groups, C): of what was written."""
    prior_parts: Tensor | None
    """(row groups, C): of the prior's gradient over rows without near pairs."""
    near_parts: Tensor | None
    """(programs, C): of the prior's gradient over rows with near pairs. It holds nothing if there are none."""


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
    near_tile, want_prior = dict(tiles.NEAR_TILE), classes.dprior_V is not None
    if want_prior:  # every program has a sum of its own: fewer programs, so that the sums take little memory
        near_tile["BM"] *= 2
    (grid,) = programs(count, near_tile["BM"])
    parts = Parts(
        borrow(2, blocks, count),
        product_RC.new_empty(groups, whole, dtype=torch.float32),
        product_RC.new_empty(groups, whole, dtype=torch.float32) if want_prior else None,
        product_RC.new_empty(grid, whole, dtype=torch.float32) if want_prior else None,
    )
    block = {"P": product_RC, "G": weight_RC, "p_stride": product_RC.stride(0), "first": first}
    known = (block, rows.arguments, classes.arguments, settings)
    launch(
        weigh,
        (blocks, groups),
        *known,
        ROW_PARTS=parts.row_parts,
        COLUMN_PARTS=parts.column_parts,
        PRIOR_PARTS=parts.prior_parts,
        columns=whole,
        group_rows=group_rows,
        size=product_RC.shape,
        registers=PRIOR_REGISTERS if classes.prior is not None and settings["FAST"] else None,
        **tiles.TILE,
    )
    launch(
        weigh_near,
        (grid,),
        *known,
        NEAR_PARTS=parts.near_parts,
        part_stride=whole if want_prior else None,
        columns=width,
        size=product_RC.shape,
        **near_tile,
    )
    return parts


@triton.jit
def _weighted(log_power, power, WITH_PRIOR: tl.constexpr):
    """The logarithm of a power of the distance, with the weight of the prior."""
    if WITH_PRIOR:
        log_power += power
    return log_power


@triton.jit
def weigh(
    P, G, p_stride, W_NORM, W_FACTOR, SHARE, PRIOR_POWER, TERMS, FAR, NEAR_ROW, ROW_PARTS, COLUMN_PARTS, PRIOR_PARTS,
    rows, stride, columns, first, group_rows, EXPONENT, WITH_PRIOR: tl.constexpr, WANT_PRIOR: tl.constexpr,
    SMOOTHED: tl.constexpr, FAST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write G over the products of rows without near pairs. A program has some columns and goes down a group of rows.

    COLUMN_PARTS has sums of G as rounded: (sum G) w - G^T X is then a sum of G (w - x), whatever the rounding of G.
    ROW_PARTS has sums along rows, as rounded and before rounding; the target's G is rounded in both. Rows with a near
    pair add nothing. Columns beyond the last class fill the last tile: there W_NORM is infinite and P finite.
    PRIOR_PARTS has sums of -G t / h, before rounding; beyond the last class they are not numbers.
    """
    top = tl.program_id(1) * group_rows
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (j < columns)[None, :]
    half = 0.5 * tl.load(EXPONENT)
    w_norm = tl.load(W_NORM + first + j, mask=j < columns, other=float("inf"))[None, :]
    w_factor = tl.load(W_FACTOR + first + j, mask=j < columns, other=0.0)[None, :]
    sums = tl.zeros([BM, BN], tl.float32)
    power = 0.0
    if WITH_PRIOR:
        power = tl.load(PRIOR_POWER + first + j, mask=j < columns, other=0.0)[None, :]
    if WANT_PRIOR:
        pulls = tl.zeros([BM // 2, BN], tl.float32)
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
            g = scale / ratio * (share - tau * factor * tl.exp2(_weighted(-half * log_ratio, power, WITH_PRIOR)))
        else:
            g = factor * tl.exp2(_weighted(-(half + 1.0) * log_ratio, power, WITH_PRIOR))
        # The product's value for the target is overwritten.
        own = (first + j)[None, :] == target
        if WANT_PRIOR:
            reference = tl.load(FAR + FAR_REFERENCE * stride + i, mask=here, other=0.0)
            target_pull = tl.load(FAR + FAR_TARGET_PULL * stride + i, mask=here, other=0.0)
            # Half of the rows at once: a thread that has both adds them, and keeps half as many sums.
            pull = tl.where(own, target_pull, g * ratio * reference)
            pulls += tl.sum(tl.reshape(pull, [2, BM // 2, BN]), 0)
        g = tl.where(own, target_g, g)
        wide = rounded(g, G, FAST)
        sums += wide
        place_row = ROW_PARTS + tl.program_id(0) * rows + i
        tl.store(place_row, tl.sum(wide, 1, keep_dims=True), mask=here)
        tl.store(place_row + tl.num_programs(0) * rows, tl.sum(g, 1, keep_dims=True), mask=here)
        # G may share the memory of P: a thread writes only where it has read.
        place = G + (top + start).to(tl.int64) * p_stride + tile
        tl.store(place, wide.to(G.dtype.element_ty), mask=far & inside)
    tl.store(COLUMN_PARTS + tl.program_id(1).to(tl.int64) * columns + j, tl.sum(sums, 0), mask=j < columns)
    if WANT_PRIOR:
        place = PRIOR_PARTS + tl.program_id(1).to(tl.int64) * columns + j
        tl.store(place, tl.sum(pulls, 0) / -half, mask=j < columns)


@triton.jit
def weigh_near(
    P, G, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, SHARE, PRIOR_POWER, TARGET, TERMS, NEAR_ROW, ANY_NEAR,
    SLOT, SLOT_G, COUNT, SUMS, NEAR_PARTS, X, W, x_stride, w_stride, part_stride, rows, stride, columns, first,
    features, ignore_index, EXPONENT, softening, near, WITH_PRIOR: tl.constexpr, WANT_PRIOR: tl.constexpr,
    SMOOTHED: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write G over the products of rows that `weigh` left out, and add their sums to SUMS."""
    if tl.load(ANY_NEAR) == 0:
        return
    half = 0.5 * tl.load(EXPONENT)
    pairs = Pairs(P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, X, W, x_stride, w_stride, features)
    if WANT_PRIOR:
        here = tl.arange(0, BN)
        NEAR_PARTS += tl.program_id(0).to(tl.int64) * part_stride
        for start in range(0, columns, BN):
            tl.store(NEAR_PARTS + start + here, tl.zeros([BN], tl.float32), mask=start + here < columns)
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
                power = 0.0
                if WITH_PRIOR:
                    power = tl.load(PRIOR_POWER + j, mask=s < float("inf"), other=0.0)
                    # Only a hit on a class that is left out can be further below the reference.
                    log_ratio = tl.maximum(log_ratio, -100.0, propagate_nan=tl.PropagateNan.ALL)
                if SMOOTHED:
                    share = tl.load(SHARE + j, mask=s < float("inf"), other=0.0)
                    tau = tl.load(TERMS + TERM_TAU * stride + row)
                    scale = tl.load(TERMS + TERM_SCALE * stride + row)
                    g = scale / t * (share - tau * factor * tl.exp2(_weighted(-half * log_ratio, power, WITH_PRIOR)))
                else:
                    g = factor * tl.exp2(_weighted(-(half + 1.0) * log_ratio, power, WITH_PRIOR))
                if WANT_PRIOR:
                    pull = tl.load(TERMS + TERM_MASS * stride + row) * tl.exp2(power - half * log_ratio)
                    if SMOOTHED:
                        pull -= scale / half * share
                    pull = tl.where(j == target, tl.load(TERMS + TERM_TARGET_PULL * stride + row), pull)
                    place = NEAR_PARTS + start + here
                    before = tl.load(place, mask=start + here < columns, other=0.0)
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
                if WANT_PRIOR:  # stored before the next barrier, so that the next row finds it
                    tl.store(NEAR_PARTS + start + here, before + pull, mask=start + here < columns)
                place = G + tl.cast(row, tl.int64) * p_stride + (j - first)
                tl.store(place, written, mask=j < first + columns)
            tl.store(SUMS + SUM_ROUNDED * stride + row, rounded_sum)
            tl.store(SUMS + SUM_EXACT * stride + row, exact_sum)
