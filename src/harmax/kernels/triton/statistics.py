"""Step 4: the first pass over a block of products, which gathers the statistics of its rows.

A program has some rows and a part of the block's columns, called a split.
"""

import triton
import triton.language as tl
from torch import Tensor

from harmax.kernels.triton import tiles
from harmax.kernels.triton.arithmetic import log2, rebase, stretch
from harmax.kernels.triton.launch import Arguments, Launcher, programs
from harmax.kernels.triton.near import Pairs, distances
from harmax.kernels.triton.tables import (
    HIT_LEAST,
    HIT_NEAREST,
    HIT_SIZE,
    HIT_TOTAL,
    STATE_BEATEN,
    STATE_DOT,
    STATE_HITS,
    STATE_LEAST,
    STATE_SHARE_HITS,
    STATE_SHARE_LOG,
    STATE_SIZE,
    STATE_TOTAL,
    Classes,
    Rows,
)


def gather_statistics(
    launch: Launcher, product_RC: Tensor, rows: Rows, classes: Classes, settings: Arguments, *, first: int, splits: int
) -> None:
    """Add a block of products, whose first column is class `first`, to the statistics of its rows."""
    count, width = product_RC.shape
    block = {"P": product_RC, "p_stride": product_RC.stride(0), "first": first}
    known = (block, rows.arguments, classes.arguments, settings)
    size = product_RC.shape
    grid = (*programs(count, tiles.TILE["BM"]), splits)
    launch(statistics, grid, *known, columns=tiles.pitch(width), size=size, **tiles.TILE)
    launch(statistics_near, programs(count, tiles.NEAR_TILE["BM"]), *known, columns=width, size=size, **tiles.NEAR_TILE)


