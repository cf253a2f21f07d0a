"""Rows that hold a near pair, in Triton: what `triton_passes.py` does, with those pairs' distances by subtraction.

Up to SLOTS pairs a row that are nearer still stay out of G and are listed, so that their gradients are exact too. A
program has one row, and where no row is near it leaves at once. The words are those of `triton_passes.py`.
"""

import triton
import triton.language as tl


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

    Infinite for the target and beyond the last class.
    """
    here = tl.arange(0, BN)
    j = start + here
    inside = (j < columns) & (first + j != target)
    p = tl.load(P + row * p_stride + j, mask=inside, other=0.0).to(tl.float32)
    norms = tl.load(X_NORM + row) + tl.load(W_NORM + first + j, mask=inside, other=0.0)
    w_factor = tl.load(W_FACTOR + first + j, mask=inside, other=0.0)
    s = tl.where(inside, norms - 2 * tl.load(X_FACTOR + row) * (p * w_factor), float("inf"))
    close = inside & (s <= near * norms)
    left = tl.sum(close.to(tl.int32))
    while left > 0:
        at = tl.min(tl.where(close, here, BN))
        column = (first + start + at).to(tl.int64)
        s = tl.where(here == at, _exact_distance(X, W, row, x_stride, column, w_stride, features, BD), s)
        close = close & (here != at)
        left -= 1
    return s, norms, first + j


@triton.jit
def statistics_near(
    P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, SHARE, TARGET, TARGET_DISTANCE, STATE, NEAR_ROW, ANY_NEAR, SLOT,
    COUNT, FLAG, X, W, x_stride, w_stride, rows, columns, first, features, ignore_index, EXPONENT, softening, near,
    listed_near, tiny, SMOOTHED: tl.constexpr, DOT: tl.constexpr, SLOTS: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """The first pass over a row that `statistics` left out."""
    if tl.load(ANY_NEAR) == 0:
        return
    row = tl.program_id(0).to(tl.int64)
    if (tl.load(NEAR_ROW + row) & 1) == 0:
        return
    half = 0.5 * tl.load(EXPONENT)
    target = tl.load(TARGET + row)
    target = tl.where(target == ignore_index, 0, target)
    target_s = tl.load(TARGET_DISTANCE + row)
    least, total = tl.load(STATE + row), tl.load(STATE + rows + row)
    dot, share_log = tl.load(STATE + 2 * rows + row), tl.load(STATE + 3 * rows + row)
    beaten = tl.load(STATE + 4 * rows + row)
    hits, share_hits = tl.load(STATE + 5 * rows + row), tl.load(STATE + 6 * rows + row)
    count = tl.load(COUNT + row)
    here = tl.arange(0, BN)
    for start in range(0, columns, BN):
        s, norms, j = _distances(
            P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, X, W, x_stride, w_stride, row, start, first, columns,
            target, features, near, BN, BD,
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

        t = tl.where(hit, float("inf"), tl.maximum(s, tiny, propagate_nan=tl.PropagateNan.ALL) + softening)
        now = tl.minimum(least, tl.min(t))
        inverse = 1.0 / tl.where(now < float("inf"), now, 1.0)
        moved = tl.where(least < float("inf"), tl.log2(least * inverse), 0.0)
        shrink = tl.exp2(-half * moved)
        log_ratio = tl.log2(t * inverse)
        q = tl.exp2(-half * log_ratio)
        if DOT:
            dot = shrink * (dot + total * moved) + tl.sum(tl.where(t < float("inf"), q * log_ratio, 0.0))
        total = shrink * total + tl.sum(q)
        if SMOOTHED:
            logs = log_ratio - tl.log2(inverse * tl.maximum(target_s + softening, tiny))
            share_log += tl.sum(tl.where(t < float("inf"), share * logs, 0.0))
        least = now
    tl.store(STATE + row, least)
    tl.store(STATE + rows + row, total)
    tl.store(STATE + 2 * rows + row, dot)
    tl.store(STATE + 3 * rows + row, share_log)
    tl.store(STATE + 4 * rows + row, beaten)
    tl.store(STATE + 5 * rows + row, hits)
    tl.store(STATE + 6 * rows + row, share_hits)
    tl.store(COUNT + row, count)
    tl.store(NEAR_ROW + row, 2)


@triton.jit
def weigh_near(
    P, G, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, SHARE, TARGET, ROW, NEAR_ROW, ANY_NEAR, SLOT, SLOT_G, COUNT,
    SUMS, X, W, x_stride, w_stride, rows, columns, first, features, ignore_index, EXPONENT, softening, near,
    SMOOTHED: tl.constexpr, SLOTS: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The second pass over a row that `weigh` left out; SUMS (2, rows) grows by the row's sums."""
    if tl.load(ANY_NEAR) == 0:
        return
    row = tl.program_id(0).to(tl.int64)
    if tl.load(NEAR_ROW + row) == 0:
        return
    half = 0.5 * tl.load(EXPONENT)
    target = tl.load(TARGET + row)
    target = tl.where(target == ignore_index, 0, target)
    inverse, floor, factor = tl.load(ROW + row), tl.load(ROW + rows + row), tl.load(ROW + 2 * rows + row)
    target_g = tl.where(tl.load(SLOT + row * SLOTS) >= 0, 0.0, tl.load(ROW + 4 * rows + row))
    count = tl.load(COUNT + row)
    rounded_sum, exact_sum = tl.load(SUMS + row), tl.load(SUMS + rows + row)
    for start in range(0, columns, BN):
        s, _, j = _distances(
            P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, X, W, x_stride, w_stride, row, start, first, columns,
            target, features, near, BN, BD,
        )  # fmt: skip
        t = tl.maximum(s, floor, propagate_nan=tl.PropagateNan.ALL) + softening
        log_ratio = tl.log2(t * inverse)
        if SMOOTHED:
            share = tl.load(SHARE + j, mask=s < float("inf"), other=0.0)
            tau, scale = tl.load(ROW + 5 * rows + row), tl.load(ROW + 3 * rows + row)
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
        tl.store(G + row * p_stride + (j - first), rounded, mask=j < first + columns)
    tl.store(SUMS + row, rounded_sum)
    tl.store(SUMS + rows + row, exact_sum)


@triton.jit
def add_column_sums(
    COLUMN_SUM, G, p_stride, NEAR_ROW, ANY_NEAR, OUT, rows, columns, first, groups, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add the sums over groups of rows to OUT, and those of the rows that were left out of the groups."""
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = j < columns
    sums = tl.load(OUT + first + j, mask=inside, other=0.0)
    for group in range(groups):
        sums += tl.load(COLUMN_SUM + group * columns + j, mask=inside, other=0.0)
    if tl.load(ANY_NEAR) != 0:
        here = tl.arange(0, BM)
        for top in range(0, rows, BM):
            near = tl.load(NEAR_ROW + top + here, mask=top + here < rows, other=0) != 0
            left = tl.sum(near.to(tl.int32))
            while left > 0:
                at = tl.min(tl.where(near, here, BM))
                sums += tl.load(G + (top + at).to(tl.int64) * p_stride + j, mask=inside, other=0.0).to(tl.float32)
                near = near & (here != at)
                left -= 1
    tl.store(OUT + first + j, sums, mask=inside)
