"""Element-wise passes of the fused loss, in Triton: everything between the large matrix products, which are cuBLAS's.

Per row, t_j = max(s_j, floor) + a are the softened squared distances, c the target, ref the smallest t among the wrong
classes, q_j = (ref / t_j)^h with h = n / 2, and total = sum of q over the wrong classes. Then

    L = h log(t_c / ref) + log(total)          loss = softplus(L)          1 - p_c = sigmoid(L)
    G_j = dloss/dt_j = -h p_j / t_j = -(h sigmoid(L) / (total ref)) (ref / t_j)^(h + 1)       G_c = h sigmoid(L) / t_c

so that a small loss keeps its relative precision, no power overflows at any exponent, and an element takes one
logarithm and one exponential in each of two passes over the products: `statistics`, then `weigh`, which writes G over
them. Near pairs, for which products cancel, are computed again by subtraction wherever a tile holds one; up to
SLOTS of them a row also stay out of G and are listed, so that their gradients are exact too.

Names in capitals without a type are pointers. No program waits for another and none adds atomically: the same input
gives the same bits.
"""

import triton
import triton.language as tl

SLOTS = 8
"""Near pairs of a row whose gradients are exact; slot 0 is the target's. More of them go through the products."""

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


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
def prepare(
    V, CENTER, COPY, NORM, FACTOR, v_stride, rows, features, SCALED: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Copy some rows, less the centre, in the products' dtype, scaled by powers of two; squared norms and scales.

    float16 has the mantissa for it (bfloat16 fits in whole) but not the range: a row's norm becomes 128 to 256.
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
        # The exponent's bits of sqrt(norm), turned round; rows of zeros and of infinities stay as they are.
        bits = (tl.sqrt(norm).to(tl.int32, bitcast=True) >> 23) & 255
        bits = tl.where((bits > 0) & (bits < 255), bits, 134)
        bits = tl.minimum(tl.maximum(2 * 127 + 7 - bits, 1), 254)
        scale = (bits << 23).to(tl.float32, bitcast=True)
    sums = tl.zeros([BR, BD], tl.float32)
    for start in range(0, features, BD):
        inside = here[:, None] & (start + d < features)[None, :]
        v = tl.load(V + i[:, None] * v_stride + (start + d)[None, :], mask=inside, other=0.0).to(tl.float32)
        v -= tl.load(CENTER + start + d, mask=start + d < features, other=0.0)[None, :]
        rounded = (v * scale[:, None]).to(COPY.dtype.element_ty)
        tl.store(COPY + i[:, None] * features + (start + d)[None, :], rounded, mask=inside)
        # The norm of what is multiplied, so that norms and products belong to the same vectors.
        back = rounded.to(tl.float32) / scale[:, None]
        sums += tl.where(inside, back * back, 0.0)
    tl.store(NORM + i, tl.sum(sums, 1), mask=here)
    tl.store(FACTOR + i, 1.0 / scale, mask=here)


@triton.jit
def target_distance(
    X, W, TARGET, OUT, x_stride, w_stride, rows, features, ignore_index, classes, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Exact squared distances of some rows to their targets; to class 0 where a target is ignored."""
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
    tl.store(OUT + i, tl.sum(sums, 1), mask=here)


@triton.jit
def _distances(P, p_stride, i, here, start, first, columns, x_norm, x_factor, W_NORM, W_FACTOR, BN: tl.constexpr):
    """Squared distances of a tile, from products, and the norms they were made of; infinite beyond the last class."""
    j = start + tl.arange(0, BN)
    w_norm = tl.load(W_NORM + first + j, mask=j < columns, other=float("inf"))
    w_factor = tl.load(W_FACTOR + first + j, mask=j < columns, other=0.0)
    inside = here[:, None] & (j < columns)[None, :]
    p = tl.load(P + i[:, None] * p_stride + j[None, :], mask=inside, other=0.0).to(tl.float32)
    norms = x_norm[:, None] + w_norm[None, :]
    return norms - (2 * x_factor)[:, None] * p * w_factor[None, :], norms, first + j


@triton.jit
def _gather(
    s, j, target, target_distance, least, total, dot, share_log, beaten, SHARE, half, softening, tiny, classes,
    SMOOTHED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Add a tile to the sums of its rows; an infinite distance adds nothing."""
    tie = (s == target_distance[:, None]) & (j[None, :] < target[:, None])
    beaten = tl.maximum(beaten, tl.max(((s < target_distance[:, None]) | tie).to(tl.float32), 1))
    s = tl.maximum(s, tiny, propagate_nan=tl.PropagateNan.ALL)
    now = tl.minimum(least, tl.min(s, 1))
    reference = tl.where(now < float("inf"), now, 1.0) + softening
    inverse = 1.0 / reference
    # What was summed so far is relative to an older, larger reference.
    moved = tl.where(least < float("inf"), tl.log2((least + softening) * inverse), 0.0)
    shrink = tl.exp2(-half * moved)
    log_ratio = tl.log2((s + softening) * inverse[:, None])
    q = tl.exp2(-half * log_ratio)
    if DOT:
        dot = shrink * (dot + total * moved) + tl.sum(tl.where(s < float("inf"), q * log_ratio, 0.0), 1)
    total = shrink * total + tl.sum(q, 1)
    if SMOOTHED:
        share = tl.load(SHARE + j, mask=j < classes, other=0.0)
        # Relative to the target's, so that what is alike cancels before it is rounded.
        logs = log_ratio - tl.log2(inverse * (tl.maximum(target_distance, tiny) + softening))[:, None]
        share_log += tl.sum(tl.where(s < float("inf"), share[None, :] * logs, 0.0), 1)
    return now, total, dot, share_log, beaten


@triton.jit
def statistics(
    P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, SHARE, TARGET, TARGET_DISTANCE, STATE, SLOT, COUNT, FLAG, X, W,
    x_stride, w_stride, rows, columns, first, classes, features, ignore_index, EXPONENT, softening, near, tiny,
    SMOOTHED: tl.constexpr, DOT: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """First pass over a block of products: per row the smallest distance, `total`, and what else the loss needs.

    STATE (7, rows): smallest positive s, total, sum of q log2(t / ref), sum of share log2(t / t_c), whether a wrong
    class beats the target, number of exact hits, share of the hits. All over the wrong classes seen so far. A program
    has some rows and goes along them; only where it has met a near pair does it go again, looking at each of those.
    """
    i = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    here = i < rows
    half = 0.5 * tl.load(EXPONENT)
    x_norm, x_factor = tl.load(X_NORM + i, mask=here, other=0.0), tl.load(X_FACTOR + i, mask=here, other=0.0)
    target = tl.load(TARGET + i, mask=here, other=-1)
    # A row that is ignored has statistics too; any class can stand for its target.
    target = tl.where(target == ignore_index, 0, target)
    target_distance = tl.load(TARGET_DISTANCE + i, mask=here, other=0.0)
    least = tl.load(STATE + i, mask=here, other=float("inf"))
    total = tl.load(STATE + rows + i, mask=here, other=0.0)
    dot = tl.load(STATE + 2 * rows + i, mask=here, other=0.0)
    share_log = tl.load(STATE + 3 * rows + i, mask=here, other=0.0)
    beaten = tl.load(STATE + 4 * rows + i, mask=here, other=0.0)
    seen = tl.zeros([BM, BN], tl.int1)
    for start in range(0, columns, BN):
        s, norms, j = _distances(
            P, p_stride, i, here, start, first, columns, x_norm, x_factor, W_NORM, W_FACTOR, BN
        )  # fmt: skip
        s = tl.where(j[None, :] == target[:, None], float("inf"), s)
        seen = seen | ((s <= near * norms) & (s < float("inf")))
        least, total, dot, share_log, beaten = _gather(
            s, j, target, target_distance, least, total, dot, share_log, beaten, SHARE, half, softening, tiny, classes,
            SMOOTHED, DOT,
        )  # fmt: skip

    if tl.max(tl.max((seen & here[:, None]).to(tl.int32), 1)) > 0:
        least = tl.load(STATE + i, mask=here, other=float("inf"))
        total = tl.load(STATE + rows + i, mask=here, other=0.0)
        dot = tl.load(STATE + 2 * rows + i, mask=here, other=0.0)
        share_log = tl.load(STATE + 3 * rows + i, mask=here, other=0.0)
        beaten = tl.load(STATE + 4 * rows + i, mask=here, other=0.0)
        hits = tl.load(STATE + 5 * rows + i, mask=here, other=0.0)
        share_hits = tl.load(STATE + 6 * rows + i, mask=here, other=0.0)
        place = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        for start in range(0, columns, BN):
            s, norms, j = _distances(
                P, p_stride, i, here, start, first, columns, x_norm, x_factor, W_NORM, W_FACTOR, BN
            )  # fmt: skip
            s = tl.where(j[None, :] == target[:, None], float("inf"), s)
            close = (s <= near * norms) & (s < float("inf")) & here[:, None]
            left = tl.sum(tl.sum(close.to(tl.int32), 1))
            while left > 0:
                at = tl.min(tl.min(tl.where(close, place, BM * BN), 1))
                row, column = tl.program_id(0).to(tl.int64) * BM + at // BN, first + start + at % BN
                exact = _exact_distance(X, W, row, x_stride, column.to(tl.int64), w_stride, features, BD)
                s = tl.where(place == at, exact, s)
                close = close & (place != at)
                left -= 1
                count = tl.load(COUNT + row)
                if count < SLOTS:
                    tl.store(SLOT + row * SLOTS + count, column.to(tl.int32))
                    tl.store(COUNT + row, count + 1)
                    tl.store(FLAG + column, 1)
            hit = s == 0
            hits += tl.sum(hit.to(tl.float32), 1)
            if SMOOTHED:
                share = tl.load(SHARE + j, mask=j < classes, other=0.0)
                share_hits += tl.sum(tl.where(hit, share[None, :], 0.0), 1)
            tie = hit & (target_distance[:, None] == 0) & (j[None, :] < target[:, None])
            beating = tie | (hit & (target_distance[:, None] > 0))
            beaten = tl.maximum(beaten, tl.max(beating.to(tl.float32), 1))
            least, total, dot, share_log, beaten = _gather(
                tl.where(hit, float("inf"), s), j, target, target_distance, least, total, dot, share_log, beaten,
                SHARE, half, softening, tiny, classes, SMOOTHED, DOT,
            )  # fmt: skip
        tl.store(STATE + 5 * rows + i, hits, mask=here)
        tl.store(STATE + 6 * rows + i, share_hits, mask=here)
    tl.store(STATE + i, least, mask=here)
    tl.store(STATE + rows + i, total, mask=here)
    tl.store(STATE + 2 * rows + i, dot, mask=here)
    tl.store(STATE + 3 * rows + i, share_log, mask=here)
    tl.store(STATE + 4 * rows + i, beaten, mask=here)


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + _log1p(tl.exp(-tl.abs(x)))


@triton.jit
def _log1p(x):
    """log(1 + x), exact where x is small: the rounding of 1 + x is divided out."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / tl.where(y == 1.0, 1.0, y - 1.0)))


@triton.jit
def finish(
    STATE, TARGET, TARGET_DISTANCE, X_NORM, W_NORM, WEIGHT, SHARE, SCALE, EXPONENT, LOSS, LSE, HIT, DEXPONENT, ROW,
    SLOT, FLAG, SHARE_SUM, rows, classes, ignore_index, softening, listed_near, hit_floor, tiny, sparse,
    WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """From the statistics of some rows to their losses, and to the numbers `weigh` needs, ROW (6, rows).

    These are: 1 / ref, the floor, the factor of (ref / t)^(h + 1) in G (with smoothing: of (ref / t)^h in p), the row's
    scale times h, G of the target, tau.
    """
    i = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    here = i < rows
    half = 0.5 * tl.load(EXPONENT)
    target = tl.load(TARGET + i, mask=here, other=0)
    used = here & (target != ignore_index)
    # A target that is no class has no loss, and no gradient.
    bad = used & ((target < 0) | (target >= classes))
    used = used & (bad == 0)
    target = tl.where(used, target, 0)
    least = tl.load(STATE + i, mask=here, other=1.0)
    total = tl.load(STATE + rows + i, mask=here, other=1.0)
    dot = tl.load(STATE + 2 * rows + i, mask=here, other=0.0)
    beaten = tl.load(STATE + 4 * rows + i, mask=here, other=0.0)
    hits = tl.load(STATE + 5 * rows + i, mask=here, other=0.0)
    s = tl.load(TARGET_DISTANCE + i, mask=here, other=1.0)

    # An exact hit counts as a distance below every real one of its row.
    nearest = tl.minimum(least, tl.where(s == 0, float("inf"), s))
    floor = tl.maximum(tl.where(nearest < float("inf"), nearest, 0.0) * hit_floor, tiny)
    t = tl.maximum(s, floor, propagate_nan=tl.PropagateNan.ALL) + softening
    known = least < float("inf")
    reference = tl.where(known, least, 1.0) + softening
    lifted = floor + softening
    moved = tl.log2(reference / lifted)
    shrink = tl.where(known, tl.exp2(-half * moved), 0.0)
    dot = tl.where(hits > 0, tl.where(known, shrink * (dot + total * moved), 0.0), dot)
    total = tl.where(hits > 0, hits + shrink * total, total)
    # The passes multiply by this inverse; what is divided here must be rounded as it is there.
    inverse = 1.0 / tl.where(hits > 0, lifted, reference)

    ratio = tl.log2(t * inverse)
    log_total = tl.log2(total)
    gap = (half * ratio + log_total) * LN_2
    loss = _softplus(gap)
    # log of sigmoid(gap), the probability of all wrong classes together.
    log_wrong = -_softplus(-gap) * LOG2_E
    wrong = tl.exp2(log_wrong)
    lse = loss - half * tl.log(t)
    weight = used.to(tl.float32)
    if WEIGHTED:
        weight = tl.where(used, tl.load(WEIGHT + target, mask=used, other=0.0), 0.0)
    scale = tl.load(SCALE + i, mask=here, other=0.0)
    tau = sparse * weight
    # The target's own pull less its probability, T_c - tau p_c; 1 - p_c is known without subtracting.
    pull = tau * wrong
    share_of = 1.0 / tl.where(total > 0, total, 1.0)  # a single class has no wrong ones
    dexponent = 0.5 * scale * tau * wrong * (ratio - dot * share_of) * LN_2
    loss = tau * loss
    if SMOOTHED:
        share_c, share_sum = tl.load(SHARE + target, mask=used, other=0.0), tl.load(SHARE_SUM)
        # The sums know the target's distance as it was before a hit was lifted.
        before = tl.maximum(s, tiny) + softening
        logs = tl.load(STATE + 3 * rows + i, mask=here, other=0.0)
        logs += tl.load(STATE + 6 * rows + i, mask=here, other=0.0) * tl.log2(lifted / before)
        logs = (logs + (share_sum - share_c) * tl.log2(before / t)) * LN_2
        dense = tl.where(used, share_sum, 0.0)
        loss += tl.where(used, half * logs + share_sum * _softplus(gap), 0.0)
        pull += share_c - dense * (1.0 - wrong)
        dexponent += 0.5 * scale * (logs - dense * wrong * (dot * share_of - ratio) * LN_2)
        tau += dense
    tl.store(LOSS + i, tl.where(bad, float("nan"), tl.where(used, loss, 0.0)), mask=here)
    tl.store(LSE + i, lse, mask=here)
    tl.store(HIT + i, used & (beaten == 0), mask=here)
    tl.store(DEXPONENT + i, tl.where(used, dexponent, 0.0), mask=here)

    g = tl.where(used, scale * half * pull / t, 0.0)
    tl.store(ROW + i, inverse, mask=here)
    tl.store(ROW + rows + i, floor, mask=here)
    if SMOOTHED:
        tl.store(ROW + 2 * rows + i, wrong * share_of, mask=here)
        tl.store(ROW + 3 * rows + i, tl.where(used, scale * half, 0.0), mask=here)
    else:
        tl.store(ROW + 2 * rows + i, tl.where(used, -scale * half * tau * (wrong * share_of) * inverse, 0.0), mask=here)
    tl.store(ROW + 4 * rows + i, g, mask=here)
    tl.store(ROW + 5 * rows + i, tau, mask=here)
    norms = tl.load(X_NORM + i, mask=here, other=0.0) + tl.load(W_NORM + target, mask=used, other=0.0)
    close = used & (s <= listed_near * norms)
    tl.store(SLOT + i * SLOTS, tl.where(close, target, -1).to(tl.int32), mask=here)
    tl.store(FLAG + target, tl.full([BM], 1, tl.int32), mask=close)


@triton.jit
def weigh(
    P, G, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, SHARE, TARGET, ROW, SLOT, SLOT_G, COUNT, ROW_SUM, COLUMN_SUM,
    X, W, x_stride, w_stride, rows, columns, first, classes, group_rows, features, ignore_index, EXPONENT, softening,
    near, SMOOTHED: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Second pass: write G over the products. A program has a block of columns and goes down a group of rows.

    COLUMN_SUM (groups, columns) has sums of what was written, as it was rounded: (sum G) w - G^T X is then a sum of
    G (w - x) whatever the rounding of G. ROW_SUM (2, column blocks, rows) has sums without the target, as rounded and
    as they were before.
    """
    top = tl.program_id(1).to(tl.int64) * group_rows
    left_column = tl.program_id(0) * BN
    inside_columns = left_column + tl.arange(0, BN) < columns
    half = 0.5 * tl.load(EXPONENT)
    sums = tl.zeros([BM, BN], tl.float32)
    place = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    for start in range(0, group_rows, BM):
        i = top + start + tl.arange(0, BM)
        here = (i < rows) & (start + tl.arange(0, BM) < group_rows)
        x_norm, x_factor = tl.load(X_NORM + i, mask=here, other=0.0), tl.load(X_FACTOR + i, mask=here, other=0.0)
        target = tl.load(TARGET + i, mask=here, other=-1)
        target = tl.where(target == ignore_index, 0, target)
        inverse = tl.load(ROW + i, mask=here, other=1.0)
        floor = tl.load(ROW + rows + i, mask=here, other=1.0)
        factor = tl.load(ROW + 2 * rows + i, mask=here, other=0.0)
        target_g = tl.load(ROW + 4 * rows + i, mask=here, other=0.0)
        target_listed = tl.load(SLOT + i * SLOTS, mask=here, other=-1) >= 0
        count = tl.load(COUNT + i, mask=here, other=1)
        s, norms, j = _distances(
            P, p_stride, i, here, left_column, first, columns, x_norm, x_factor, W_NORM, W_FACTOR, BN
        )  # fmt: skip
        is_target = j[None, :] == target[:, None]
        any_close = tl.max(count) > 1
        close = (s <= near * norms) & (s < float("inf")) & (is_target == 0) & here[:, None]
        if any_close:
            found = close
            left = tl.sum(tl.sum(found.to(tl.int32), 1))
            while left > 0:
                at = tl.min(tl.min(tl.where(found, place, BM * BN), 1))
                row, column = top + start + at // BN, first + left_column + at % BN
                exact = _exact_distance(X, W, row, x_stride, column.to(tl.int64), w_stride, features, BD)
                s = tl.where(place == at, exact, s)
                found = found & (place != at)
                left -= 1
        t = tl.maximum(s, floor[:, None], propagate_nan=tl.PropagateNan.ALL) + softening
        log_ratio = tl.log2(t * inverse[:, None])
        if SMOOTHED:
            share = tl.load(SHARE + j, mask=j < classes, other=0.0)
            tau = tl.load(ROW + 5 * rows + i, mask=here, other=0.0)
            scale = tl.load(ROW + 3 * rows + i, mask=here, other=0.0)
            chance = factor[:, None] * tl.exp2(-half * log_ratio)
            g = scale[:, None] / t * (share[None, :] - tau[:, None] * chance)
        else:
            g = factor[:, None] * tl.exp2(-(half + 1.0) * log_ratio)
        if any_close:
            # The gradient of a distance of zero is zero, however large its weight.
            g = tl.where(s == 0, 0.0, g)
            left = tl.sum(tl.sum(close.to(tl.int32), 1))
            while left > 0:
                at = tl.min(tl.min(tl.where(close, place, BM * BN), 1))
                row, column = top + start + at // BN, first + left_column + at % BN
                value = tl.sum(tl.sum(tl.where(place == at, g, 0.0), 1))
                listed = 0
                for slot in range(1, SLOTS):
                    if (slot < tl.load(COUNT + row)) & (tl.load(SLOT + row * SLOTS + slot) == column):
                        tl.store(SLOT_G + row * SLOTS + slot, value)
                        listed = 1
                g = tl.where((place == at) & (listed > 0), 0.0, g)
                close = close & (place != at)
                left -= 1
        g = tl.where(is_target, tl.where(target_listed, 0.0, target_g)[:, None], g)
        rounded = g.to(G.dtype.element_ty)
        # G may lie over P: everybody has read before anybody writes.
        tl.debug_barrier()
        inside = here[:, None] & inside_columns[None, :]
        tl.store(G + i[:, None] * p_stride + (left_column + tl.arange(0, BN))[None, :], rounded, mask=inside)
        wide = tl.where(inside, rounded.to(tl.float32), 0.0)
        sums += wide
        place_row = ROW_SUM + tl.program_id(0).to(tl.int64) * rows + i
        tl.store(place_row, tl.sum(tl.where(is_target, 0.0, wide), 1), mask=here)
        exact_sum = tl.sum(tl.where(is_target | (inside == 0), 0.0, g), 1)
        tl.store(place_row + tl.num_programs(0).to(tl.int64) * rows, exact_sum, mask=here)
    place_column = COLUMN_SUM + tl.program_id(1).to(tl.int64) * columns + left_column + tl.arange(0, BN)
    tl.store(place_column, tl.sum(sums, 0), mask=inside_columns)
