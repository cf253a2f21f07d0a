"""The arithmetic behind the Triton implementation: products by cuBLAS, and what `triton_passes.py` (with
`triton_near.py`) does between them and `triton_gradients.py` after.

Half-precision inputs are multiplied as float16, scaled row by row, and summed in float32: a bfloat16 fits in whole, and
the product keeps eight times the precision that bfloat16 logits have. Gradient weights are bfloat16, for its range.
float32 inputs are multiplied in float32.

Shape suffixes: B rows, V classes, D features, R rows of a block, C classes of a block.
"""

import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton.language as tl
from torch import Tensor

from harmax.kernels import triton_gradients as gradients
from harmax.kernels import triton_near as near
from harmax.kernels import triton_passes as passes
from harmax.kernels.eager import Problem, absolute_floor, hit_floor
from harmax.kernels.fused import Block
from harmax.kernels.sweep import Result, Wanted
from harmax.kernels.triton import DW_COLUMNS, pitch
from harmax.kernels.triton_launch import Launcher
from harmax.kernels.triton_passes import SLOTS

NEAR = {torch.float32: 0.05, torch.float16: 0.25}
"""A pair is near when s <= NEAR (|x|^2 + |w|^2): above it a product of that dtype is precise enough."""

LISTED_NEAR = 1e-4
"""The same for pairs whose gradient stays out of the products, where these have exact factors and float32 sums."""

TILE: dict[str, Any] = {"BM": 8, "BN": 128, "num_warps": 2}
"""Of the passes over products: a warp has whole stretches of rows, so that sums along them stay inside it."""

NEAR_TILE = {"BM": 16, "BN": 1024}
"""Rows of a program that looks for near ones, and columns of one that it found at a time."""

ROWS = 4
"""Vectors at a time where whole ones are read."""

PROGRAMS = 2048
"""So many fill a GPU."""

CENTER_SAMPLE = 128
"""Centers whose mean may be subtracted."""

FLOOR, TINY = hit_floor(torch.float32), absolute_floor(torch.float32)


class Operand(NamedTuple):
    """A matrix as it is multiplied, with the squared norms of its rows and what undoes their scale."""

    matrix: Tensor
    norm: Tensor
    factor: Tensor


class Rows(NamedTuple):
    """What is known of rows, all of them or a block of views into that: the passes' tables, in their words."""

    x_RD: Tensor
    norm_R: Tensor
    """Of x as it is multiplied, squared."""
    factor_R: Tensor
    target_R: Tensor
    scale_R: Tensor
    distance_R: Tensor
    """To the target, exact."""
    state: Tensor
    near: Tensor
    numbers: Tensor
    far: Tensor
    sums: Tensor
    """Of each row's gradient weights, as rounded and before, (2, R)."""
    slot: Tensor
    slot_g: Tensor
    count_R: Tensor
    loss_R: Tensor
    logsumexp_R: Tensor
    hit_R: Tensor
    dexponent_R: Tensor

    def __len__(self) -> int:
        return len(self.x_RD)

    @property
    def stride(self) -> int:
        """From one number of a row to its next, in tables that have the rows last."""
        return self.sums.stride(0)

    def block(self, place: slice) -> "Rows":
        """Return some of the rows."""
        if place == slice(0, len(self)):
            return self
        tables = ("state", "near", "numbers", "far", "sums")
        return Rows(**{k: v[..., place] if k in tables else v[place] for k, v in self._asdict().items()})


def is_compiled(v: Tensor) -> bool:
    """Whether kernels for this tensor are compiled; else they are interpreted."""
    return v.is_cuda


def multiply(a: Tensor, b: Tensor, out: Tensor, *, add: bool = False) -> None:
    """``a @ b`` into `out`, or added to it, summed in float32."""
    if not a.is_cuda:  # only ever under Triton's interpreter, where halves would be summed in halves
        product = a.float() @ b.float()
        out.add_(product) if add else out.copy_(product)
    elif a.dtype == out.dtype:
        torch.addmm(out, a, b, out=out) if add else torch.mm(a, b, out=out)
    else:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out) if add else torch.mm(a, b, out_dtype=out.dtype, out=out)


