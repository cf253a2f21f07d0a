"""Functions that several kernels share."""

import triton
import triton.language as tl
from triton.language.extra import libdevice

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
MOST_STRETCH = tl.constexpr(60 * 1.4426950408889634)


@triton.jit
def log2(x, FAST: tl.constexpr):
    """log2(x). FAST takes the hardware's: an error of 1e-7, and one instruction instead of fourteen."""
    if FAST:
        return libdevice.fast_log2f(x)
    return tl.log2(x)


@triton.jit
def rebase(least, now, half, FAST: tl.constexpr):
    """Move sums to a smaller reference: 1 / new, log2(old / new), and the factor for the sums."""
    inverse = 1.0 / tl.where(now < float("inf"), now, 1.0)
    # Exactly 0 if nothing moved: otherwise a rounding would be multiplied in at every tile.
    moved = tl.where((now < least) & (least < float("inf")), log2(least * inverse, FAST), 0.0)
    return inverse, moved, tl.exp2(-half * moved)


@triton.jit
def log2_stretch(power, half):
    """log2 of a class's factor on t, from its weight 2^power: h log2(factor) = -power. The factor ends at e^60."""
    return tl.minimum(-power / half, MOST_STRETCH, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def stretch(power, half):
    """The factor on t of a class whose weight is 2^power. It is infinite for a class without weight."""
    return tl.where(power == float("-inf"), float("inf"), tl.exp2(log2_stretch(power, half)))


@triton.jit
def _log1p(x):
    """log(1 + x), exact for small x: the rounding of 1 + x is divided out."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / tl.where(y == 1.0, 1.0, y - 1.0)))


@triton.jit
def softplus(x):
    """log(1 + exp(x))."""
    return tl.maximum(x, 0.0) + _log1p(tl.exp(-tl.abs(x)))


@triton.jit
def rounded(x, LIKE, FAST: tl.constexpr):
    """x in float32, rounded as LIKE stores it. Dekker's split, because conversions are as slow as logarithms."""
    if LIKE.dtype.element_ty == tl.bfloat16:
        # A product fused with the difference would give x back.
        c = libdevice.mul_rn(x, 65537.0) if FAST else x * 65537.0
        return c - (c - x)
    return x
