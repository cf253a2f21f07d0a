"""Step 2: exact squared distances to the targets, and the first values of all tables."""

import triton
import triton.language as tl

from harmax.kernels.triton import tiles
from harmax.kernels.triton.launch import Arguments, Launcher, programs
from harmax.kernels.triton.tables import (
    HIT_LEAST,
    HIT_NEAREST,
    HIT_SIZE,
    HIT_TOTAL,
    STATE_LEAST,
    STATE_SIZE,
    SUM_EXACT,
    SUM_ROUNDED,
    Classes,
    Rows,
)


def fill_tables(launch: Launcher, rows: Rows, classes: Classes, settings: Arguments) -> None:
    """Fill the tables of all rows."""
    grid = programs(len(rows), tiles.ROWS)
    launch(begin, grid, rows.arguments, classes.arguments, settings, BR=tiles.ROWS)


@triton.jit
def begin(
    X, W, TARGET, TARGET_DISTANCE, TARGET_POWER, PRIOR_POWER, STATE, HITS, NEAR_ROW, SLOT, SLOT_G, COUNT, SUMS,
    x_stride, w_stride, rows, features, ignore_index, classes, splits, WITH_PRIOR: tl.constexpr, SLOTS: tl.constexpr,
    BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Store the exact squared distances of some rows to their targets (to class 0 if ignored), and fill their tables.

    One slot of a row is in use at first, the target's.
    """
    i = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    here, d = i < rows, tl.arange(0, BD)
    target = tl.load(TARGET + i, mask=here, other=0)
    target = tl.where((target == ignore_index) | (target < 0) | (target >= classes), 0, target)
    sums = tl.zeros([BR, BD], tl.float32)
    for start in range(0, features, BD):
        inside = here[:, None] & (start + d < features)[None, :]
        x = tl.load(X + i[:, None] * x_stride + (start + d)[None, :], mask=inside, other=0.0).to(tl.float32)
        w = tl.load(W + target[:, None] * w_stride + (start + d)[None, :], mask=inside, other=0.0).to(tl.float32)
        sums += (x - w) * (x - w)
    tl.store(TARGET_DISTANCE + i, tl.sum(sums, 1), mask=here)
    zero, none = tl.zeros([BR], tl.float32), tl.zeros([BR], tl.int32)
    for split in range(splits):
        tl.store(STATE + (split * STATE_SIZE + STATE_LEAST) * rows + i, zero + float("inf"), mask=here)
        for column in range(STATE_LEAST + 1, STATE_SIZE):
            tl.store(STATE + (split * STATE_SIZE + column) * rows + i, zero, mask=here)
        tl.store(NEAR_ROW + split * rows + i, none, mask=here)
        if WITH_PRIOR:
            tl.store(HITS + (split * HIT_SIZE + HIT_NEAREST) * rows + i, zero + float("inf"), mask=here)
            tl.store(HITS + (split * HIT_SIZE + HIT_LEAST) * rows + i, zero + float("inf"), mask=here)
            tl.store(HITS + (split * HIT_SIZE + HIT_TOTAL) * rows + i, zero, mask=here)
    if WITH_PRIOR:
        tl.store(TARGET_POWER + i, tl.load(PRIOR_POWER + target, mask=here, other=0.0), mask=here)
    for slot in range(SLOTS):
        tl.store(SLOT + i * SLOTS + slot, none - 1, mask=here)
        tl.store(SLOT_G + i * SLOTS + slot, zero, mask=here)
    tl.store(COUNT + i, none + 1, mask=here)
    tl.store(SUMS + SUM_ROUNDED * rows + i, zero, mask=here)
    tl.store(SUMS + SUM_EXACT * rows + i, zero, mask=here)