def eights(count: int, *by_row: Tensor) -> list[tuple[int, tuple[Tensor, ...]]]:
    """Cut matrices of so many rows where the last multiple of 8 is, with the number of rows before each part.

    cuBLAS is five times slower on what is no multiple, however aligned. Most are, and views cost time, too.
    """
    even = count // 8 * 8
    if even in (0, count):
        return [(0, by_row)]
    return [(0, tuple(v[:even] for v in by_row)), (even, tuple(v[even:] for v in by_row))]


def programs(count: int, size: int) -> tuple[int]:
    """Return the grid in which programs take `size` of `count` things each."""
    return (-(-count // size),)


def scale_in_place(gradient: Tensor, factor: Tensor) -> Tensor:
    """Multiply by a scalar that only the device knows; where that is 1, as it mostly is, nothing is read or written."""
    if gradient.numel():
        shape = ("scale", gradient.dtype, gradient.numel(), gradient.data_ptr() % 16, factor.dtype)
        Launcher(shape, gradient.device)(
            gradients.scale_in_place, programs(gradient.numel(), 4096), gradient, factor, gradient.numel(), BN=4096
        )  # fmt: skip
    return gradient


def aligned(v: Tensor) -> Tensor:
    """The same numbers in one piece that begins where kernels expect it."""
    v = v.contiguous()
    return v if v.data_ptr() % 16 == 0 else v.clone()


def pieces(count: int, size: int) -> list[slice]:
    """Cut a range into slices.

    >>> pieces(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


class Engine:
    """One computation of a loss and its gradients. `scale` makes the upstream gradient of each row's loss."""

    def __init__(self, problem: Problem, wanted: Wanted, scale: Callable[[], Tensor], block: Block) -> None:
        self.problem, self.wanted, self.scale = problem, wanted, scale
        # A row must lie in one piece; the matrix may be a view.
        self.x_BD, self.w_VD = (v if v.stride(1) == 1 else v.contiguous() for v in (problem.x_BD, problem.w_VD))
        (self.tokens, self.features), self.classes = self.x_BD.shape, len(self.w_VD)
        self.rows = pieces(self.tokens, max(1, min(block.rows, self.tokens)))
        self.columns = pieces(self.classes, max(1, min(block.columns, self.classes)))
        halves = self.x_BD.dtype != torch.float32
        self.product_dtype = torch.float16 if halves else torch.float32
        self.weight_dtype, self.g_type = (torch.bfloat16, tl.bfloat16) if halves else (torch.float32, tl.float32)
        self.padded = pitch(self.classes)
        # What a bfloat16 holds exactly needs no center taken out of what weights are multiplied by, and only the very
        # nearest pairs must stay out of the products: all that cancels are float32 sums of exact terms.
        self.exact = halves and all(v.dtype == self.weight_dtype for v in (self.x_BD, self.w_VD))
        self.near = NEAR[self.product_dtype]
        self.listed_near = LISTED_NEAR if self.exact else self.near
        self.width = min(1024, 1 << max(4, (self.features - 1).bit_length()))
        self.launch = Launcher(self._shape(), self.x_BD.device)

    def _shape(self) -> Hashable:
        """Everything that compiled kernels depend on."""
        problem = self.problem
        vectors = tuple((v.shape, v.stride(), v.dtype, v.data_ptr() % 16) for v in (self.x_BD, self.w_VD))
        settings = (problem.weight_V is None, problem.label_smoothing > 0, problem.ignore_index, problem.target.dtype)
        blocks = (self.rows[0].stop if self.rows else 0, self.columns[0].stop)
        return (vectors, settings, self.wanted, *blocks, *TILE.values())

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32, fill: float | None = None) -> Tensor:
        return self.x_BD.new_empty(shape, dtype=dtype) if fill is None else self.x_BD.new_full(shape, fill, dtype=dtype)

    def run(self) -> Result:
        """Compute everything that is wanted."""
        self.dx_BD = self.x_BD.new_empty(self.x_BD.shape if self.wanted.x else 0)
        self.dw_VD = self.w_VD.new_empty(self.w_VD.shape if self.wanted.w else 0)
        if not self.tokens:
            none_B, zero = self._new(0), self._new(fill=0.0)
            return Result(none_B, none_B.clone(), none_B.bool(), self.dx_BD, self.dw_VD.zero_(), zero)
        self._prepare()
        # The device has a product to do meanwhile.
        self.all = known = self._tables()
        self.blocks = {place.start: known.block(place) for place in self.rows}
        self._begin()
        self._do_rows() if len(self.columns) == 1 else self._do_blocks()
        dexponent = known.dexponent_R.sum() if self.wanted.exponent else self._new(fill=0.0)
        return Result(known.loss_R, known.logsumexp_R, known.hit_R, self.dx_BD, self.dw_VD, dexponent)

    def _tables(self) -> Rows:
        count, first = self.tokens, self.rows[0].stop
        blocks = max(1, -(-first // TILE["BM"]))
        # Enough programs to fill the device, each with columns enough to be worth it.
        width = pitch(self.columns[0].stop)
        self.splits = max(1, min(-(-PROGRAMS // blocks), width // (4 * TILE["BN"])))
        self.span = -(-width // (self.splits * TILE["BN"])) * TILE["BN"]
        return Rows(
            x_RD=self.x_BD,
            norm_R=self.x.norm[:count],
            factor_R=self.x.factor[:count],
            target_R=aligned(self.problem.target),
            scale_R=aligned(self.scale()),
            distance_R=self._new(count),
            state=self._new(self.splits, 7, count),
            near=self._new(self.splits, count, dtype=torch.int32),
            numbers=self._new(6, count),
            far=self._new(6, count),
            sums=self._new(2, count),
            slot=self._new(count, SLOTS, dtype=torch.int32),
            slot_g=self._new(count, SLOTS),
            count_R=self._new(count, dtype=torch.int32),
            loss_R=self._new(count),
            logsumexp_R=self._new(count),
            hit_R=self._new(count, dtype=torch.bool),
            dexponent_R=self._new(count),
        )

    def _read_settings(self) -> None:
        problem = self.problem
        assert isinstance(problem.exponent, Tensor)
        self.exponent = aligned(problem.exponent.float())
        self.class_weight = None if problem.weight_V is None else aligned(problem.weight_V.float())
        self.share_V, self.share_sum = None, None
        if problem.label_smoothing:
            weight_V = self._new(self.classes, fill=1.0) if self.class_weight is None else self.class_weight
            share_V = weight_V * (problem.label_smoothing / self.classes)
            self.share_sum, self.share_V = share_V.sum(), F.pad(share_V, (0, self.padded - self.classes))
        self.smoothed = {"SMOOTHED": self.share_V is not None}
        # Triton's interpreter knows no hardware.
        self.fast = {"FAST": self.product_dtype == torch.float16 and is_compiled(self.x_BD)}

    def _prepare(self) -> None:
        """Make the operands, in the memory of the gradients: a part of these is written when its operand was used last.

        Rows are done with once their own dx is known; classes when theirs is, or, where several blocks of rows add to
        it in float32, at the very end. The first large product starts before anything that it does not need.
        """
        halves = self.product_dtype == torch.float16
        center_D = self._new(self.features)
        step = max(1, self.classes // CENTER_SAMPLE)
        self.launch(
            passes.find_center, (1,),
            self.w_VD, center_D, self.w_VD.stride(0), step, min(CENTER_SAMPLE, -(-self.classes // step)),
            self.features, BS=CENTER_SAMPLE, BD=min(64, self.width), num_warps=8,
        )  # fmt: skip

        def spare(gradient: Tensor) -> Tensor | None:
            return gradient if halves and gradient.numel() and gradient.element_size() == 2 else None

        self.w = self._operand(self.w_VD, center_D, spare(self.dw_VD))
        self.x = self._operand(self.x_BD, center_D, spare(self.dx_BD))
        self.buffer = self._new(self.rows[0].stop * pitch(self.columns[0].stop), dtype=self.product_dtype)
        self.products = (slice(0), slice(0)), self.buffer
        self._products(self.rows[0], self.columns[0])
        self.center_D, self.offset_D = center_D, torch.zeros_like(center_D) if self.exact else center_D
        # What the weights are multiplied by, for the other's gradient.
        self.x_factor = self._factor(self.x_BD, self.x.matrix) if self.wanted.w else self.x_BD
        self.w_factor = self._factor(self.w_VD, self.w.matrix) if self.wanted.x else self.w_VD

    def _factor(self, v: Tensor, operand: Tensor) -> Tensor:
        if self.exact:
            return v
        if self.product_dtype == torch.float32:
            return operand
        return torch.sub(v, self.center_D, out=self._new(*v.shape, dtype=self.weight_dtype))

    def _begin(self) -> None:
        """Read the settings, and fill the tables with what they start from."""
        self._read_settings()
        zeros = self._new(2 * self.padded + 1, fill=0.0)
        self.column_sum_V, flags = zeros[: self.padded], zeros[self.padded :].view(torch.int32)
        self.flag_V, self.any_near = flags[:-1], flags[-1:]
        if self.padded > self.classes:
            self.w.norm[self.classes :].fill_(torch.inf)
            self.w.factor[self.classes :].zero_()
        rows = self.all
        self.launch(
            passes.begin, programs(self.tokens, ROWS),
            self.x_BD, self.w_VD, rows.target_R, rows.distance_R, rows.state, rows.near, rows.slot, rows.slot_g,
            rows.count_R, rows.sums, self.x_BD.stride(0), self.w_VD.stride(0), self.tokens, self.features,
            self.problem.ignore_index, self.classes, self.splits, SLOTS=SLOTS, BR=ROWS, BD=self.width,
        )  # fmt: skip

    def _operand(self, v: Tensor, center_D: Tensor, out: Tensor | None) -> Operand:
        copy = self._new(*v.shape, dtype=self.product_dtype) if out is None else out.view(self.product_dtype)
        norm, factor = (self._new(pitch(len(v))) for _ in range(2))
        self.launch(
            passes.prepare, programs(len(v), ROWS),
            v, center_D, copy, norm, factor, v.stride(0), len(v), self.features,
            SCALED=self.product_dtype == torch.float16, BR=ROWS, BD=self.width, size=(v is self.w_VD,),
        )  # fmt: skip
        return Operand(copy, norm, factor)

    def _products(self, rows: slice, columns: slice) -> Tensor:
        """Return a block of X W^T, made now unless it was the last one made."""
        place, product_RC = self.products
        if place != (rows, columns):
            count, width = rows.stop - rows.start, columns.stop - columns.start
            whole = self.buffer[: count * pitch(width)].view(count, pitch(width))
            product_RC, x_RD = whole[:, :width], self.x.matrix[rows]
            for _, (w_CD, product_CR) in eights(width, self.w.matrix[columns], product_RC.T):
                multiply(x_RD, w_CD.T, product_CR.T)
            if width < pitch(width):
                whole[:, width:].zero_()
            self.products = (rows, columns), product_RC
        return product_RC

    def _do_rows(self) -> None:
        """Blocks of rows with all their classes: what was multiplied is there for the gradient as well."""
        (columns,) = self.columns
        single = len(self.rows) == 1
        sum_VD = self._new(self.classes, self.features) if self.wanted.w and not single else None
        for place in self.rows:
            rows = self.blocks[place.start]
            self._gather_statistics(rows, place, columns)
            self._finish_losses(rows)
            if not (self.wanted.x or self.wanted.w):
                continue
            weight_RC = self._weigh(rows, place, columns)
            if self.wanted.x:
                # Where dw is not written yet, its memory serves.
                sum_RD = self._borrow(len(rows), self.features)
                self._add_dx(weight_RC, columns, sum_RD)
                self._write_dx(rows, place, sum_RD)
            if sum_VD is not None:
                self._add_dw(weight_RC, place, sum_VD)
            elif self.wanted.w:
                self._write_dw_in_parts(columns, weight_RC)
        if sum_VD is not None:
            self._write_dw(sum_VD, 0)

    def _do_blocks(self) -> None:
        """Blocks of some rows and some classes, multiplied twice, so that little memory is needed."""
        for place in self.rows:
            rows = self.blocks[place.start]
            for columns in self.columns:
                self._gather_statistics(rows, place, columns)
            self._finish_losses(rows)
        if not (self.wanted.x or self.wanted.w):
            return
        sum_BD = self._new(*self.x_BD.shape) if self.wanted.x else None
        single = len(self.rows) == 1
        sum_CD = self._new(self.columns[0].stop, self.features) if self.wanted.w and not single else None
        for columns in self.columns:
            for place in self.rows:
                weight_RC = self._weigh(self.blocks[place.start], place, columns)
                if sum_BD is not None:
                    self._add_dx(weight_RC, columns, sum_BD[place])
                if sum_CD is not None:
                    self._add_dw(weight_RC, place, sum_CD[: columns.stop - columns.start])
            if sum_CD is not None:
                self._write_dw(sum_CD[: columns.stop - columns.start], columns.start)
            elif self.wanted.w:
                self._write_dw_in_parts(columns, weight_RC)
        if sum_BD is not None:
            self._write_dx(self.all, slice(0, self.tokens), sum_BD)

    def _borrow(self, *shape: int) -> Tensor:
        """Return float32 memory for a while: that of dw, where it is free between the product and its own writing."""
        free = self.dw_VD.view(torch.uint8).flatten() if len(self.rows) == len(self.columns) == 1 else self.dw_VD[:0]
        size = 4 * math.prod(shape)
        return free[:size].view(torch.float32).view(shape) if size <= free.nbytes else self._new(*shape)

    def _products_and_norms(self, rows: Rows, product_RC: Tensor) -> tuple[Any, ...]:
        """Name what every pass reads first."""
        return (
            product_RC.stride(0), rows.norm_R, rows.factor_R, self.w.norm, self.w.factor, self.share_V,
            rows.target_R,
        )  # fmt: skip

    def _vectors(self, rows: Rows) -> tuple[Any, ...]:
        return rows.x_RD, self.w_VD, rows.x_RD.stride(0), self.w_VD.stride(0)

    def _gather_statistics(self, rows: Rows, place: slice, columns: slice) -> None:
        product_RC = self._products(place, columns)
        count, width = product_RC.shape
        known = (
            product_RC, *self._products_and_norms(rows, product_RC), rows.distance_R, rows.state, rows.near,
            self.any_near,
        )  # fmt: skip
        self.launch(
            passes.statistics, (*programs(count, TILE["BM"]), self.splits),
            *known, count, rows.stride, pitch(width), self.span, columns.start, self.problem.ignore_index,
            self.exponent, self.problem.softening, self.near, TINY, DOT=self.wanted.exponent, size=product_RC.shape,
            **self.smoothed, **self.fast, **TILE,
        )  # fmt: skip
        self.launch(
            near.statistics_near, programs(count, NEAR_TILE["BM"]),
            *known, rows.slot, rows.count_R, self.flag_V, *self._vectors(rows), count, rows.stride, width, self.span,
            self.splits, columns.start, self.features, self.problem.ignore_index, self.exponent,
            self.problem.softening, self.near, self.listed_near, TINY, DOT=self.wanted.exponent, SLOTS=SLOTS,
            BD=self.width, size=product_RC.shape, **self.smoothed, **NEAR_TILE,
        )  # fmt: skip

    def _finish_losses(self, rows: Rows) -> None:
        self.launch(
            passes.finish, programs(len(rows), 128),
            rows.state, rows.target_R, rows.distance_R, rows.norm_R, rows.factor_R, self.w.norm,
            self.class_weight, self.share_V, rows.scale_R, self.exponent, rows.loss_R, rows.logsumexp_R, rows.hit_R,
            rows.dexponent_R, rows.numbers, rows.far, rows.near, rows.slot, self.flag_V, self.share_sum, len(rows),
            rows.stride, self.splits, self.classes, self.problem.ignore_index, self.problem.softening,
            self.listed_near, FLOOR, TINY, 1 - self.problem.label_smoothing, WEIGHTED=self.class_weight is not None,
            G_TYPE=self.g_type, SLOTS=SLOTS, BM=128, size=(len(rows),), **self.smoothed, **self.fast,
        )  # fmt: skip

    def _weigh(self, rows: Rows, place: slice, columns: slice) -> Tensor:
        """Write gradient weights over a block of products; add to the sums of its rows and columns."""
        product_RC = self._products(place, columns)
        self.products = (slice(0), slice(0)), self.buffer  # they are gone then
        count, width = product_RC.shape
        weight_RC = product_RC.view(self.weight_dtype)
        whole = pitch(width)
        blocks = -(-whole // TILE["BN"])
        # Enough programs to fill the device, each with rows enough to pay for its columns' data.
        groups = max(1, min(count // (8 * TILE["BM"]), -(-PROGRAMS // blocks)))
        group_rows = -(-count // (groups * TILE["BM"])) * TILE["BM"]
        groups = -(-count // group_rows)
        # Read before the memory is borrowed again.
        row_sums, column_sums = self._borrow(2, blocks, count), self._new(groups, whole)
        self.launch(
            passes.weigh, (blocks, groups),
            product_RC, weight_RC, product_RC.stride(0), self.w.norm, self.w.factor, self.share_V, rows.numbers,
            rows.far, rows.near, row_sums, column_sums, count, rows.stride, whole, columns.start, group_rows,
            self.exponent, size=product_RC.shape, **self.smoothed, **self.fast, **TILE,
        )  # fmt: skip
        self.launch(
            near.weigh_near, programs(count, NEAR_TILE["BM"]),
            product_RC, weight_RC, *self._products_and_norms(rows, product_RC), rows.numbers, rows.near,
            self.any_near, rows.slot, rows.slot_g, rows.count_R, rows.sums, *self._vectors(rows), count, rows.stride,
            width, columns.start, self.features, self.problem.ignore_index, self.exponent, self.problem.softening,
            self.near, SLOTS=SLOTS, BD=self.width, size=product_RC.shape, **self.smoothed, **NEAR_TILE,
        )  # fmt: skip
        row_programs = -(-count // 128)
        self.launch(
            gradients.add_sums, (row_programs - (-whole // 128),),
            row_sums, column_sums, weight_RC, weight_RC.stride(0), rows.near, self.any_near, rows.sums,
            self.column_sum_V[columns.start :], count, rows.stride, whole, blocks, groups, row_programs, BK=16, BM=1024,
            BN=128,
            size=product_RC.shape,
        )  # fmt: skip
        return weight_RC

    def _add_dx(self, weight_RC: Tensor, columns: slice, sum_RD: Tensor) -> None:
        """Add G W of some classes to a sum, which begins with the first of them."""
        for start, (weight_CR, w_CD) in eights(weight_RC.shape[1], weight_RC.T, self.w_factor[columns]):
            multiply(weight_CR.T, w_CD, sum_RD, add=columns.start + start > 0)

    def _add_dw(self, weight_RC: Tensor, place: slice, sum_CD: Tensor) -> None:
        """Add G^T X of some rows to a sum, which begins with the first of them."""
        x_RD = self.x_factor[place]
        for _, (weight_CR, part_CD) in eights(weight_RC.shape[1], weight_RC.T, sum_CD):
            multiply(weight_CR, x_RD, part_CD, add=place.start > 0)

    def _write_dx(self, rows: Rows, place: slice, sum_RD: Tensor) -> None:
        self.launch(
            gradients.finish_rows, programs(len(rows), ROWS),
            sum_RD, rows.sums, rows.target_R, rows.numbers, rows.slot, rows.slot_g, rows.count_R, self.offset_D,
            self.center_D, rows.x_RD, self.w_VD, self.dx_BD[place], rows.x_RD.stride(0), self.w_VD.stride(0),
            len(rows), rows.stride, self.features,
            G_TYPE=self.g_type, SLOTS=SLOTS, BR=ROWS, BD=self.width, size=(len(rows),), **self.smoothed,
        )  # fmt: skip

    def _write_dw_in_parts(self, columns: slice, weight_RC: Tensor) -> None:
        """The gradient of some classes that all rows are there for."""
        parts = pieces(columns.stop - columns.start, DW_COLUMNS)
        sums = self._new(parts[0].stop, self.features)
        for part in parts:
            sum_CD = sums[: part.stop - part.start]
            self._add_dw(weight_RC[:, part], slice(0, self.tokens), sum_CD)
            self._write_dw(sum_CD, columns.start + part.start)

    def _write_dw(self, sum_CD: Tensor, first: int) -> None:
        rows = self.all
        self.launch(
            gradients.finish_columns, programs(len(sum_CD), ROWS),
            sum_CD, self.column_sum_V, self.flag_V, rows.numbers[4], rows.slot, rows.slot_g, rows.count_R,
            self.offset_D, self.x_BD, self.w_VD, self.dw_VD, self.x_BD.stride(0), self.w_VD.stride(0), self.tokens,
            first, len(sum_CD), self.features, SLOTS=SLOTS, BM=1024, BR=ROWS, BD=self.width, size=(len(sum_CD),),
        )  # fmt: skip
