"""Rows that hold a near pair, in Triton: what `triton_passes.py` does, with those pairs' distances by subtraction.

Up to SLOTS pairs a row that are nearer still stay out of G and are listed, so that their gradients are exact too. A
program looks at BM rows, and where none is near it leaves at once. The words are those of `triton_passes.py`.
"""

import triton
import triton.language as tl

from harmax.kernels.triton_passes import rebase


@triton.jit
def _exact_distance(X, W, row, x_stride, column, w_stride, features, BD: tl.constexpr):
    """|x - w|^2 of one pair by subtraction."""
    d = tl.arange(0, BD)
    sums = tl.zeros([BD], tl.float32)
    for start in range(0, features, BD):
        inside = start + d < features
        x = tl.load(X + row * x_stride + start + d, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(W + column * w_stride + start + d, mask=inside, other=0.0).to(tl.float32)
        sums += (x - w) * (x - w)
    return tl.sum(sums)


@triton.jit
def _distances(
    P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, X, W, x_stride, w_stride, row, start, first, columns, target,
    features, near, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Squared distances of a stretch of a row, near ones exact, and the norms they were made of.

    Infinite for the target and beyond the last column.
    """
    here, wide = tl.arange(0, BN), tl.cast(row, tl.int64)
    j = start + here
    inside = (j < columns) & (first + j != target)
    p = tl.load(P + wide * p_stride + j, mask=inside, other=0.0).to(tl.float32)
    norms = tl.load(X_NORM + row) + tl.load(W_NORM + first + j, mask=inside, other=0.0)
    w_factor = tl.load(W_FACTOR + first + j, mask=inside, other=0.0)
    s = tl.where(inside, norms - 2 * tl.load(X_FACTOR + row) * (p * w_factor), float("inf"))
    close = inside & (s <= near * norms)
    left = tl.sum(close.to(tl.int32))
    while left > 0:
        at = tl.min(tl.where(close, here, BN))
        column = (first + start + at).to(tl.int64)
        s = tl.where(here == at, _exact_distance(X, W, wide, x_stride, column, w_stride, features, BD), s)
        close = close & (here != at)
        left -= 1
    return s, norms, first + j


@triton.jit
def statistics_near(
    P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, SHARE, TARGET, TARGET_DISTANCE, STATE, NEAR_ROW, ANY_NEAR, SLOT,
    COUNT, FLAG, X, W, x_stride, w_stride, rows, stride, columns, span, splits, first, features, ignore_index, EXPONENT,
    softening, near, listed_near, tiny, SMOOTHED: tl.constexpr, DOT: tl.constexpr, SLOTS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The first pass over the splits of rows that `statistics` left out."""
    if tl.load(ANY_NEAR) == 0:
        return
    half = 0.5 * tl.load(EXPONENT)
    here = tl.arange(0, BN)
    for row in range(tl.program_id(0) * BM, tl.minimum(rows, tl.program_id(0) * BM + BM)):
        # Kept here through all splits: what one thread stores the others might not see in time.
        count = tl.load(COUNT + row)
        for split in range(splits):
            if (tl.load(NEAR_ROW + split * stride + row) & 1) != 0:
                target = tl.load(TARGET + row)
                target = tl.where(target == ignore_index, 0, target)
                target_s = tl.load(TARGET_DISTANCE + row)
                state = STATE + split * 7 * stride + row
                least, total, dot = tl.load(state), tl.load(state + stride), tl.load(state + 2 * stride)
                share_log, beaten = tl.load(state + 3 * stride), tl.load(state + 4 * stride)
                hits, share_hits = tl.load(state + 5 * stride), tl.load(state + 6 * stride)
                end = tl.minimum(columns, (split + 1) * span)
                for start in range(split * span, end, BN):
                    s, norms, j = _distances(
                        P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, X, W, x_stride, w_stride, row, start, first,
                        end, target, features, near, BN, BD,
                    )  # fmt: skip
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
                    beating = (s < target_s) | ((s == target_s) & (j < target))
                    beaten = tl.maximum(beaten, tl.max(beating.to(tl.float32)))

                    t = tl.maximum(s, tiny, propagate_nan=tl.PropagateNan.ALL) + softening
                    t = tl.where(hit, float("inf"), t)
                    now = tl.minimum(least, tl.min(t))
                    inverse, moved, shrink = rebase(least, now, half, False)
                    log_ratio = tl.log2(t * inverse)
                    q = tl.exp2(-half * log_ratio)
                    if DOT:
                        dot = shrink * (dot + total * moved)
                        dot += tl.sum(tl.where(t < float("inf"), q * log_ratio, 0.0))
                    total = shrink * total + tl.sum(q)
                    if SMOOTHED:
                        logs = log_ratio - tl.log2(inverse * tl.maximum(target_s + softening, tiny))
                        share_log += tl.sum(tl.where(t < float("inf"), share * logs, 0.0))
                    least = now
                tl.store(state, least)
                tl.store(state + stride, total)
                tl.store(state + 2 * stride, dot)
                tl.store(state + 3 * stride, share_log)
                tl.store(state + 4 * stride, beaten)
                tl.store(state + 5 * stride, hits)
                tl.store(state + 6 * stride, share_hits)
                tl.store(NEAR_ROW + split * stride + row, 2)
        tl.store(COUNT + row, count)


@triton.jit
def weigh_near(
    P, G, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, SHARE, TARGET, ROW, NEAR_ROW, ANY_NEAR, SLOT, SLOT_G, COUNT,
    SUMS, X, W, x_stride, w_stride, rows, stride, columns, first, features, ignore_index, EXPONENT, softening, near,
    SMOOTHED: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The second pass over rows that `weigh` left out; SUMS (2, stride) grows by the rows' sums."""
    if tl.load(ANY_NEAR) == 0:
        return
    half = 0.5 * tl.load(EXPONENT)
    for row in range(tl.program_id(0) * BM, tl.minimum(rows, tl.program_id(0) * BM + BM)):
        if tl.load(NEAR_ROW + row) != 0:
            target = tl.load(TARGET + row)
            target = tl.where(target == ignore_index, 0, target)
            inverse, floor, factor = tl.load(ROW + row), tl.load(ROW + stride + row), tl.load(ROW + 2 * stride + row)
            target_g = tl.where(tl.load(SLOT + row * SLOTS) >= 0, 0.0, tl.load(ROW + 4 * stride + row))
            target_g = target_g.to(G.dtype.element_ty).to(tl.float32)
            count = tl.load(COUNT + row)
            rounded_sum, exact_sum = tl.load(SUMS + row), tl.load(SUMS + stride + row)
            for start in range(0, columns, BN):
                s, _, j = _distances(
                    P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, X, W, x_stride, w_stride, row, start, first,
                    columns, target, features, near, BN, BD,
                )  # fmt: skip
                t = tl.maximum(s, floor, propagate_nan=tl.PropagateNan.ALL) + softening
                log_ratio = tl.log2(t * inverse)
                if SMOOTHED:
                    share = tl.load(SHARE + j, mask=s < float("inf"), other=0.0)
                    tau, scale = tl.load(ROW + 5 * stride + row), tl.load(ROW + 3 * stride + row)
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
                rounded = g.to(G.dtype.element_ty)
                exact_sum += tl.sum(g)
                rounded_sum += tl.sum(rounded.to(tl.float32))
                tl.debug_barrier()  # G may lie over P: everybody has read before anybody writes
                place = G + tl.cast(row, tl.int64) * p_stride + (j - first)
                tl.store(place, rounded, mask=j < first + columns)
            tl.store(SUMS + row, rounded_sum)
            tl.store(SUMS + stride + row, exact_sum)
