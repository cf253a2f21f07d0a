"""The arithmetic behind the Triton implementation: products by cuBLAS, and what `triton_passes.py` (with
`triton_near.py`) does between them and `triton_gradients.py` after.

Half-precision inputs are multiplied as float16, scaled row by row, and summed in float32: a bfloat16 fits in whole, and
the product keeps eight times the precision that bfloat16 logits have. Gradient weights are bfloat16, for its range.
float32 inputs are multiplied in float32.

Shape suffixes: B rows, V classes, D features, R rows of a block, C classes of a block.
"""

import math
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from harmax.kernels import triton_gradients as gradients
from harmax.kernels import triton_near as near
from harmax.kernels import triton_passes as passes
from harmax.kernels.eager import Problem, absolute_floor, hit_floor
from harmax.kernels.fused import Block
from harmax.kernels.sweep import Result, Wanted
from harmax.kernels.triton import dw_columns, pitch
from harmax.kernels.triton_passes import SLOTS

NEAR = {torch.float32: 0.05, torch.float16: 0.25}
"""A pair is near when s <= NEAR (|x|^2 + |w|^2): above it a product of that dtype is precise enough."""

LISTED_NEAR = {torch.float32: 0.05, torch.float16: 1e-4}
"""The same for pairs whose gradient stays out of the products: float32 sums of halves, which are exact, bear more."""

TILE: dict[str, Any] = {"BM": 16, "BN": 256, "num_warps": 8}
"""Of the passes over products: a warp has whole stretches of rows, so that sums along them stay inside it."""

NEAR_COLUMNS = 1024
"""Of the passes over a row with near pairs, at a time."""

ROWS = 4
"""Vectors at a time where whole ones are read."""

PROGRAMS = 2048
"""So many fill a GPU."""

FLOOR, TINY = hit_floor(torch.float32), absolute_floor(torch.float32)


class Operand(NamedTuple):
    """A matrix as it is multiplied, with the squared norms of its rows and what undoes their scale."""

    matrix: Tensor
    norm: Tensor
    factor: Tensor


class Rows(NamedTuple):
    """What is known of the rows of a block: the passes' tables, in their words."""

    place: slice
    x_RD: Tensor
    target_R: Tensor
    distance_R: Tensor
    """To the target, exact."""
    state: Tensor
    numbers: Tensor
    far: Tensor
    near_R: Tensor
    any_near: Tensor
    slot: Tensor
    slot_g: Tensor
    count_R: Tensor
    flag_V: Tensor
    sums: Tensor
    """Of each row's gradient weights, as rounded and before, (2, R)."""

    def __len__(self) -> int:
        return self.place.stop - self.place.start


