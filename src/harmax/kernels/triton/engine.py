"""One computation of the loss and its gradients: all steps in order, block by block.

Shape suffixes: B rows, V classes, D features, R rows of a block, C classes of a block.
"""

import math
from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from harmax.kernels.problem import ANY_BLOCK, Block, Problem, Result, Scale, Wanted
from harmax.kernels.triton import modes, tiles
from harmax.kernels.triton.begin import fill_tables
from harmax.kernels.triton.centers import write_dw
from harmax.kernels.triton.inputs import write_dx
from harmax.kernels.triton.launch import Launcher
from harmax.kernels.triton.layout import lay_out
from harmax.kernels.triton.losses import finish_losses
from harmax.kernels.triton.operands import Operand, find_common_center, make_operand
from harmax.kernels.triton.prior import make_tables, weighted_sum
from harmax.kernels.triton.products import Products, add_weighted_centers, add_weighted_inputs
from harmax.kernels.triton.statistics import gather_statistics
from harmax.kernels.triton.sums import add_parts
from harmax.kernels.triton.tables import Classes, Rows, aligned, kernel_settings, new_rows
from harmax.kernels.triton.weigh import write_weights


def compute(problem: Problem, wanted: Wanted, scale: Scale, block: Block) -> Result:
    """Compute a problem in blocks of this size."""
    return Engine(problem, wanted, scale, modes.block_that_fits(problem) if block == ANY_BLOCK else block).run()


