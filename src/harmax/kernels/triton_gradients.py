"""From products of gradient weights to gradients, in Triton; the words are those of `triton_passes.py`."""

import triton
import triton.language as tl


@triton.jit
def add_sums(
    ROW_SUM, COLUMN_SUM, G, p_stride, NEAR_ROW, ANY_NEAR, ROWS_OUT, COLUMNS_OUT, rows, stride, columns, blocks, groups,
    row_programs, BK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add the sums of a block's parts, as `weigh` left them, to those of its rows and of its columns.

    The first programs do rows, the others columns, with the rows that `weigh` left out.
    """
    part, here = tl.arange(0, BK), tl.arange(0, BN)
    if tl.program_id(0) < row_programs:
        i = tl.program_id(0) * BN + here
        for kind in range(2):
            sums = tl.zeros([BK, BN], tl.float32)
            for start in range(0, blocks, BK):
                block = (start + part)[:, None]
                place = ROW_SUM + (kind * blocks + block) * rows + i[None, :]
                sums += tl.load(place, mask=(block < blocks) & (i < rows)[None, :], other=0.0)
            before = tl.load(ROWS_OUT + kind * stride + i, mask=i < rows, other=0.0)
            tl.store(ROWS_OUT + kind * stride + i, before + tl.sum(sums, 0), mask=i < rows)
    else:
        j = (tl.program_id(0) - row_programs) * BN + here
        sums = tl.zeros([BK, BN], tl.float32)
        for start in range(0, groups, BK):
            group = (start + part)[:, None]
            place = COLUMN_SUM + group * columns + j[None, :]
            sums += tl.load(place, mask=(group < groups) & (j < columns)[None, :], other=0.0)
        total = tl.load(COLUMNS_OUT + j, mask=j < columns, other=0.0) + tl.sum(sums, 0)
        if tl.load(ANY_NEAR) != 0:
            line = tl.arange(0, BM)
            for top in range(0, rows, BM):
                near = tl.load(NEAR_ROW + top + line, mask=top + line < rows, other=0) != 0
                left = tl.sum(near.to(tl.int32))
                while left > 0:
                    at = tl.min(tl.where(near, line, BM))
                    place = G + (top + at).to(tl.int64) * p_stride + j
                    total += tl.load(place, mask=j < columns, other=0.0).to(tl.float32)
                    near = near & (line != at)
                    left -= 1
        tl.store(COLUMNS_OUT + j, total, mask=j < columns)


@triton.jit
def finish_rows(
    PRODUCT, ROW_SUM, TARGET, ROW, SLOT, SLOT_G, COUNT, OFFSET, CENTER, X, W, DX, x_stride, w_stride, rows, stride,
    features, SMOOTHED: tl.constexpr, G_TYPE: tl.constexpr, SLOTS: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dx of some rows: 2 (sum(G) x - G W), with the target's part and the listed pairs as they are.

    G W has rounded weights. What that changes is a sum of (g - rounded g) (y - w), for any vector y the sums are made
    to agree on. Without smoothing y is the mean of the wrong centers under these weights, near the w that count; with
    it weights have both signs and no such mean, and y is the center of all. OFFSET is what the products left out of W.
    """
    i = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    here, d = i < rows, tl.arange(0, BD)
    target_g = tl.load(ROW + 4 * stride + i, mask=here, other=0.0)
    listed = tl.load(SLOT + i * SLOTS, mask=here, other=-1) >= 0
    written = tl.where(listed, 0.0, target_g.to(G_TYPE).to(tl.float32))
    rounded = tl.load(ROW_SUM + i, mask=here, other=0.0) - written
    exact = tl.load(ROW_SUM + stride + i, mask=here, other=0.0) - written
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
        product = tl.load(PRODUCT + i[:, None] * features + (start + d)[None, :], mask=inside, other=0.0)
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


@triton.jit
def _listed_of(
    column, start, TARGET_G, SLOT, SLOT_G, COUNT, X, W, x_stride, w_stride, rows, features, SLOTS: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Some features of the sum of G (w - x) over the listed pairs of a class."""
    d = start + tl.arange(0, BD)
    line = tl.arange(0, BM)
    sums = tl.zeros([BD], tl.float32)
    w = tl.load(W + column * w_stride + d, mask=d < features, other=0.0).to(tl.float32)
    for top in range(0, rows, BM):
        i = top + line
        count = tl.load(COUNT + i, mask=i < rows, other=0)
        for slot in range(0, SLOTS):
            held = tl.load(SLOT + i.to(tl.int64) * SLOTS + slot, mask=i < rows, other=-1)
            mine = (held == column) & ((slot == 0) | (slot < count))
            left = tl.sum(mine.to(tl.int32))
            while left > 0:
                at = tl.min(tl.where(mine, line, BM))
                row = (top + at).to(tl.int64)
                g = tl.load(SLOT_G + row * SLOTS + slot)
                if slot == 0:
                    g = tl.load(TARGET_G + row)
                sums += g * (w - tl.load(X + row * x_stride + d, mask=d < features, other=0.0).to(tl.float32))
                mine = mine & (line != at)
                left -= 1
    return sums


@triton.jit
def finish_columns(
    PRODUCT, COLUMN_SUM, FLAG, TARGET_G, SLOT, SLOT_G, COUNT, OFFSET, X, W, DW, x_stride, w_stride, rows, first,
    columns, features, SLOTS: tl.constexpr, BM: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dw of some classes: 2 (sum(G) w - G^T X), with the listed pairs as they are."""
    local = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    here, d = local < columns, tl.arange(0, BD)
    total = tl.load(COLUMN_SUM + first + local, mask=here, other=0.0)
    flag = tl.load(FLAG + first + local, mask=here, other=0)
    listed = tl.max(flag) > 0
    for start in range(0, features, BD):
        inside = here[:, None] & (start + d < features)[None, :]
        place = W + (first + local)[:, None] * w_stride + (start + d)[None, :]
        offset = tl.load(OFFSET + start + d, mask=start + d < features, other=0.0)[None, :]
        dw = total[:, None] * (tl.load(place, mask=inside, other=0.0).to(tl.float32) - offset)
        dw -= tl.load(PRODUCT + local[:, None] * features + (start + d)[None, :], mask=inside, other=0.0)
        if listed:
            for row in range(BR):
                mine = tl.arange(0, BR) == row
                if tl.max(tl.where(mine, flag, 0)) > 0:
                    column = first + tl.program_id(0).to(tl.int64) * BR + row
                    sums = _listed_of(
                        column, start, TARGET_G, SLOT, SLOT_G, COUNT, X, W, x_stride, w_stride, rows, features, SLOTS,
                        BM, BD,
                    )  # fmt: skip
                    dw += tl.where(mine[:, None], sums[None, :], 0.0)
        place = DW + (first + local)[:, None] * features + (start + d)[None, :]
        tl.store(place, (2 * dw).to(DW.dtype.element_ty), mask=inside)


@triton.jit
def scale_in_place(V, FACTOR, size, BN: tl.constexpr):
    """Multiply by a scalar on the device, unless it is 1."""
    factor = tl.load(FACTOR)
    if factor != 1.0:
        i = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
        v = tl.load(V + i, mask=i < size)
        tl.store(V + i, (v.to(tl.float32) * factor).to(V.dtype.element_ty), mask=i < size)
