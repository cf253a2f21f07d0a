"""Step 7: sums of the gradient weights along rows and columns, from the parts that `weigh` left."""

import triton
import triton.language as tl
from torch import Tensor

from harmax.kernels.triton.launch import Launcher
from harmax.kernels.triton.tables import SUM_SIZE, Classes, Rows
from harmax.kernels.triton.weigh import Parts

BLOCK = 128


def add_parts(launch: Launcher, parts: Parts, weight_RC: Tensor, rows: Rows, classes: Classes, *, first: int) -> None:
    """Add the parts of a block, whose first column is class `first`, to the sums of its rows and classes."""
    (_, blocks, count), (groups, columns) = parts.row_parts.shape, parts.column_parts.shape
    dprior_V, near_parts = classes.dprior_V, parts.near_parts
    row_programs = -(-count // BLOCK)
    launch(
        add_sums,
        (row_programs - (-columns // BLOCK),),
        rows.arguments,
        classes.arguments,
        ROW_PARTS=parts.row_parts,
        COLUMN_PARTS=parts.column_parts,
        G=weight_RC,
        p_stride=weight_RC.stride(0),
        COLUMN_SUM=classes.column_sum_V[first:],
        PRIOR_PARTS=parts.prior_parts,
        NEAR_PARTS=near_parts,
        PRIOR_SUM=None if dprior_V is None else dprior_V[first:],
        near_groups=None if near_parts is None else len(near_parts),
        columns=columns,
        blocks=blocks,
        groups=groups,
        row_programs=row_programs,
        BK=16,
        BM=1024,
        BN=BLOCK,
        size=weight_RC.shape,
    )


@triton.jit
def _prior_sums(PARTS, groups, part, j, columns, BK: tl.constexpr, BN: tl.constexpr):
    sums = tl.zeros([BK, BN], tl.float32)
    for start in range(0, groups, BK):
        group = (start + part)[:, None]
        place = PARTS + group * columns + j[None, :]
        sums += tl.load(place, mask=(group < groups) & (j < columns)[None, :], other=0.0)
    return sums


@triton.jit
def add_sums(
    ROW_PARTS, COLUMN_PARTS, PRIOR_PARTS, NEAR_PARTS, G, p_stride, NEAR_ROW, ANY_NEAR, SUMS, COLUMN_SUM, PRIOR_SUM,
    rows, stride, columns, blocks, groups, near_groups, row_programs, WANT_PRIOR: tl.constexpr, BK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add up parts. The first programs do rows. The others do columns, with the rows that `weigh` left out."""
    part, here = tl.arange(0, BK), tl.arange(0, BN)
    if tl.program_id(0) < row_programs:
        i = tl.program_id(0) * BN + here
        for kind in range(SUM_SIZE):
            sums = tl.zeros([BK, BN], tl.float32)
            for start in range(0, blocks, BK):
                block = (start + part)[:, None]
                place = ROW_PARTS + (kind * blocks + block) * rows + i[None, :]
                sums += tl.load(place, mask=(block < blocks) & (i < rows)[None, :], other=0.0)
            before = tl.load(SUMS + kind * stride + i, mask=i < rows, other=0.0)
            tl.store(SUMS + kind * stride + i, before + tl.sum(sums, 0), mask=i < rows)
    else:
        j = (tl.program_id(0) - row_programs) * BN + here
        sums = tl.zeros([BK, BN], tl.float32)
        for start in range(0, groups, BK):
            group = (start + part)[:, None]
            place = COLUMN_PARTS + group * columns + j[None, :]
            sums += tl.load(place, mask=(group < groups) & (j < columns)[None, :], other=0.0)
        total = tl.load(COLUMN_SUM + j, mask=j < columns, other=0.0) + tl.sum(sums, 0)
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
        tl.store(COLUMN_SUM + j, total, mask=j < columns)
        if WANT_PRIOR:
            total = tl.load(PRIOR_SUM + j, mask=j < columns, other=0.0)
            sums = _prior_sums(PRIOR_PARTS, groups, part, j, columns, BK, BN)
            if tl.load(ANY_NEAR) != 0:
                sums += _prior_sums(NEAR_PARTS, near_groups, part, j, columns, BK, BN)
            total += tl.sum(sums, 0)
            tl.store(PRIOR_SUM + j, total, mask=j < columns)