class Engine:
    """One computation of a loss and its gradients. `scale` makes the upstream gradient of each row's loss."""

    def __init__(self, problem: Problem, wanted: Wanted, scale: Scale, block: Block) -> None:
        self.problem, self.wanted, self.scale = problem, wanted, scale
        # A row must be contiguous; the matrix may be a view.
        self.x_BD, self.w_VD = (v if v.stride(1) == 1 else v.contiguous() for v in (problem.x_BD, problem.w_VD))
        self.layout = lay_out(self.x_BD, self.w_VD, block)
        self.launch = Launcher(self._shape(), self.x_BD.device)

    def _shape(self) -> Hashable:
        """Everything that compiled kernels depend on."""
        problem, layout = self.problem, self.layout
        vectors = tuple((v.shape, v.stride(), v.dtype, v.data_ptr() % 16) for v in (self.x_BD, self.w_VD))
        parts = (problem.weight_V is None, problem.prior_V is None, problem.label_smoothing > 0)
        settings = (*parts, problem.ignore_index, problem.target.dtype)
        blocks = (layout.row_blocks[0].stop if layout.row_blocks else 0, layout.column_blocks[0].stop)
        return (vectors, settings, self.wanted, *blocks, *tiles.TILE.values())

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.x_BD.new_empty(shape, dtype=dtype)

    def _zeros(self, *shape: int) -> Tensor:
        return self.x_BD.new_full(shape, 0.0, dtype=torch.float32)

    def run(self) -> Result:
        """Compute everything that is wanted."""
        self.dx_BD = self.x_BD.new_empty(self.x_BD.shape if self.wanted.x else 0)
        self.dw_VD = self.w_VD.new_empty(self.w_VD.shape if self.wanted.w else 0)
        if not self.layout.tokens:
            none_B, dprior_V = self._new(0), self._zeros(self.layout.classes if self.wanted.prior else 0)
            losses = (none_B, none_B.clone(), none_B.bool())
            return Result(*losses, self.dx_BD, self.dw_VD.zero_(), self._zeros(), dprior_V)
        x, w = self._start_products()
        self._make_tables(x, w)
        self._do_rows() if len(self.layout.column_blocks) == 1 else self._do_blocks()
        rows = self.rows
        dexponent = rows.dexponent_R.sum() if self.wanted.exponent else self._zeros()
        dprior_V = self._new(0) if self.classes.dprior_V is None else self.classes.dprior_V[: self.layout.classes]
        return Result(rows.loss_R, rows.logsumexp_R, rows.hit_R, self.dx_BD, self.dw_VD, dexponent, dprior_V)

    def _start_products(self) -> tuple[Operand, Operand]:
        """Make the operands, and start the first large product before anything that it does not need."""
        layout = self.layout
        center_D = find_common_center(self.launch, self.w_VD, layout.width)
        w = self._operand(self.w_VD, center_D, self.dw_VD, of_w=True)
        x = self._operand(self.x_BD, center_D, self.dx_BD, of_w=False)
        self.products = Products(layout, x.matrix, w.matrix)
        self.products.block(layout.row_blocks[0], layout.column_blocks[0])
        self.center_D, self.offset_D = center_D, torch.zeros_like(center_D) if layout.exact else center_D
        # The matrices that gradient weights are multiplied by.
        self.x_factor = self._factor(self.x_BD, x.matrix) if self.wanted.w else self.x_BD
        self.w_factor = self._factor(self.w_VD, w.matrix) if self.wanted.x else self.w_VD
        return x, w

    def _operand(self, v: Tensor, center_D: Tensor, gradient: Tensor, *, of_w: bool) -> Operand:
        """Make an operand, in the memory of its gradient if that has the same size.

        A part of a gradient is written only after the last use of that part of its operand. Rows are done when their
        own dx is known. Classes are done when their dw is known or, if several blocks of rows add to it in float32, at
        the very end.
        """
        dtype = self.layout.product_dtype
        fits = dtype == torch.float16 and gradient.numel() and gradient.element_size() == 2
        copy = gradient.view(dtype) if fits else self._new(*v.shape, dtype=dtype)
        return make_operand(self.launch, v, center_D, copy, self.layout.width, of_w=of_w)

    def _factor(self, v: Tensor, operand: Tensor) -> Tensor:
        if self.layout.exact:
            return v
        if self.layout.product_dtype == torch.float32:
            return operand
        return torch.sub(v, self.center_D, out=self._new(*v.shape, dtype=self.layout.weight_dtype))

    def _make_tables(self, x: Operand, w: Operand) -> None:
        """Make all tables while the device computes the first product."""
        problem, layout = self.problem, self.layout
        self.rows = new_rows(layout, problem, self.wanted, self.x_BD, x, self.scale())
        self.blocks = {place.start: self.rows.block(place) for place in layout.row_blocks}
        self.settings = kernel_settings(problem, self.wanted, layout)
        self.classes = self._make_classes(w)
        fill_tables(self.launch, self.rows, self.classes, self.settings)

    def _make_classes(self, w: Operand) -> Classes:
        classes, padded = self.layout.classes, tiles.pitch(self.layout.classes)
        smoothing, weight_V = self.problem.label_smoothing, self.problem.weight_V
        weight_V = None if weight_V is None else aligned(weight_V.float())
        share_V, share_sum = None, None
        if smoothing:
            ones_V = self.x_BD.new_ones(classes, dtype=torch.float32)
            share_V = (ones_V if weight_V is None else weight_V) * (smoothing / classes)
            share_sum, share_V = share_V.sum(), F.pad(share_V, (0, padded - classes))
        prior, prior_share = None, None
        if self.problem.prior_V is not None:
            prior_V = aligned(self.problem.prior_V.float())
            prior = make_tables(self.launch, prior_V, self.settings["EXPONENT"])
            prior_share = None if share_V is None else weighted_sum(prior_V, prior, share_V[:classes])
        zeros = self._zeros(2 * padded + 1)
        column_sum_V, flags = zeros[:padded], zeros[padded:].view(torch.int32)
        if padded > classes:
            w.norm[classes:].fill_(torch.inf)
            w.factor[classes:].zero_()
        return Classes(
            self.w_VD,
            w.norm,
            w.factor,
            weight_V,
            share_V,
            share_sum,
            column_sum_V,
            flag_V=flags[:-1],
            any_near=flags[-1:],
            prior=prior,
            prior_share=prior_share,
            dprior_V=self._zeros(padded) if self.wanted.prior else None,
        )

    def _do_rows(self) -> None:
        """Take blocks of rows with all their classes: their products are still in memory for the gradient."""
        layout, (columns,) = self.layout, self.layout.column_blocks
        single = len(layout.row_blocks) == 1
        sum_VD = self._new(layout.classes, layout.features) if self.wanted.w and not single else None
        for place in layout.row_blocks:
            rows = self.blocks[place.start]
            self._gather_statistics(rows, place, columns)
            finish_losses(self.launch, rows, self.classes, self.settings)
            if not (self.wanted.x or self.wanted.w or self.wanted.prior):
                continue
            weight_RC = self._weigh(rows, place, columns)
            if self.wanted.x:
                # If dw is not written yet, its memory is free.
                sum_RD = self._borrow(len(rows), layout.features)
                add_weighted_centers(weight_RC, self.w_factor[columns], sum_RD, first=columns.start)
                self._write_dx(rows, place, sum_RD)
            if sum_VD is not None:
                add_weighted_inputs(weight_RC, self.x_factor[place], sum_VD, first=place.start)
            elif self.wanted.w:
                self._write_dw_in_parts(columns, weight_RC)
        if sum_VD is not None:
            self._write_dw(sum_VD, 0)

    def _do_blocks(self) -> None:
        """Take blocks of some rows and some classes, and multiply each twice, so that little memory is needed."""
        layout = self.layout
        for place in layout.row_blocks:
            rows = self.blocks[place.start]
            for columns in layout.column_blocks:
                self._gather_statistics(rows, place, columns)
            finish_losses(self.launch, rows, self.classes, self.settings)
        if not (self.wanted.x or self.wanted.w or self.wanted.prior):
            return
        sum_BD = self._new(*self.x_BD.shape) if self.wanted.x else None
        single = len(layout.row_blocks) == 1
        sums = self._new(layout.column_blocks[0].stop, layout.features) if self.wanted.w and not single else None
        for columns in layout.column_blocks:
            sum_CD = None if sums is None else sums[: columns.stop - columns.start]
            for place in layout.row_blocks:
                weight_RC = self._weigh(self.blocks[place.start], place, columns)
                if sum_BD is not None:
                    add_weighted_centers(weight_RC, self.w_factor[columns], sum_BD[place], first=columns.start)
                if sum_CD is not None:
                    add_weighted_inputs(weight_RC, self.x_factor[place], sum_CD, first=place.start)
            if sum_CD is not None:
                self._write_dw(sum_CD, columns.start)
            elif self.wanted.w:
                self._write_dw_in_parts(columns, weight_RC)
        if sum_BD is not None:
            self._write_dx(self.rows, slice(0, layout.tokens), sum_BD)

    def _gather_statistics(self, rows: Rows, place: slice, columns: slice) -> None:
        product_RC, splits = self.products.block(place, columns), self.layout.splits
        gather_statistics(
            self.launch, product_RC, rows, self.classes, self.settings, first=columns.start, splits=splits
        )

    def _weigh(self, rows: Rows, place: slice, columns: slice) -> Tensor:
        """Write gradient weights over a block of products; add to the sums of its rows and columns."""
        product_RC, first = self.products.take(place, columns), columns.start
        weight_RC = product_RC.view(self.layout.weight_dtype)
        # The parts are read before their memory is borrowed again.
        parts = write_weights(
            self.launch, product_RC, weight_RC, rows, self.classes, self.settings, first=first, borrow=self._borrow
        )
        add_parts(self.launch, parts, weight_RC, rows, self.classes, first=first)
        return weight_RC

    def _borrow(self, *shape: int) -> Tensor:
        """Return float32 memory for a short time: that of dw, if it is free between the product and its own writing."""
        free = self.dw_VD.view(torch.uint8).flatten() if self.layout.one_block else self.dw_VD[:0]
        size = 4 * math.prod(shape)
        return free[:size].view(torch.float32).view(shape) if size <= free.nbytes else self._new(*shape)

    def _write_dx(self, rows: Rows, place: slice, sum_RD: Tensor) -> None:
        write_dx(
            self.launch,
            sum_RD,
            self.dx_BD[place],
            rows,
            self.classes,
            self.settings,
            offset_D=self.offset_D,
            center_D=self.center_D,
        )

    def _write_dw(self, sum_CD: Tensor, first: int) -> None:
        write_dw(
            self.launch,
            sum_CD,
            self.dw_VD,
            self.rows,
            self.classes,
            self.settings,
            offset_D=self.offset_D,
            first=first,
        )

    def _write_dw_in_parts(self, columns: slice, weight_RC: Tensor) -> None:
        """Write the gradient of some classes for which all rows are in this block."""
        parts = tiles.pieces(columns.stop - columns.start, tiles.DW_COLUMNS)
        sums = self._new(parts[0].stop, self.layout.features)
        for part in parts:
            sum_CD = sums[: part.stop - part.start]
            add_weighted_inputs(weight_RC[:, part], self.x_factor, sum_CD, first=0)
            self._write_dw(sum_CD, columns.start + part.start)
