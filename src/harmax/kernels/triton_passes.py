"""Element-wise passes of the fused loss, in Triton: everything between the large matrix products, which are cuBLAS's.

Per row, t_j = s_j + a are the softened squared distances, c the target, ref the smallest t among the wrong classes,
q_j = (ref / t_j)^h with h = n / 2, and total = sum of q over the wrong classes. Then

    L = h log(t_c / ref) + log(total)          loss = softplus(L)          1 - p_c = sigmoid(L)
    G_j = dloss/dt_j = -h p_j / t_j = -(h sigmoid(L) / (total ref)) (ref / t_j)^(h + 1)       G_c = h sigmoid(L) / t_c

so that a small loss keeps its relative precision, no power overflows at any exponent, and an element takes one
logarithm and one exponential in each of two passes over the products: `statistics`, then `weigh`, which writes G over
them. Rows with a near pair, for which products cancel, are left to `triton_near.py`: its loops would take half of the
registers here, where every instruction is paid a billion times.

Names in capitals without a type are pointers. No program waits for another and none adds atomically: the same input
gives the same bits.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

SLOTS = 8
"""Near pairs of a row whose gradients are exact; slot 0 is the target's. More of them go through the products."""

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def log2(x, FAST: tl.constexpr):
    """By the hardware where the products are halves: 1e-7 of error, and one instruction instead of fourteen."""
    if FAST:
        return libdevice.fast_log2f(x)
    return tl.log2(x)


@triton.jit
def rebase(least, now, half, FAST: tl.constexpr):
    """Move sums to a smaller reference: its inverse, log2 of old / new, and what the sums are multiplied by."""
    inverse = 1.0 / tl.where(now < float("inf"), now, 1.0)
    # Exactly 0 where nothing moved: a rounding would be multiplied in at every tile.
    moved = tl.where((now < least) & (least < float("inf")), log2(least * inverse, FAST), 0.0)
    return inverse, moved, tl.exp2(-half * moved)


@triton.jit
def find_center(W, OUT, w_stride, step, count, features, BS: tl.constexpr, BD: tl.constexpr):
    """The mean of every `step`-th center where it dominates their spread, else 0: distances keep, cancellation goes."""
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
    # The spread is what the mean leaves of the mean square.
    if 2 * tl.sum(mean_size) * count <= tl.sum(tl.sum(size, 1)):
        for start in range(0, features, BD):
            tl.store(OUT + start + d, tl.zeros([BD], tl.float32), mask=start + d < features)


