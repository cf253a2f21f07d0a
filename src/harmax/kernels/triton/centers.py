"""Step 9: the gradient of w, from the products of gradient weights and inputs."""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from harmax.kernels.triton import tiles
from harmax.kernels.triton.launch import Arguments, Launcher, programs
from harmax.kernels.triton.tables import TERM_TARGET_G, Classes, Rows


def write_dw(
    launch: Launcher,
    sum_CD: Tensor,
    dw_VD: Tensor,
    rows: Rows,
    classes: Classes,
    settings: Arguments,
    *,
    offset_D: Tensor,
    first: int,
) -> None:
    """Write dw of some classes from class `first` on, whose G^T X is `sum_CD`; `rows` are all rows."""
    launch(
        finish_columns,
        programs(len(sum_CD), tiles.ROWS),
        rows.arguments,
        classes.arguments,
        settings,
        GX=sum_CD,
        TARGET_G=rows.terms[TERM_TARGET_G.value],
        OFFSET=offset_D,
        DW=dw_VD,
        first=first,
        columns=len(sum_CD),
        BM=1024,
        BR=tiles.ROWS,
        size=(len(sum_CD),),
    )


class Listed(NamedTuple):
    """The listed pairs of all rows, and the vectors they are made of; the names are explained in `tables.py`."""

    TARGET_G: Any
    SLOT: Any
    SLOT_G: Any
    COUNT: Any
    X: Any
    W: Any
    x_stride: Any
    w_stride: Any
    rows: Any
    features: Any


@triton.jit
def _listed_of(listed, column, start, SLOTS: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr):
    """Some features of the sum of G (w - x) over the listed pairs of a class."""
    d = start + tl.arange(0, BD)
    line = tl.arange(0, BM)
    sums = tl.zeros([BD], tl.float32)
    w = tl.load(listed.W + column * listed.w_stride + d, mask=d < listed.features, other=0.0).to(tl.float32)
    for top in range(0, listed.rows, BM):
        i = top + line
        count = tl.load(listed.COUNT + i, mask=i < listed.rows, other=0)
        for slot in range(0, SLOTS):
            held = tl.load(listed.SLOT + i.to(tl.int64) * SLOTS + slot, mask=i < listed.rows, other=-1)
            mine = (held == column) & ((slot == 0) | (slot < count))
            left = tl.sum(mine.to(tl.int32))
            while left > 0:
                at = tl.min(tl.where(mine, line, BM))
                row = (top + at).to(tl.int64)
                g = tl.load(listed.SLOT_G + row * SLOTS + slot)
                if slot == 0:
                    g = tl.load(listed.TARGET_G + row)
                x = tl.load(listed.X + row * listed.x_stride + d, mask=d < listed.features, other=0.0)
                sums += g * (w - x.to(tl.float32))
                mine = mine & (line != at)
                left -= 1
    return sums


@triton.jit
def finish_columns(
    GX, COLUMN_SUM, FLAG, TARGET_G, SLOT, SLOT_G, COUNT, OFFSET, X, W, DW, x_stride, w_stride, rows, first,
    columns, features, SLOTS: tl.constexpr, BM: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dw of some classes: 2 (sum(G) w - G^T X), with the listed pairs computed exactly."""
    local = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    here, d = local < columns, tl.arange(0, BD)
    total = tl.load(COLUMN_SUM + first + local, mask=here, other=0.0)
    flag = tl.load(FLAG + first + local, mask=here, other=0)
    listed = tl.max(flag) > 0
    pairs = Listed(TARGET_G, SLOT, SLOT_G, COUNT, X, W, x_stride, w_stride, rows, features)
    for start in range(0, features, BD):
        inside = here[:, None] & (start + d < features)[None, :]
        place = W + (first + local)[:, None] * w_stride + (start + d)[None, :]
        offset = tl.load(OFFSET + start + d, mask=start + d < features, other=0.0)[None, :]
        dw = total[:, None] * (tl.load(place, mask=inside, other=0.0).to(tl.float32) - offset)
        dw -= tl.load(GX + local[:, None] * features + (start + d)[None, :], mask=inside, other=0.0)
        if listed:
            for row in range(BR):
                mine = tl.arange(0, BR) == row
                if tl.max(tl.where(mine, flag, 0)) > 0:
                    column = first + tl.program_id(0).to(tl.int64) * BR + row
                    sums = _listed_of(pairs, column, start, SLOTS, BM, BD)
                    dw += tl.where(mine[:, None], sums[None, :], 0.0)
        place = DW + (first + local)[:, None] * features + (start + d)[None, :]
        tl.store(place, (2 * dw).to(DW.dtype.element_ty), mask=inside)