@triton.jit
def statistics(
    P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, SHARE, PRIOR_FACTOR, PRIOR_STRETCH, TARGET, TARGET_DISTANCE,
    TARGET_POWER, STATE, HITS, NEAR_ROW, ANY_NEAR, rows, stride, columns, span, first, ignore_index, EXPONENT,
    softening, near, tiny, WITH_PRIOR: tl.constexpr, SMOOTHED: tl.constexpr, DOT: tl.constexpr, FAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Update STATE for rows without a near pair.

    NEAR_ROW becomes 1 if this block has a near pair, a class exactly as far as the target, or a distance too small to
    divide by. It keeps 2 if an earlier block had one. STATE is not changed then.
    """
    i = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    here = i < rows
    half = 0.5 * tl.load(EXPONENT)
    x_norm, x_factor = tl.load(X_NORM + i, mask=here, other=0.0), tl.load(X_FACTOR + i, mask=here, other=0.0)
    target = tl.load(TARGET + i, mask=here, other=-1)
    # An ignored row has statistics too; any class can serve as its target.
    target = tl.where(target == ignore_index, 0, target).to(tl.int32)
    target_t = tl.load(TARGET_DISTANCE + i, mask=here, other=0.0) + softening
    target_scaled = target_t
    if WITH_PRIOR:
        target_scaled *= stretch(tl.load(TARGET_POWER + i, mask=here, other=0.0), half)
        HITS += tl.program_id(1) * HIT_SIZE * stride
        nearest = tl.full([BM, BN // 4], float("inf"), tl.float32)
    STATE += tl.program_id(1) * STATE_SIZE * stride
    least = tl.load(STATE + STATE_LEAST * stride + i, mask=here, other=float("inf"))
    total = tl.load(STATE + STATE_TOTAL * stride + i, mask=here, other=0.0)
    dot = tl.load(STATE + STATE_DOT * stride + i, mask=here, other=0.0)
    share_log = tl.load(STATE + STATE_SHARE_LOG * stride + i, mask=here, other=0.0)
    beaten = tl.load(STATE + STATE_BEATEN * stride + i, mask=here, other=0.0)
    x_soft, x_margin, x_twice = x_norm + softening, near * x_norm + softening, 2 * x_factor
    gap = tl.full([BM, BN], float("inf"), tl.float32)
    # Each thread keeps its own sums until the row is done.
    totals, dots = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    shares = tl.zeros([BM, BN], tl.float32)
    left = tl.program_id(1) * span
    columns = tl.minimum(columns, left + span)
    place = P + i[:, None] * p_stride + tl.arange(0, BN)[None, :]
    p_next = tl.load(place + left, mask=here[:, None] & (left + tl.arange(0, BN) < columns)[None, :], other=0.0)
    for start in range(left, columns, BN):
        j = start + tl.arange(0, BN)
        p = p_next.to(tl.float32)
        # The next tile is loaded while this one is computed.
        p_next = tl.load(place + (start + BN), mask=here[:, None] & (j + BN < columns)[None, :], other=0.0)
        w_norm = tl.load(W_NORM + first + j, mask=j < columns, other=float("inf"))
        w_factor = tl.load(W_FACTOR + first + j, mask=j < columns, other=0.0)
        t = (x_soft[:, None] + w_norm[None, :]) - x_twice[:, None] * (p * w_factor[None, :])
        t = tl.where((first + j)[None, :] == target[:, None], float("inf"), t)
        # Beyond the last class this is NaN, which the minimum ignores.
        gap = tl.minimum(gap, t - (x_margin[:, None] + near * w_norm[None, :]))
        if WITH_PRIOR:
            # Four columns at once: they belong to one thread, which then keeps a quarter as many numbers.
            nearest = tl.minimum(nearest, tl.min(tl.reshape(t, [BM, BN // 4, 4]), 2))
            t *= tl.load(PRIOR_FACTOR + first + j, mask=j < columns, other=1.0)[None, :]

        now = tl.minimum(least, tl.min(t, 1))
        inverse, moved, shrink = rebase(least, now, half, FAST)
        log_ratio = log2(t * inverse[:, None], FAST)
        q = tl.exp2(-half * log_ratio)
        if WITH_PRIOR and (DOT or SMOOTHED):
            # From here on without the factor of the class: the prior is no part of these sums.
            log_ratio -= tl.load(PRIOR_STRETCH + first + j, mask=j < columns, other=0.0)[None, :]
        if DOT:
            dots = shrink[:, None] * (dots + totals * moved[:, None])
            dots += tl.where(t < float("inf"), q * log_ratio, 0.0)
            dot = shrink * (dot + total * moved)
        totals = shrink[:, None] * totals + q
        total = shrink * total
        if SMOOTHED:
            share = tl.load(SHARE + first + j, mask=j < columns, other=0.0)
            # Relative to the target's, so that equal parts cancel before they are rounded.
            logs = log_ratio - log2(inverse * tl.maximum(target_t, tiny), FAST)[:, None]
            shares += tl.where(t < float("inf"), share[None, :] * logs, 0.0)
        least = now

    seen = here & ((tl.min(gap, 1) <= 0) | (least == target_scaled) | (least < tiny))
    beaten = tl.where(least >= target_scaled, beaten, 1.0)  # also if one of them is NaN
    clear = here & (seen == 0)
    tl.store(STATE + STATE_LEAST * stride + i, least, mask=clear)
    tl.store(STATE + STATE_TOTAL * stride + i, total + tl.sum(totals, 1), mask=clear)
    if DOT:
        tl.store(STATE + STATE_DOT * stride + i, dot + tl.sum(dots, 1), mask=clear)
    if SMOOTHED:
        tl.store(STATE + STATE_SHARE_LOG * stride + i, share_log + tl.sum(shares, 1), mask=clear)
    tl.store(STATE + STATE_BEATEN * stride + i, beaten, mask=clear)
    if WITH_PRIOR:
        place = HITS + HIT_NEAREST * stride + i
        tl.store(place, tl.minimum(tl.load(place, mask=here, other=0.0), tl.min(nearest, 1)), mask=clear)
    NEAR_ROW += tl.program_id(1) * stride
    before = tl.load(NEAR_ROW + i, mask=here, other=0)
    tl.store(NEAR_ROW + i, (before & 2) | seen.to(tl.int32), mask=here)
    tl.store(ANY_NEAR + tl.zeros([BM], tl.int32), tl.full([BM], 1, tl.int32), mask=seen)


@triton.jit
def statistics_near(
    P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, SHARE, PRIOR_FACTOR, PRIOR_STRETCH, TARGET, TARGET_DISTANCE,
    TARGET_POWER, STATE, HITS, NEAR_ROW, ANY_NEAR, SLOT, COUNT, FLAG, X, W, x_stride, w_stride, rows, stride, columns,
    span, splits, first, features, ignore_index, EXPONENT, softening, near, listed_near, tiny,
    WITH_PRIOR: tl.constexpr, SMOOTHED: tl.constexpr, DOT: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Update STATE for the splits of rows that `statistics` left out, and list their nearest pairs."""
    if tl.load(ANY_NEAR) == 0:
        return
    half = 0.5 * tl.load(EXPONENT)
    here = tl.arange(0, BN)
    pairs = Pairs(P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, X, W, x_stride, w_stride, features)
    for row in range(tl.program_id(0) * BM, tl.minimum(rows, tl.program_id(0) * BM + BM)):
        # Kept in a register through all splits: other threads might not see a stored value in time.
        count = tl.load(COUNT + row)
        for split in range(splits):
            if (tl.load(NEAR_ROW + split * stride + row) & 1) != 0:
                target = tl.load(TARGET + row)
                target = tl.where(target == ignore_index, 0, target)
                target_s = tl.load(TARGET_DISTANCE + row)
                state = STATE + split * STATE_SIZE * stride + row
                least, total = tl.load(state + STATE_LEAST * stride), tl.load(state + STATE_TOTAL * stride)
                dot, share_log = tl.load(state + STATE_DOT * stride), tl.load(state + STATE_SHARE_LOG * stride)
                beaten = tl.load(state + STATE_BEATEN * stride)
                hits, share_hits = tl.load(state + STATE_HITS * stride), tl.load(state + STATE_SHARE_HITS * stride)
                if WITH_PRIOR:
                    zero = HITS + split * HIT_SIZE * stride + row
                    nearest = tl.load(zero + HIT_NEAREST * stride)
                    hit_least = tl.load(zero + HIT_LEAST * stride)
                    hit_total = tl.load(zero + HIT_TOTAL * stride)
                    target_scaled = tl.maximum(target_s, tiny) + softening
                    target_scaled *= stretch(tl.load(TARGET_POWER + row), half)
                end = tl.minimum(columns, (split + 1) * span)
                for start in range(split * span, end, BN):
                    s, norms, j = distances(pairs, row, start, first, end, target, near, BN, BD)
                    listed = (s <= listed_near * norms) & (s < float("inf"))
                    left = tl.minimum(tl.sum(listed.to(tl.int32)), SLOTS - count)
                    while left > 0:
                        at = tl.min(tl.where(listed, here, BN))
                        column = first + start + at
                        tl.store(SLOT + row * SLOTS + count, column.to(tl.int32))
                        tl.store(FLAG + column, 1)
                        listed = listed & (here != at)
                        count += 1
                        left -= 1
                    hit = s == 0
                    hits += tl.sum(hit.to(tl.float32))
                    share = tl.zeros([BN], tl.float32)
                    if SMOOTHED:
                        share = tl.load(SHARE + j, mask=s < float("inf"), other=0.0)
                        share_hits += tl.sum(tl.where(hit, share, 0.0))
                    if WITH_PRIOR:
                        factor = tl.load(PRIOR_FACTOR + j, mask=s < float("inf"), other=1.0)
                        scaled = factor * (tl.maximum(s, tiny) + softening)
                        beating = (scaled < target_scaled) | ((scaled == target_scaled) & (j < target))
                        hit_factor = tl.where(hit, factor, float("inf"))
                        now = tl.minimum(hit_least, tl.min(hit_factor))
                        inverse, moved, shrink = rebase(hit_least, now, half, False)
                        hit_total = shrink * hit_total + tl.sum(tl.exp2(-half * tl.log2(hit_factor * inverse)))
                        hit_least = now
                    else:
                        beating = (s < target_s) | ((s == target_s) & (j < target))
                    beaten = tl.maximum(beaten, tl.max(beating.to(tl.float32)))

                    t = tl.maximum(s, tiny, propagate_nan=tl.PropagateNan.ALL) + softening
                    t = tl.where(hit, float("inf"), t)
                    if WITH_PRIOR:
                        nearest = tl.minimum(nearest, tl.min(t))
                        t *= factor
                    now = tl.minimum(least, tl.min(t))
                    inverse, moved, shrink = rebase(least, now, half, False)
                    log_ratio = tl.log2(t * inverse)
                    q = tl.exp2(-half * log_ratio)
                    if WITH_PRIOR and (DOT or SMOOTHED):
                        log_ratio -= tl.load(PRIOR_STRETCH + j, mask=s < float("inf"), other=0.0)
                    if DOT:
                        dot = shrink * (dot + total * moved)
                        dot += tl.sum(tl.where(t < float("inf"), q * log_ratio, 0.0))
                    total = shrink * total + tl.sum(q)
                    if SMOOTHED:
                        logs = log_ratio - tl.log2(inverse * tl.maximum(target_s + softening, tiny))
                        share_log += tl.sum(tl.where(t < float("inf"), share * logs, 0.0))
                    least = now
                tl.store(state + STATE_LEAST * stride, least)
                tl.store(state + STATE_TOTAL * stride, total)
                tl.store(state + STATE_DOT * stride, dot)
                tl.store(state + STATE_SHARE_LOG * stride, share_log)
                tl.store(state + STATE_BEATEN * stride, beaten)
                tl.store(state + STATE_HITS * stride, hits)
                tl.store(state + STATE_SHARE_HITS * stride, share_hits)
                if WITH_PRIOR:
                    tl.store(zero + HIT_NEAREST * stride, nearest)
                    tl.store(zero + HIT_LEAST * stride, hit_least)
                    tl.store(zero + HIT_TOTAL * stride, hit_total)
                tl.store(NEAR_ROW + split * stride + row, 2)
        tl.store(COUNT + row, count)