@triton.jit
def prepare(
    V, CENTER, COPY, NORM, FACTOR, v_stride, rows, features, SCALED: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Copy some rows, less the center, in the products' dtype, scaled by powers of two; squared norms and scales.

    float16 has the mantissa for it (bfloat16 fits in whole) but not the range: a row's norm becomes 64 to 128.
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
        # The norm of what is multiplied, so that norms and products belong to the same vectors.
        back = rounded.to(tl.float32) / scale[:, None]
        sums += tl.where(inside, back * back, 0.0)
    tl.store(NORM + i, tl.sum(sums, 1), mask=here)
    tl.store(FACTOR + i, 1.0 / scale, mask=here)


@triton.jit
def begin(
    X, W, TARGET, TARGET_DISTANCE, STATE, NEAR_ROW, SLOT, SLOT_G, COUNT, SUMS, x_stride, w_stride, rows, features,
    ignore_index, classes, splits, SLOTS: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Exact squared distances of some rows to their targets (class 0 where that is ignored), and tables to start from.

    One slot of a row is used, the target's.
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
        tl.store(STATE + split * 7 * rows + i, zero + float("inf"), mask=here)
        for number in range(1, 7):
            tl.store(STATE + (split * 7 + number) * rows + i, zero, mask=here)
        tl.store(NEAR_ROW + split * rows + i, none, mask=here)
    for slot in range(SLOTS):
        tl.store(SLOT + i * SLOTS + slot, none - 1, mask=here)
        tl.store(SLOT_G + i * SLOTS + slot, zero, mask=here)
    tl.store(COUNT + i, none + 1, mask=here)
    tl.store(SUMS + i, zero, mask=here)
    tl.store(SUMS + rows + i, zero, mask=here)


@triton.jit
def statistics(
    P, p_stride, X_NORM, X_FACTOR, W_NORM, W_FACTOR, SHARE, TARGET, TARGET_DISTANCE, STATE, NEAR_ROW, ANY_NEAR, rows,
    stride, columns, span, first, ignore_index, EXPONENT, softening, near, tiny, SMOOTHED: tl.constexpr,
    DOT: tl.constexpr, FAST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """First pass over a block of products: per row the smallest distance, `total`, and what else the loss needs.

    A program has some rows and a span of the block's columns, a split. STATE (splits, 7, stride): smallest t of a
    positive s, total, sum of q log2(t / ref), sum of share log2(t / t_c), whether a wrong class beats the target,
    number of exact hits, share of the hits. All over the wrong classes that this split has seen so far. NEAR_ROW
    (splits, stride) gets 1 where there is a near pair now, a class exactly as far as the target, or a distance too
    small to divide by, and keeps 2 where there was one before; the state is not touched then.
    """
    i = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    here = i < rows
    half = 0.5 * tl.load(EXPONENT)
    x_norm, x_factor = tl.load(X_NORM + i, mask=here, other=0.0), tl.load(X_FACTOR + i, mask=here, other=0.0)
    target = tl.load(TARGET + i, mask=here, other=-1)
    # A row that is ignored has statistics too; any class can stand for its target.
    target = tl.where(target == ignore_index, 0, target).to(tl.int32)
    target_t = tl.load(TARGET_DISTANCE + i, mask=here, other=0.0) + softening
    STATE += tl.program_id(1) * 7 * stride
    least = tl.load(STATE + i, mask=here, other=float("inf"))
    total = tl.load(STATE + stride + i, mask=here, other=0.0)
    dot = tl.load(STATE + 2 * stride + i, mask=here, other=0.0)
    share_log = tl.load(STATE + 3 * stride + i, mask=here, other=0.0)
    beaten = tl.load(STATE + 4 * stride + i, mask=here, other=0.0)
    x_soft, x_margin, x_twice = x_norm + softening, near * x_norm + softening, 2 * x_factor
    gap = tl.full([BM, BN], float("inf"), tl.float32)
    # Sums stay with the threads that make them until the row is done.
    totals, dots = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    shares = tl.zeros([BM, BN], tl.float32)
    left = tl.program_id(1) * span
    columns = tl.minimum(columns, left + span)
    place = P + i[:, None] * p_stride + tl.arange(0, BN)[None, :]
    p_next = tl.load(place + left, mask=here[:, None] & (left + tl.arange(0, BN) < columns)[None, :], other=0.0)
    for start in range(left, columns, BN):
        j = start + tl.arange(0, BN)
        p = p_next.to(tl.float32)
        # The next tile is on its way while this one is computed.
        p_next = tl.load(place + (start + BN), mask=here[:, None] & (j + BN < columns)[None, :], other=0.0)
        w_norm = tl.load(W_NORM + first + j, mask=j < columns, other=float("inf"))
        w_factor = tl.load(W_FACTOR + first + j, mask=j < columns, other=0.0)
        t = (x_soft[:, None] + w_norm[None, :]) - x_twice[:, None] * (p * w_factor[None, :])
        t = tl.where((first + j)[None, :] == target[:, None], float("inf"), t)
        # Beyond the last class this is NaN, which a minimum passes over.
        gap = tl.minimum(gap, t - (x_margin[:, None] + near * w_norm[None, :]))

        now = tl.minimum(least, tl.min(t, 1))
        inverse, moved, shrink = rebase(least, now, half, FAST)
        log_ratio = log2(t * inverse[:, None], FAST)
        q = tl.exp2(-half * log_ratio)
        if DOT:
            dots = shrink[:, None] * (dots + totals * moved[:, None])
            dots += tl.where(t < float("inf"), q * log_ratio, 0.0)
            dot = shrink * (dot + total * moved)
        totals = shrink[:, None] * totals + q
        total = shrink * total
        if SMOOTHED:
            share = tl.load(SHARE + first + j, mask=j < columns, other=0.0)
            # Relative to the target's, so that what is alike cancels before it is rounded.
            logs = log_ratio - log2(inverse * tl.maximum(target_t, tiny), FAST)[:, None]
            shares += tl.where(t < float("inf"), share[None, :] * logs, 0.0)
        least = now

    seen = here & ((tl.min(gap, 1) <= 0) | (least == target_t) | (least < tiny))
    beaten = tl.where(least >= target_t, beaten, 1.0)  # also where one of them is NaN
    clear = here & (seen == 0)
    tl.store(STATE + i, least, mask=clear)
    tl.store(STATE + stride + i, total + tl.sum(totals, 1), mask=clear)
    if DOT:
        tl.store(STATE + 2 * stride + i, dot + tl.sum(dots, 1), mask=clear)
    if SMOOTHED:
        tl.store(STATE + 3 * stride + i, share_log + tl.sum(shares, 1), mask=clear)
    tl.store(STATE + 4 * stride + i, beaten, mask=clear)
    NEAR_ROW += tl.program_id(1) * stride
    before = tl.load(NEAR_ROW + i, mask=here, other=0)
    tl.store(NEAR_ROW + i, (before & 2) | seen.to(tl.int32), mask=here)
    tl.store(ANY_NEAR + tl.zeros([BM], tl.int32), tl.full([BM], 1, tl.int32), mask=seen)


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
    STATE, TARGET, TARGET_DISTANCE, X_NORM, X_FACTOR, W_NORM, WEIGHT, SHARE, SCALE, EXPONENT, LOSS, LSE, HIT,
    DEXPONENT, ROW, FAR, NEAR_ROW, SLOT, FLAG, SHARE_SUM, rows, stride, splits, classes, ignore_index, softening,
    listed_near, hit_floor, tiny, sparse,
    WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr, FAST: tl.constexpr, G_TYPE: tl.constexpr, SLOTS: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """From the statistics of some rows to their losses, and to the numbers `weigh` needs.

    ROW (6, stride): 1 / ref, the floor, the factor of (ref / t)^(h + 1) in G (with smoothing: of (ref / t)^h in p), the
    row's scale times h, G of the target, tau. FAR (6, stride) is for rows without near pairs, and neutral for others:
    1 / ref, |x|^2 + a, twice x's scale (the two over ref if FAST), that factor, G of the target as rounded if it is
    not listed, and as an integer the target. NEAR_ROW of the first split becomes that of the row.
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
    least = tl.full([BM], float("inf"), tl.float32)
    for split in range(splits):
        least = tl.minimum(least, tl.load(STATE + split * 7 * stride + i, mask=here, other=1.0))
    total, dot, share_log = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    beaten, hits, share_hits = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    near = tl.zeros([BM], tl.int32)
    for split in range(splits):
        part = STATE + split * 7 * stride + i
        own = tl.load(part, mask=here, other=1.0)
        own_total = tl.load(part + stride, mask=here, other=1.0)
        # As in `statistics`: a split's sums are relative to its own smallest t.
        moved = tl.where(own < float("inf"), tl.log2(own / least), 0.0)
        shrink = tl.exp2(-half * moved)
        total += shrink * own_total
        dot += shrink * (tl.load(part + 2 * stride, mask=here, other=0.0) + own_total * moved)
        share_log += tl.load(part + 3 * stride, mask=here, other=0.0)
        beaten = tl.maximum(beaten, tl.load(part + 4 * stride, mask=here, other=0.0))
        hits += tl.load(part + 5 * stride, mask=here, other=0.0)
        share_hits += tl.load(part + 6 * stride, mask=here, other=0.0)
        near |= tl.load(NEAR_ROW + split * stride + i, mask=here, other=0)
    tl.store(NEAR_ROW + i, near, mask=here)
    s = tl.load(TARGET_DISTANCE + i, mask=here, other=1.0)

    # An exact hit counts as a distance below every real one of its row.
    nearest = tl.minimum(least - softening, tl.where(s == 0, float("inf"), s))
    floor = tl.maximum(tl.where(nearest < float("inf"), nearest, 0.0) * hit_floor, tiny)
    t = tl.maximum(s, floor, propagate_nan=tl.PropagateNan.ALL) + softening
    known = least < float("inf")
    reference = tl.where(known, least, 1.0)
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
        logs = share_log + share_hits * tl.log2(lifted / before)
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
    tl.store(ROW + stride + i, floor, mask=here)
    factor = tl.where(used, -scale * half * tau * (wrong * share_of) * inverse, 0.0)
    if SMOOTHED:
        factor = wrong * share_of
        tl.store(ROW + 3 * stride + i, tl.where(used, scale * half, 0.0), mask=here)
    tl.store(ROW + 2 * stride + i, factor, mask=here)
    tl.store(ROW + 4 * stride + i, g, mask=here)
    tl.store(ROW + 5 * stride + i, tau, mask=here)
    x_norm = tl.load(X_NORM + i, mask=here, other=0.0)
    close = used & (s <= listed_near * (x_norm + tl.load(W_NORM + target, mask=used, other=0.0)))
    tl.store(SLOT + i * SLOTS, tl.where(close, target, -1).to(tl.int32), mask=here)
    tl.store(FLAG + target, tl.full([BM], 1, tl.int32), mask=close)
    far = here & (near == 0)
    tl.store(FAR + i, tl.where(far, inverse, 1.0), mask=here)
    soft, twice = x_norm + softening, 2 * tl.load(X_FACTOR + i, mask=here, other=0.0)
    if FAST:
        soft, twice = soft * inverse, twice * inverse
    tl.store(FAR + stride + i, tl.where(far, soft, 1.0), mask=here)
    tl.store(FAR + 2 * stride + i, tl.where(far, twice, 0.0), mask=here)
    tl.store(FAR + 3 * stride + i, tl.where(far, factor, 0.0), mask=here)
    written = g.to(G_TYPE).to(tl.float32)
    tl.store(FAR + 4 * stride + i, tl.where(far & (close == 0), written, 0.0), mask=here)
    # As bits: not every whole number is a float32.
    bits = tl.where(far, target, -1).to(tl.int32).to(tl.float32, bitcast=True)
    tl.store(FAR + 5 * stride + i, bits, mask=here)


@triton.jit
def _rounded(x, LIKE, FAST: tl.constexpr):
    """x as a bfloat16 would hold it, in float32; Dekker's split, because conversions are as slow as logarithms."""
    if LIKE.dtype.element_ty == tl.bfloat16:
        # A product fused with the difference would give x back.
        c = libdevice.mul_rn(x, 65537.0) if FAST else x * 65537.0
        return c - (c - x)
    return x


@triton.jit
def weigh(
    P, G, p_stride, W_NORM, W_FACTOR, SHARE, ROW, FAR, NEAR_ROW, ROW_SUM, COLUMN_SUM, rows, stride, columns, first,
    group_rows, EXPONENT, SMOOTHED: tl.constexpr, FAST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Second pass: write G over the products. A program has a block of columns and goes down a group of rows.

    COLUMN_SUM (groups, columns) has sums of what was written, as it was rounded: (sum G) w - G^T X is then a sum of
    G (w - x) whatever the rounding of G. ROW_SUM (2, column blocks, rows) has sums along rows, of what was written and
    of what that was before rounding, the target apart. Rows with a near pair are as if they were not there. Beyond the
    last class there are columns to fill the last tile: W_NORM is infinite there, and P finite.
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
        # The next tile is on its way while this one is computed.
        p_next = tl.load(below + tile, mask=(start + BM + lines < last) & inside, other=0.0)
        i, here = top + start + lines, start + lines < last
        far = here & (tl.load(NEAR_ROW + i, mask=here, other=1) == 0)
        inverse = tl.load(FAR + i, mask=here, other=1.0)
        soft = tl.load(FAR + stride + i, mask=here, other=1.0)
        twice = tl.load(FAR + 2 * stride + i, mask=here, other=0.0)
        factor = tl.load(FAR + 3 * stride + i, mask=here, other=0.0)
        target_g = tl.load(FAR + 4 * stride + i, mask=here, other=0.0)
        target = tl.load(FAR + 5 * stride + i, mask=here, other=0.0).to(tl.int32, bitcast=True)
        if FAST:
            # One multiplication of every element less, and one rounding more.
            ratio = (soft + inverse * w_norm) - twice * (p * w_factor)
        else:
            ratio = ((soft + w_norm) - twice * (p * w_factor)) * inverse
        log_ratio = log2(ratio, FAST)
        if SMOOTHED:
            share = tl.load(SHARE + first + j, mask=j < columns, other=0.0)[None, :]
            tau = tl.load(ROW + 5 * stride + i, mask=far, other=0.0)
            scale = tl.load(ROW + 3 * stride + i, mask=far, other=0.0) * inverse
            g = scale / ratio * (share - tau * factor * tl.exp2(-half * log_ratio))
        else:
            g = factor * tl.exp2(-(half + 1.0) * log_ratio)
        # Whatever the products make of the target is overwritten.
        g = tl.where((first + j)[None, :] == target, target_g, g)
        wide = _rounded(g, G, FAST)
        sums += wide
        place_row = ROW_SUM + tl.program_id(0) * rows + i
        tl.store(place_row, tl.sum(wide, 1, keep_dims=True), mask=here)
        tl.store(place_row + tl.num_programs(0) * rows, tl.sum(g, 1, keep_dims=True), mask=here)
        # G may lie over P: a thread writes where it has read.
        place = G + (top + start).to(tl.int64) * p_stride + tile
        tl.store(place, wide.to(G.dtype.element_ty), mask=far & inside)
    tl.store(COLUMN_SUM + tl.program_id(1).to(tl.int64) * columns + j, tl.sum(sums, 0), mask=j < columns)
