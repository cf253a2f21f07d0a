"""Distances of rows that hold a near pair, with those pairs by subtraction. Used by `statistics_near`, `weigh_near`.

Up to SLOTS of the very nearest pairs per row are listed: they stay out of G, so that their gradients are exact too. A
program looks at BM rows and returns at once if none of them has a near pair.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Pairs(NamedTuple):
    """What the distances of a block are made of; the names are explained in `tables.py`."""

    P: Any
    p_stride: Any
    X_NORM: Any
    X_FACTOR: Any
    W_NORM: Any
    W_FACTOR: Any
    X: Any
    W: Any
    x_stride: Any
    w_stride: Any
    features: Any


@triton.jit
def _exact_distance(pairs, row, column, BD: tl.constexpr):
    """|x - w|^2 of one pair by subtraction."""
    d = tl.arange(0, BD)
    sums = tl.zeros([BD], tl.float32)
    for start in range(0, pairs.features, BD):
        inside = start + d < pairs.features
        x = tl.load(pairs.X + row * pairs.x_stride + start + d, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(pairs.W + column * pairs.w_stride + start + d, mask=inside, other=0.0).to(tl.float32)
        sums += (x - w) * (x - w)
    return tl.sum(sums)


@triton.jit
def distances(pairs, row, start, first, columns, target, near, BN: tl.constexpr, BD: tl.constexpr):
    """Squared distances of BN columns of a row, near ones exact; the norms they are made of; and the classes.

    The distance is infinite for the target and beyond the last column.
    """
    here, wide = tl.arange(0, BN), tl.cast(row, tl.int64)
    j = start + here
    inside = (j < columns) & (first + j != target)
    p = tl.load(pairs.P + wide * pairs.p_stride + j, mask=inside, other=0.0).to(tl.float32)
    norms = tl.load(pairs.X_NORM + row) + tl.load(pairs.W_NORM + first + j, mask=inside, other=0.0)
    w_factor = tl.load(pairs.W_FACTOR + first + j, mask=inside, other=0.0)
    s = tl.where(inside, norms - 2 * tl.load(pairs.X_FACTOR + row) * (p * w_factor), float("inf"))
    close = inside & (s <= near * norms)
    left = tl.sum(close.to(tl.int32))
    while left > 0:
        at = tl.min(tl.where(close, here, BN))
        column = (first + start + at).to(tl.int64)
        s = tl.where(here == at, _exact_distance(pairs, wide, column, BD), s)
        close = close & (here != at)
        left -= 1
    return s, norms, first + j
