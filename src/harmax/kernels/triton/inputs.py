"""Step 8: the gradient of x, from the products of gradient weights and centers."""

import triton
import triton.language as tl
from torch import Tensor

from harmax.kernels.triton import tiles
from harmax.kernels.triton.launch import Arguments, Launcher, programs
from harmax.kernels.triton.tables import SUM_EXACT, SUM_ROUNDED, TERM_TARGET_G, Classes, Rows


def write_dx(
    launch: Launcher,
    sum_RD: Tensor,
    dx_RD: Tensor,
    rows: Rows,
    classes: Classes,
    settings: Arguments,
    *,
    offset_D: Tensor,
    center_D: Tensor,
) -> None:
    """Write dx of some rows, whose G W is `sum_RD`."""
    launch(
        finish_rows,
        programs(len(rows), tiles.ROWS),
        rows.arguments,
        classes.arguments,
        settings,
        GW=sum_RD,
        DX=dx_RD,
        OFFSET=offset_D,
        CENTER=center_D,
        BR=tiles.ROWS,
        size=(len(rows),),
    )


@triton.jit
def finish_rows(
    GW, SUMS, TARGET, TERMS, SLOT, SLOT_G, COUNT, OFFSET, CENTER, X, W, DX, x_stride, w_stride, rows, stride,
    features, SMOOTHED: tl.constexpr, G_TYPE: tl.constexpr, SLOTS: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dx of some rows: 2 (sum(G) x - G W), with the target's part and the listed pairs computed exactly.

    G W has rounded weights, while the sums are those before rounding. The difference is a sum of (g - rounded g)
    (y - w), with a vector y that can be chosen. Without smoothing y is the mean of the wrong centers under these
    weights, near the centers that matter. With smoothing the weights have both signs and no such mean; then y is the
    common CENTER. OFFSET was subtracted from W in the products.
    """
    i = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    here, d = i < rows, tl.arange(0, BD)
    target_g = tl.load(TERMS + TERM_TARGET_G * stride + i, mask=here, other=0.0)
    listed = tl.load(SLOT + i * SLOTS, mask=here, other=-1) >= 0
    written = tl.where(listed, 0.0, target_g.to(G_TYPE).to(tl.float32))
    rounded = tl.load(SUMS + SUM_ROUNDED * stride + i, mask=here, other=0.0) - written
    exact = tl.load(SUMS + SUM_EXACT * stride + i, mask=here, other=0.0) - written
    ratio = tl.where(rounded != 0, exact / tl.where(rounded != 0, rounded, 1.0), 1.0)
    pulled = here & (target_g != 0)
    target = tl.load(TARGET + i, mask=pulled, other=0)
    count = tl.load(COUNT + i, mask=here, other=1)
    most = tl.max(count)
    for start in range(0, features, BD):
        within = (start + d < features)[None, :]
        inside = here[:, None] & within
        offset = tl.load(OFFSET + start + d, mask=start + d < features, other=0.0)[None, :]
        x = tl.load(X + i[:, None] * x_stride + (start + d)[None, :], mask=inside, other=0.0).to(tl.float32)
        place = W + target[:, None] * w_stride + (start + d)[None, :]
        w = tl.load(place, mask=pulled[:, None] & within, other=0.0).to(tl.float32)
        product = tl.load(GW + i[:, None] * features + (start + d)[None, :], mask=inside, other=0.0)
        factor = (w - offset).to(G_TYPE).to(tl.float32)  # as it was multiplied
        product -= tl.where(pulled[:, None], written[:, None] * factor, 0.0)
        if SMOOTHED:
            center = tl.load(CENTER + start + d, mask=start + d < features, other=0.0)[None, :] - offset
            dx = exact[:, None] * (x - offset) - product - (exact - rounded)[:, None] * center
        else:
            dx = exact[:, None] * (x - offset) - ratio[:, None] * product
        dx += tl.where(pulled[:, None], target_g[:, None] * (x - w), 0.0)
        for slot in range(1, SLOTS):
            if slot < most:
                used = here & (slot < count)
                column = tl.load(SLOT + i * SLOTS + slot, mask=used, other=0).to(tl.int64)
                g = tl.load(SLOT_G + i * SLOTS + slot, mask=used, other=0.0)
                place = W + column[:, None] * w_stride + (start + d)[None, :]
                w = tl.load(place, mask=used[:, None] & within, other=0.0).to(tl.float32)
                dx += tl.where(used[:, None], g[:, None] * (x - w), 0.0)
        place = DX + i[:, None] * features + (start + d)[None, :]
        tl.store(place, (2 * dx).to(DX.dtype.element_ty), mask=inside)