def center_of(w_VD: Tensor) -> Tensor:
    """Return the mean of some centres where it dominates their spread, else 0: distances keep, cancellation goes."""
    sample = w_VD[:: max(1, len(w_VD) // 2048)].float()
    mean_D = sample.mean(0)
    spread = (sample - mean_D).square().sum(1).mean()
    return torch.where(mean_D.square().sum() > spread, mean_D, 0.0)


def multiply(a: Tensor, b: Tensor, out: Tensor, *, add: bool = False) -> None:
    """``a @ b`` into `out`, or added to it, summed in float32."""
    if not a.is_cuda:  # only ever under Triton's interpreter, where halves would be summed in halves
        product = a.float() @ b.float()
        out.add_(product) if add else out.copy_(product)
    elif a.dtype == out.dtype:
        torch.addmm(out, a, b, out=out) if add else torch.mm(a, b, out=out)
    else:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out) if add else torch.mm(a, b, out_dtype=out.dtype, out=out)


def programs(count: int, size: int) -> tuple[int]:
    """Return the grid in which programs take `size` of `count` things each."""
    return (-(-count // size),)


def scale_in_place(gradient: Tensor, factor: Tensor) -> Tensor:
    """Multiply by a scalar that only the device knows; where that is 1, as it mostly is, nothing is read or written."""
    if gradient.numel():
        gradients.scale_in_place[programs(gradient.numel(), 4096)](gradient, factor, gradient.numel(), BN=4096)
    return gradient


def pieces(count: int, size: int) -> list[slice]:
    """Cut a range into slices.

    >>> pieces(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


class Engine:
    """One computation of a loss and its gradients. `scale_B` is the upstream gradient of each row's loss."""

    def __init__(self, problem: Problem, wanted: Wanted, scale_B: Tensor, block: Block) -> None:
        self.problem, self.wanted, self.scale_B = problem, wanted, scale_B
        # A row must lie in one piece; the matrix may be a view.
        self.x_BD, self.w_VD = (v if v.stride(1) == 1 else v.contiguous() for v in (problem.x_BD, problem.w_VD))
        (self.tokens, self.features), self.classes = self.x_BD.shape, len(self.w_VD)
        self.rows = pieces(self.tokens, max(1, min(block.rows, self.tokens)))
        self.columns = pieces(self.classes, max(1, min(block.columns, self.classes)))
        halves = self.x_BD.dtype != torch.float32
        self.product_dtype = torch.float16 if halves else torch.float32
        self.weight_dtype = torch.bfloat16 if halves else torch.float32
        self.near, self.listed_near = NEAR[self.product_dtype], LISTED_NEAR[self.product_dtype]
        self.width = min(1024, 1 << max(4, (self.features - 1).bit_length()))

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32, fill: float | None = None) -> Tensor:
        return self.x_BD.new_empty(shape, dtype=dtype) if fill is None else self.x_BD.new_full(shape, fill, dtype=dtype)

    def run(self) -> Result:
        """Compute everything that is wanted."""
        self.loss_B, self.lse_B, self.dexponent_B = (self._new(self.tokens) for _ in range(3))
        self.hit_B = self._new(self.tokens, dtype=torch.bool)
        self.dx_BD = self.x_BD.new_empty(self.x_BD.shape if self.wanted.x else 0)
        self.dw_VD = self.w_VD.new_empty(self.w_VD.shape if self.wanted.w else 0)
        if self.tokens:
            self._read_settings()
            self._prepare()
            for place in self.rows:
                self._do_rows(place)
        if self.wanted.w and len(self.rows) > 1:
            self._write_dw(self.sum_VD, 0)
        elif not self.tokens:
            self.dw_VD.zero_()
        return Result(self.loss_B, self.lse_B, self.hit_B, self.dx_BD, self.dw_VD, self.dexponent_B.sum())

    def _read_settings(self) -> None:
        problem = self.problem
        assert isinstance(problem.exponent, Tensor)
        self.exponent = problem.exponent.float()
        self.class_weight = None if problem.weight_V is None else problem.weight_V.float().contiguous()
        self.share_V, self.share_sum = None, None
        if problem.label_smoothing:
            weight_V = self._new(self.classes, fill=1.0) if self.class_weight is None else self.class_weight
            self.share_V = weight_V * (problem.label_smoothing / self.classes)
            self.share_sum = self.share_V.sum()
        self.smoothed = {"SMOOTHED": self.share_V is not None}
        # Triton's interpreter knows no hardware.
        self.fast = {"FAST": self.product_dtype == torch.float16 and self.x_BD.is_cuda}

    def _prepare(self) -> None:
        """Make the operands, in the memory of the gradients: a part of these is written when its operand was used last.

        Rows are done with once their own dx is known; classes when theirs is, or, where several blocks of rows add to
        it in float32, at the very end.
        """
        center_D = center_of(self.w_VD)
        halves = self.product_dtype == torch.float16

        def spare(gradient: Tensor) -> Tensor | None:
            return gradient if halves and gradient.numel() and gradient.element_size() == 2 else None

        self.w = self._operand(self.w_VD, center_D, spare(self.dw_VD))
        self.x = self._operand(self.x_BD, center_D, spare(self.dx_BD))
        # What the weights are multiplied by. What a bfloat16 holds exactly needs no centre taken out: all that cancels
        # then are float32 sums of exact terms.
        exact = all(v.dtype == self.weight_dtype for v in (self.x_BD, self.w_VD)) and halves
        self.center_D, self.offset_D = center_D, torch.zeros_like(center_D) if exact else center_D
        self.x_factor, self.w_factor = self.x_BD, self.w_VD
        if not exact:
            self.x_factor, self.w_factor = (
                (v - center_D).to(self.weight_dtype) if halves else operand.matrix
                for v, operand in ((self.x_BD, self.x), (self.w_VD, self.w))
            )
        largest = (self.rows[0].stop, self.columns[0].stop)
        self.buffer = self._new(largest[0] * pitch(largest[1]), dtype=self.product_dtype)
        self.column_sum_V = self._new(self.classes, fill=0.0)
        if self.wanted.w and len(self.rows) > 1:
            self.sum_VD = self._new(self.classes, self.features)

    def _operand(self, v: Tensor, center_D: Tensor, out: Tensor | None) -> Operand:
        copy = self._new(*v.shape, dtype=self.product_dtype) if out is None else out.view(self.product_dtype)
        norm, factor = self._new(len(v)), self._new(len(v))
        passes.prepare[programs(len(v), ROWS)](
            v, center_D, copy, norm, factor, v.stride(0), len(v), self.features,
            SCALED=self.product_dtype == torch.float16, BR=ROWS, BD=self.width,
        )  # fmt: skip
        return Operand(copy, norm, factor)

    def _products(self, rows: slice, columns: slice) -> Tensor:
        count, width = rows.stop - rows.start, columns.stop - columns.start
        product_RC = self.buffer[: count * pitch(width)].view(count, pitch(width))[:, :width]
        multiply(self.x.matrix[rows], self.w.matrix[columns].T, product_RC)
        return product_RC

    def _do_rows(self, place: slice) -> None:
        """Compute the losses of a block of rows, and its part of the gradients."""
        rows = self._look_at(place)
        for columns in self.columns:
            product_RC = self._products(place, columns)
            self._gather_statistics(rows, columns, product_RC)
        self._finish_losses(rows)
        if not (self.wanted.x or self.wanted.w):
            return
        sum_RD = self._borrow(len(rows), self.features)
        for number, columns in enumerate(self.columns):
            if len(self.columns) > 1:
                product_RC = self._products(place, columns)
            weight_RC = self._weigh(rows, columns, product_RC)
            if self.wanted.x:
                multiply(weight_RC, self.w_factor[columns], sum_RD, add=number > 0)
            if self.wanted.x and number == len(self.columns) - 1:
                self._write_dx(rows, sum_RD)
            if self.wanted.w:
                self._add_dw(rows, columns, weight_RC)

    def _borrow(self, *shape: int) -> Tensor:
        """Return float32 memory for a while: that of dw, where it is free between the product and its own writing."""
        free = self.dw_VD.view(torch.uint8).flatten() if len(self.rows) == len(self.columns) == 1 else self.dw_VD[:0]
        size = 4 * math.prod(shape)
        return free[:size].view(torch.float32).view(shape) if size <= free.nbytes else self._new(*shape)

    def _write_dx(self, rows: Rows, sum_RD: Tensor) -> None:
        place = rows.place
        gradients.finish_rows[programs(len(rows), ROWS)](
            sum_RD, rows.sums, rows.target_R, rows.numbers, rows.slot, rows.slot_g, rows.count_R, self.offset_D,
            self.center_D, rows.x_RD, self.w_VD, self.dx_BD[place], rows.x_RD.stride(0), self.w_VD.stride(0),
            len(rows), self.features, G_TYPE=tl.bfloat16 if self.weight_dtype == torch.bfloat16 else tl.float32,
            SLOTS=SLOTS, BR=ROWS, BD=self.width, **self.smoothed,
        )  # fmt: skip

    def _look_at(self, place: slice) -> Rows:
        count = place.stop - place.start
        x_RD, target_R = self.x_BD[place], self.problem.target[place].contiguous()
        state = self._new(7, count, fill=0.0)
        state[0].fill_(torch.inf)
        rows = Rows(
            place=place,
            x_RD=x_RD,
            target_R=target_R,
            distance_R=self._new(count),
            state=state,
            numbers=self._new(6, count),
            far=self._new(6, count),
            near_R=self._new(count, dtype=torch.int32, fill=0),
            any_near=self._new(1, dtype=torch.int32, fill=0),
            slot=self._new(count, SLOTS, dtype=torch.int32, fill=-1),
            slot_g=self._new(count, SLOTS, fill=0.0),
            count_R=self._new(count, dtype=torch.int32, fill=1),
            flag_V=self._new(self.classes, dtype=torch.int32, fill=0),
            sums=self._new(2, count, fill=0.0),
        )
        passes.target_distance[programs(count, ROWS)](
            x_RD, self.w_VD, target_R, rows.distance_R, x_RD.stride(0), self.w_VD.stride(0), count, self.features,
            self.problem.ignore_index, self.classes, BR=ROWS, BD=self.width,
        )  # fmt: skip
        return rows

    def _products_and_norms(self, rows: Rows, product_RC: Tensor) -> tuple[Any, ...]:
        """Name what every pass reads first."""
        place = rows.place
        return (
            product_RC.stride(0), self.x.norm[place], self.x.factor[place], self.w.norm, self.w.factor, self.share_V,
            rows.target_R,
        )  # fmt: skip

    def _vectors(self, rows: Rows) -> tuple[Any, ...]:
        return rows.x_RD, self.w_VD, rows.x_RD.stride(0), self.w_VD.stride(0)

    def _gather_statistics(self, rows: Rows, columns: slice, product_RC: Tensor) -> None:
        count, width = product_RC.shape
        known = (product_RC, *self._products_and_norms(rows, product_RC), rows.distance_R, rows.state, rows.near_R)
        passes.statistics[programs(count, TILE["BM"])](
            *known, rows.any_near, count, width, columns.start, self.problem.ignore_index, self.exponent,
            self.problem.softening, self.near, TINY, DOT=self.wanted.exponent, **self.smoothed, **self.fast, **TILE,
        )  # fmt: skip
        near.statistics_near[(count,)](
            *known, rows.any_near, rows.slot, rows.count_R, rows.flag_V, *self._vectors(rows), count, width,
            columns.start, self.features, self.problem.ignore_index, self.exponent, self.problem.softening, self.near,
            self.listed_near, TINY, DOT=self.wanted.exponent, SLOTS=SLOTS, BN=NEAR_COLUMNS, BD=self.width,
            **self.smoothed,
        )  # fmt: skip

    def _finish_losses(self, rows: Rows) -> None:
        place = rows.place
        passes.finish[programs(len(rows), 128)](
            rows.state, rows.target_R, rows.distance_R, self.x.norm[place], self.x.factor[place], self.w.norm,
            self.class_weight, self.share_V, self.scale_B[place].contiguous(), self.exponent, self.loss_B[place],
            self.lse_B[place], self.hit_B[place], self.dexponent_B[place], rows.numbers, rows.far, rows.near_R,
            rows.slot, rows.flag_V, self.share_sum, len(rows), self.classes, self.problem.ignore_index, self.problem.softening,
            self.listed_near, FLOOR, TINY, 1 - self.problem.label_smoothing,
            WEIGHTED=self.class_weight is not None, SLOTS=SLOTS, BM=128, **self.smoothed, **self.fast,
        )  # fmt: skip

    def _weigh(self, rows: Rows, columns: slice, product_RC: Tensor) -> Tensor:
        """Write gradient weights over a block of products; add to the sums of its rows and columns."""
        count, width = product_RC.shape
        weight_RC = product_RC.view(self.weight_dtype)
        blocks = -(-width // TILE["BN"])
        # Enough programs to fill the device, each with rows enough to pay for its columns' data.
        groups = max(1, min(-(-count // TILE["BM"]), PROGRAMS // blocks))
        group_rows = -(-count // (groups * TILE["BM"])) * TILE["BM"]
        groups = -(-count // group_rows)
        # Read before the memory is borrowed again.
        row_sums, column_sums = self._borrow(2, blocks, count), self._new(groups, width)
        passes.weigh[(blocks, groups)](
            product_RC, weight_RC, product_RC.stride(0), self.w.norm, self.w.factor, self.share_V, rows.numbers,
            rows.far, rows.near_R, row_sums, column_sums, count, width, columns.start, group_rows, self.exponent,
            **self.smoothed, **self.fast, **TILE,
        )  # fmt: skip
        near.weigh_near[(count,)](
            product_RC, weight_RC, *self._products_and_norms(rows, product_RC), rows.numbers, rows.near_R,
            rows.any_near, rows.slot, rows.slot_g, rows.count_R, rows.sums, *self._vectors(rows), count, width,
            columns.start, self.features, self.problem.ignore_index, self.exponent, self.problem.softening, self.near,
            SLOTS=SLOTS, BN=NEAR_COLUMNS, BD=self.width, **self.smoothed,
        )  # fmt: skip
        passes.add_row_sums[programs(count, 128)](row_sums, rows.sums, count, blocks, BM=128)
        near.add_column_sums[programs(width, 256)](
            column_sums, weight_RC, weight_RC.stride(0), rows.near_R, rows.any_near, self.column_sum_V, count, width,
            columns.start, groups, BM=1024, BN=256,
        )  # fmt: skip
        return weight_RC

    def _add_dw(self, rows: Rows, columns: slice, weight_RC: Tensor) -> None:
        """Add a block's part to the gradient of its classes; where no other rows come, that is all of it."""
        x_RD = self.x_factor[rows.place]
        if len(self.rows) > 1:
            multiply(weight_RC.T, x_RD, self.sum_VD[columns], add=rows.place.start > 0)
            self._add_listed(self.sum_VD[columns], rows, columns.start)
            return
        for part in pieces(columns.stop - columns.start, dw_columns(self.features)):
            sum_CD = self._new(part.stop - part.start, self.features)
            multiply(weight_RC[:, part].T, x_RD, sum_CD)
            self._add_listed(sum_CD, rows, columns.start + part.start)
            self._write_dw(sum_CD, columns.start + part.start)

    def _add_listed(self, sum_CD: Tensor, rows: Rows, first: int) -> None:
        gradients.add_listed[programs(len(sum_CD), 32)](
            sum_CD, rows.flag_V, rows.numbers[4], rows.slot, rows.slot_g, rows.count_R, rows.x_RD, self.w_VD,
            rows.x_RD.stride(0), self.w_VD.stride(0), len(rows), first, len(sum_CD), self.features,
            SLOTS=SLOTS, BC=32, BM=1024, BD=self.width,
        )  # fmt: skip

    def _write_dw(self, sum_CD: Tensor, first: int) -> None:
        gradients.finish_columns[programs(len(sum_CD), ROWS)](
            sum_CD, self.column_sum_V, self.offset_D, self.w_VD, self.dw_VD, self.w_VD.stride(0), first, len(sum_CD),
            self.features, BR=ROWS, BD=self.width,
        )  # fmt: skip
