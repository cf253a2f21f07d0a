"""Step 5: from the statistics of rows to their losses, and to the terms of their gradient weights."""

import triton
import triton.language as tl

from harmax.kernels.triton.arithmetic import LN_2, LOG2_E, softplus, stretch
from harmax.kernels.triton.launch import Arguments, Launcher, programs
from harmax.kernels.triton.tables import (
    FAR_FACTOR,
    FAR_INVERSE,
    FAR_REFERENCE,
    FAR_SOFT,
    FAR_TARGET,
    FAR_TARGET_G,
    FAR_TARGET_PULL,
    FAR_TWICE,
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

BLOCK = 128


def finish_losses(launch: Launcher, rows: Rows, classes: Classes, settings: Arguments) -> None:
    """Compute the losses of rows whose statistics are complete."""
    grid = programs(len(rows), BLOCK)
    launch(finish, grid, rows.arguments, classes.arguments, settings, BM=BLOCK, size=(len(rows),))


@triton.jit
def _log2_ratio(a, b):
    """log2(a / b), also where factors of classes bring the ratio out of range."""
    ratio = a / b
    inside = (ratio > 1e-37) & (ratio < float("inf"))
    return tl.where(inside, tl.log2(ratio), tl.log2(a) - tl.log2(b))


@triton.jit
def _shrink(own, reference, half):
    """Move a sum from its own reference to a smaller one: log2 of their ratio, and the factor of the sum."""
    known = own < float("inf")
    moved = _log2_ratio(tl.where(known, own, 1.0), tl.where(known, reference, 1.0))
    return moved, tl.where(known, tl.exp2(-half * moved), 0.0)


@triton.jit
def _statistics_of_hits(HITS, i, here, stride, splits, half, BM: tl.constexpr):
    """Over all splits: the smallest t of a positive distance; of hits, the smallest factor, and the sum of q."""
    nearest, least = tl.full([BM], float("inf"), tl.float32), tl.full([BM], float("inf"), tl.float32)
    for split in range(splits):
        part = HITS + split * HIT_SIZE * stride + i
        nearest = tl.minimum(nearest, tl.load(part + HIT_NEAREST * stride, mask=here, other=1.0))
        least = tl.minimum(least, tl.load(part + HIT_LEAST * stride, mask=here, other=1.0))
    total = tl.zeros([BM], tl.float32)
    for split in range(splits):
        part = HITS + split * HIT_SIZE * stride + i
        _, shrink = _shrink(tl.load(part + HIT_LEAST * stride, mask=here, other=1.0), least, half)
        total += shrink * tl.load(part + HIT_TOTAL * stride, mask=here, other=0.0)
    return nearest, least, total


@triton.jit
def finish(
    STATE, HITS, TARGET, TARGET_DISTANCE, TARGET_POWER, X_NORM, X_FACTOR, W_NORM, WEIGHT, SHARE, SCALE, EXPONENT,
    LOSS, LSE, HIT, DEXPONENT, TERMS, FAR, NEAR_ROW, SLOT, FLAG, SHARE_SUM, PRIOR_TOP, PRIOR_SHARE, rows, stride,
    splits, classes, ignore_index, softening, listed_near, hit_floor, tiny, sparse,
    WITH_PRIOR: tl.constexpr, WANT_PRIOR: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTHED: tl.constexpr,
    FAST: tl.constexpr, G_TYPE: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Write the losses and statistics of some rows, TERMS and FAR. NEAR_ROW of the first split becomes the row's."""
    i = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    here = i < rows
    half = 0.5 * tl.load(EXPONENT)
    target = tl.load(TARGET + i, mask=here, other=0)
    used = here & (target != ignore_index)
    # A target out of range has no loss and no gradient.
    bad = used & ((target < 0) | (target >= classes))
    used = used & (bad == 0)
    target = tl.where(used, target, 0)
    least = tl.full([BM], float("inf"), tl.float32)
    for split in range(splits):
        least = tl.minimum(
            least, tl.load(STATE + split * STATE_SIZE * stride + STATE_LEAST * stride + i, mask=here, other=1.0)
        )
    total, dot, share_log = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    beaten, hits, share_hits = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    near = tl.zeros([BM], tl.int32)
    for split in range(splits):
        part = STATE + split * STATE_SIZE * stride + i
        own = tl.load(part + STATE_LEAST * stride, mask=here, other=1.0)
        own_total = tl.load(part + STATE_TOTAL * stride, mask=here, other=1.0)
        # The sums of a split are relative to its own smallest t.
        moved = tl.where(own < float("inf"), tl.log2(own / least), 0.0)
        shrink = tl.exp2(-half * moved)
        total += shrink * own_total
        dot += shrink * (tl.load(part + STATE_DOT * stride, mask=here, other=0.0) + own_total * moved)
        share_log += tl.load(part + STATE_SHARE_LOG * stride, mask=here, other=0.0)
        beaten = tl.maximum(beaten, tl.load(part + STATE_BEATEN * stride, mask=here, other=0.0))
        hits += tl.load(part + STATE_HITS * stride, mask=here, other=0.0)
        share_hits += tl.load(part + STATE_SHARE_HITS * stride, mask=here, other=0.0)
        near |= tl.load(NEAR_ROW + split * stride + i, mask=here, other=0)
    tl.store(NEAR_ROW + i, near, mask=here)
    s = tl.load(TARGET_DISTANCE + i, mask=here, other=1.0)

    # An exact hit counts as a distance below every real one of its row.
    closest = least
    if WITH_PRIOR:
        closest, hit_least, hit_total = _statistics_of_hits(HITS, i, here, stride, splits, half, BM)
    nearest = tl.minimum(closest - softening, tl.where(s == 0, float("inf"), s))
    floor = tl.maximum(tl.where(nearest < float("inf"), nearest, 0.0) * hit_floor, tiny)
    t = tl.maximum(s, floor, propagate_nan=tl.PropagateNan.ALL) + softening
    if WITH_PRIOR:
        lifted = floor + softening
        # Hits have the factors of their classes, so that another class may be more probable.
        hit = lifted * hit_least
        first = tl.minimum(least, hit)
        reference = tl.where(first < float("inf"), first, 1.0)
        moved, shrink = _shrink(least, reference, half)
        _, hit_shrink = _shrink(hit, reference, half)
        hit_total *= hit_shrink
        dot = shrink * (dot + total * moved) + hit_total * _log2_ratio(lifted, reference)
        total = shrink * total + hit_total
        power = tl.load(TARGET_POWER + i, mask=here, other=0.0)
        scaled = t * stretch(power, half)
        behind = (scaled > reference) | ((scaled == reference) & (beaten > 0))
        exact = (hit < float("inf")) | ((s == 0) & (first < float("inf")))
        beaten = tl.where(exact, behind.to(tl.float32), beaten)
    else:
        known = least < float("inf")
        reference = tl.where(known, least, 1.0)
        lifted = floor + softening
        moved = tl.log2(reference / lifted)
        shrink = tl.where(known, tl.exp2(-half * moved), 0.0)
        dot = tl.where(hits > 0, tl.where(known, shrink * (dot + total * moved), 0.0), dot)
        total = tl.where(hits > 0, hits + shrink * total, total)
        reference = tl.where(hits > 0, lifted, reference)
    # The passes multiply by this inverse, so quotients must be rounded here as they are there.
    inverse = 1.0 / reference

    ratio = _log2_ratio(t, reference) if WITH_PRIOR else tl.log2(t * inverse)
    log_total = tl.log2(total)
    gap = (half * ratio + log_total) * LN_2
    if WITH_PRIOR:
        gap -= power * LN_2
    loss = softplus(gap)
    # log of sigmoid(gap), the probability of all wrong classes together.
    log_wrong = -softplus(-gap) * LOG2_E
    wrong = tl.exp2(log_wrong)
    lse = loss - half * tl.log(t)
    if WITH_PRIOR:
        # If the prior leaves the target out, the wrong classes are all classes.
        of_wrong = log_total * LN_2 - half * tl.log(reference)
        lse = tl.where(power > float("-inf"), lse + power * LN_2, of_wrong) + tl.load(PRIOR_TOP)
    weight = used.to(tl.float32)
    if WEIGHTED:
        weight = tl.where(used, tl.load(WEIGHT + target, mask=used, other=0.0), 0.0)
    scale = tl.load(SCALE + i, mask=here, other=0.0)
    tau = sparse * weight
    # The target's mass less its probability, T_c - tau p_c. 1 - p_c is known without a subtraction.
    pull = tau * wrong
    share_of = 1.0 / tl.where(total > 0, total, 1.0)  # a single class has no wrong ones
    dexponent = 0.5 * scale * tau * wrong * (ratio - dot * share_of) * LN_2
    loss = tau * loss
    if SMOOTHED:
        share_c, share_sum = tl.load(SHARE + target, mask=used, other=0.0), tl.load(SHARE_SUM)
        # The sums contain the target's distance as it was before a hit was raised to the floor.
        before = tl.maximum(s, tiny) + softening
        logs = share_log + share_hits * tl.log2(lifted / before)
        logs = (logs + (share_sum - share_c) * tl.log2(before / t)) * LN_2
        dense = tl.where(used, share_sum, 0.0)
        if WITH_PRIOR:
            costs = share_sum * power * LN_2 - tl.load(PRIOR_SHARE)
            loss += tl.where(used, tl.where(power > float("-inf"), costs, float("inf")), 0.0)
        loss += tl.where(used, half * logs + share_sum * softplus(gap), 0.0)
        pull += share_c - dense * (1.0 - wrong)
        dexponent += 0.5 * scale * (logs - dense * wrong * (dot * share_of - ratio) * LN_2)
        tau += dense
    tl.store(LOSS + i, tl.where(bad, float("nan"), tl.where(used, loss, 0.0)), mask=here)
    tl.store(LSE + i, lse, mask=here)
    tl.store(HIT + i, used & (beaten == 0), mask=here)
    tl.store(DEXPONENT + i, tl.where(used, dexponent, 0.0), mask=here)

    g = tl.where(used, scale * half * pull / t, 0.0)
    tl.store(TERMS + TERM_INVERSE * stride + i, inverse, mask=here)
    tl.store(TERMS + TERM_FLOOR * stride + i, floor, mask=here)
    factor = tl.where(used, -scale * half * tau * (wrong * share_of) * inverse, 0.0)
    if SMOOTHED:
        factor = wrong * share_of
        tl.store(TERMS + TERM_SCALE * stride + i, tl.where(used, scale * half, 0.0), mask=here)
    tl.store(TERMS + TERM_FACTOR * stride + i, factor, mask=here)
    tl.store(TERMS + TERM_TARGET_G * stride + i, g, mask=here)
    tl.store(TERMS + TERM_TAU * stride + i, tau, mask=here)
    if WANT_PRIOR:
        mass = tl.where(used, scale * tau * (wrong * share_of), 0.0)
        tl.store(TERMS + TERM_MASS * stride + i, mass, mask=here)
        tl.store(TERMS + TERM_TARGET_PULL * stride + i, tl.where(used, -scale * pull, 0.0), mask=here)
    x_norm = tl.load(X_NORM + i, mask=here, other=0.0)
    close = used & (s <= listed_near * (x_norm + tl.load(W_NORM + target, mask=used, other=0.0)))
    tl.store(SLOT + i * SLOTS, tl.where(close, target, -1).to(tl.int32), mask=here)
    tl.store(FLAG + target, tl.full([BM], 1, tl.int32), mask=close)
    far = here & (near == 0)
    tl.store(FAR + FAR_INVERSE * stride + i, tl.where(far, inverse, 1.0), mask=here)
    soft, twice = x_norm + softening, 2 * tl.load(X_FACTOR + i, mask=here, other=0.0)
    if FAST:
        soft, twice = soft * inverse, twice * inverse
    tl.store(FAR + FAR_SOFT * stride + i, tl.where(far, soft, 1.0), mask=here)
    tl.store(FAR + FAR_TWICE * stride + i, tl.where(far, twice, 0.0), mask=here)
    tl.store(FAR + FAR_FACTOR * stride + i, tl.where(far, factor, 0.0), mask=here)
    if WANT_PRIOR:
        tl.store(FAR + FAR_REFERENCE * stride + i, tl.where(far, reference, 0.0), mask=here)
        tl.store(FAR + FAR_TARGET_PULL * stride + i, tl.where(far & used, scale * half * pull, 0.0), mask=here)
    written = g.to(G_TYPE).to(tl.float32)
    tl.store(FAR + FAR_TARGET_G * stride + i, tl.where(far & (close == 0), written, 0.0), mask=here)
    # As bits, because float32 does not hold every whole number.
    bits = tl.where(far, target, -1).to(tl.int32).to(tl.float32, bitcast=True)
    tl.store(FAR + FAR_TARGET * stride + i, bits, mask=here)
