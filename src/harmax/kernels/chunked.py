"""The loss in chunks of rows, on any device: only (chunk, V) of the (B, V) matrix is in memory at a time.

Per row, with t the softened squared distances, b the prior (0 if there is none), top the most probable class,
r_j = t_top / t_j, u_j = -(n/2) log r_j + b_top - b_j >= 0, q_j = exp(-u_j) and Z = sum_j q_j, a target distribution T
of mass tau has

    loss = sum_j T_j u_j + tau log Z          G_j = dloss/dt_j = (n / (2 t_top)) r_j (T_j - tau q_j / Z)
    dloss/db_j = tau q_j / Z - T_j            dloss/dn = -sum_j (T_j - tau q_j / Z) log(r_j) / 2

r (tau q / Z - T) is written over the distances, and -n / (2 t_top) is kept as one factor per row. Some pairs would
cancel in the products G W and G^T X: near pairs, the target and the most probable class. They are left out of the
products and added as G (x - w). Their T - tau q / Z is computed without cancellation, for dloss/db too. All work is in
place, so torch.compile is not needed here.

Shape suffixes: B rows, C rows of a chunk or block, V classes, D features, P pairs.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from harmax.kernels.distance import (
    add_pair_gradients,
    center_norm,
    certainly_at_most,
    find_near,
    pair_distances,
    recentered,
    squared_norm,
)
from harmax.kernels.eager import above_floor, absolute_floor, counted, smoothed_probabilities
from harmax.kernels.operators import is_exporting, is_wrapped
from harmax.kernels.problem import Block, LossOptions, Problem, Result, Scale, Wanted

CHUNK_BYTES = {"cpu": 38 * 2**20, "cuda": 256 * 2**20}
"""Memory of the (chunk, V) matrix when the caller names no chunk. A GPU needs large chunks to be busy."""

BLOCK_ELEMENTS = 2**20
"""Elements of the element-wise pass at a time on the CPU: its temporary has this size, not the size of the chunk.

On other devices the pass takes the whole chunk at once, because there every call costs a launch.
"""


def default_chunk_rows(classes: int, itemsize: int, device: str) -> int:
    """Rows whose (chunk, V) matrix takes CHUNK_BYTES: a multiple of 16, and at least 16."""
    return max(16, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // (classes * itemsize) // 16 * 16)


def choose_block(problem: Problem, options: LossOptions) -> Block:
    """The block of the options: `chunk_rows` rows (by default as many as fit CHUNK_BYTES) and all classes."""
    return Block(chunk_rows(problem.w_VD, options), problem.w_VD.shape[0])


def chunk_rows(w_VD: Tensor, options: LossOptions) -> int:
    """Return the number of rows per chunk: that of the options, or as many as fit into CHUNK_BYTES."""
    return options.chunk_rows or default_chunk_rows(w_VD.shape[0], w_VD.element_size(), w_VD.device.type)


def row_chunks(function: Callable[[Tensor], Tensor], x_BD: Tensor, w_VD: Tensor, options: LossOptions) -> Tensor:
    """Return what a function of rows returns, (B,), from one chunk of rows at a time. No (chunk, V) matrix is kept.

    Where a gradient is wanted, each chunk is computed again in the backward pass.
    """
    rows = chunk_rows(w_VD, options)
    if is_exporting():  # an exported graph has no place for checkpoints
        return function(x_BD)
    transformed = not torch.compiler.is_compiling() and is_wrapped(x_BD)  # by torch.func, which knows no checkpoints
    if transformed or certainly_at_most(len(x_BD), rows):
        return function(x_BD)
    return torch.cat([checkpoint(function, x, use_reentrant=False, preserve_rng_state=False) for x in x_BD.split(rows)])


def compute(problem: Problem, wanted: Wanted, scale: Scale, block: Block) -> Result:
    """Compute a problem in chunks of `block.rows` rows."""
    return Sweep(problem, wanted, scale()).run(block.rows)


class Top(NamedTuple):
    """The most probable class of some rows."""

    t_C: Tensor
    """Its softened distance."""
    prior_C: Tensor | None
    """Its prior, if there is one."""
    index_C: Tensor
    """Its number."""
    column_C: Tensor
    """Its column in the matrix; -1 where the matrix does not have it."""
    lines_P: Tensor
    columns_P: Tensor
    """The rows that have it in the matrix, and where."""


class Targets(NamedTuple):
    """The targets T of some rows: `sparse` is the mass on one class, `dense` (if any) the mass on all classes."""

    index_C: Tensor | None
    ignored_C: Tensor | None
    sparse_C: Tensor
    dense_CV: Tensor | None
    elsewhere_C: Tensor | None = None
    """Rows whose `index` stands for a class that the matrix does not have. Their `sparse` is 0."""

    def mass(self) -> Tensor:
        """``sum_j T_j``, (C,)."""
        return self.sparse_C if self.dense_CV is None else self.sparse_C + self.dense_CV.sum(1)

    def dot(self, values_CV: Tensor) -> Tensor:
        """``sum_j T_j values_j``, (C,)."""
        total_C = torch.zeros_like(self.sparse_C)
        if self.index_C is not None:
            total_C = self.sparse_C * values_CV.gather(1, self.index_C[:, None]).squeeze(1)
        if self.elsewhere_C is not None:
            total_C = total_C.masked_fill(self.elsewhere_C, 0.0)  # also where the value is infinite
        return total_C if self.dense_CV is None else total_C + (self.dense_CV * values_CV).sum(1)

    def at(self, rows_P: Tensor, columns_P: Tensor) -> Tensor:
        """``T_j`` of listed pairs, (P,)."""
        dense_P = 0.0 if self.dense_CV is None else self.dense_CV[rows_P, columns_P]
        if self.index_C is None:
            return self.sparse_C[rows_P] + dense_P
        return torch.where(self.index_C[rows_P] == columns_P, self.sparse_C[rows_P], 0.0) + dense_P

    def mass_off(self, top: Top) -> Tensor:
        """Mass on every class but the most probable one, (C,), without subtracting: zero stays zero."""
        mass_C = torch.zeros_like(self.sparse_C)
        if self.index_C is not None:
            mass_C = torch.where(self.index_C == top.column_C, 0.0, self.sparse_C)
        if self.dense_CV is not None:
            zero = mass_C.new_zeros(())
            mass_C = mass_C + self.dense_CV.index_put((top.lines_P, top.columns_P), zero).sum(1)
        return mass_C


class _Block(NamedTuple):
    """Results of some rows whose distances were overwritten by gradient weights."""

    loss_C: Tensor
    logsumexp_C: Tensor
    top_C: Tensor
    factor_C: Tensor
    """G of a row is this factor times the weights."""
    dexponent_C: Tensor
    pair_rows_P: Tensor
    pair_columns_P: Tensor
    pair_grad_P: Tensor


class Sweep:
    """One pass over the rows of a problem. `scale_B` is the upstream gradient of each row's loss."""

    def __init__(self, problem: Problem, wanted: Wanted, scale_B: Tensor) -> None:
        self.problem, self.wanted, self.scale_B = problem, wanted, scale_B
        self.x_BD, self.w_VD, self.infinite_V = recentered(problem.x_BD, problem.w_VD)
        self.x_norm_B, self.w_norm_V = squared_norm(self.x_BD), center_norm(self.w_VD, self.infinite_V)
        self.half_exponent, self.prior_V = 0.5 * problem.exponent, problem.prior_V
        self.indexed = not problem.target.is_floating_point()
        self.width = len(problem.w_VD)
        """Classes that decide how many rows are a block."""

    def run(self, chunk_rows: int) -> Result:
        """Go over all rows, with `chunk_rows` rows of the (B, V) matrix in memory at a time."""
        x_BD, w_VD = self.x_BD, self.w_VD
        loss_B, logsumexp_B, dexponent_B = (torch.zeros_like(self.x_norm_B) for _ in range(3))
        top_B = torch.zeros_like(loss_B, dtype=torch.int64)
        dx_BD = torch.zeros_like(x_BD) if self.wanted.x else x_BD.new_empty(0)
        dw_VD = torch.zeros_like(w_VD) if self.wanted.w else w_VD.new_empty(0)
        column_V = torch.zeros_like(self.w_norm_V)
        self.dprior_V = torch.zeros_like(self.w_norm_V) if self.wanted.prior else w_VD.new_empty(0)
        chunk_rows = min(chunk_rows, max(1, len(x_BD)))
        block_rows = max(1, BLOCK_ELEMENTS // self.width) if x_BD.device.type == "cpu" else chunk_rows
        buffer_CV = x_BD.new_empty(chunk_rows, len(w_VD))
        # One scratch for the whole pass: new memory for every block would cost as much as the arithmetic on it.
        scratch_CV = x_BD.new_empty(min(block_rows, chunk_rows), len(w_VD))
        factor_B = torch.zeros_like(loss_B)
        for start in range(0, len(x_BD), chunk_rows):
            chunk = slice(start, min(start + chunk_rows, len(x_BD)))
            products_CV = torch.mm(x_BD[chunk], w_VD.T, out=buffer_CV[: chunk.stop - start])
            for first in range(chunk.start, chunk.stop, block_rows):
                rows = slice(first, min(first + block_rows, chunk.stop))
                block_CV = products_CV[first - start : rows.stop - start]
                block = self._weigh_block(block_CV, rows, scratch_CV[: len(block_CV)])
                loss_B[rows], logsumexp_B[rows], top_B[rows] = block.loss_C, block.logsumexp_C, block.top_C
                if any(self.wanted):
                    factor_B[rows], dexponent_B[rows] = block.factor_C, block.dexponent_C
                    self._add_pairs(block, rows, dx_BD, dw_VD)
            self._multiply(products_CV, factor_B[chunk], chunk, dx_BD, dw_VD, column_V)
        if self.wanted.w:
            dw_VD.addcmul_(w_VD, column_V[:, None], value=2)
        hit_B = top_B == self._best_classes()
        return Result(loss_B, logsumexp_B, hit_B, dx_BD, dw_VD, dexponent_B.sum(), self.dprior_V)

    def _weigh_block(self, s_CV: Tensor, rows: slice, scratch_CV: Tensor) -> _Block:
        half = self.half_exponent
        targets = self._targets(rows)
        near = self._turn_into_distances(s_CV, rows, targets)
        t_CV = s_CV.add_(self.problem.softening) if self.problem.softening else s_CV
        top = self._top(*(t_CV.min(1) if self.prior_V is None else self._most_probable(t_CV, scratch_CV)))
        line_C = torch.arange(len(t_CV), device=t_CV.device)
        lead = top.lines_P, top.columns_P
        pairs = _distinct(near, (line_C, targets.index_C), lead, width=t_CV.shape[1])
        t_P = t_CV[pairs]

        r_CV = torch.div(top.t_C[:, None], t_CV, out=t_CV)
        if self.prior_V is not None:
            r_CV.clamp_(max=torch.finfo(r_CV.dtype).max)  # a class nearer than the most probable one, on an exact hit
        log_r_CV = torch.log(r_CV, out=scratch_CV)
        stretch_C = -half * targets.dot(log_r_CV)
        stretch_CV = -half * log_r_CV if self.wanted.exponent else None
        u_CV, pull_C = log_r_CV.mul_(half), stretch_C
        if self.prior_V is not None and top.prior_C is not None:
            behind_CV = top.prior_C[:, None] - self.prior_V
            u_CV.sub_(behind_CV)
            if targets.dense_CV is not None:  # a class that is left out costs nothing without a share of the target
                behind_CV.masked_fill_(targets.dense_CV == 0, 0.0)
            pull_C = stretch_C + targets.dot(behind_CV)
        q_CV = u_CV.exp_()
        q_CV[lead] = 0.0
        off_C = targets.mass_off(top) if any(self.wanted) else torch.zeros_like(pull_C)
        rest_C, pull_C, mass_C, off_C = self._summed(q_CV.sum(1), pull_C, targets.mass(), off_C)
        q_CV[lead] = 1.0

        log_z_C = rest_C.log1p()
        loss_C = pull_C + mass_C * log_z_C
        if targets.ignored_C is not None:
            loss_C = loss_C.masked_fill(targets.ignored_C, 0.0)  # also where the row holds a NaN
        logsumexp_C = log_z_C - half * top.t_C.log()
        if top.prior_C is not None:
            logsumexp_C = logsumexp_C + top.prior_C
        nothing = loss_C.new_empty(0)
        if not any(self.wanted):
            return _Block(loss_C, logsumexp_C, top.index_C, nothing, nothing, near[0][:0], near[1][:0], nothing)

        scale_C = half * self.scale_B[rows]
        share_C = mass_C / (1 + rest_C)
        dexponent_C = torch.zeros_like(loss_C)
        if stretch_CV is not None:
            dexponent_C = stretch_C - share_C * (q_CV * stretch_CV).sum(1)
            dexponent_C = self.scale_B[rows] * dexponent_C / self.problem.exponent
        lines, columns = pairs
        lead_P = torch.where(
            columns == top.column_C[lines],
            # 1 - p of the nearest class is a sum of small terms: subtracting from 1 would lose it.
            (share_C * rest_C - off_C)[lines],
            targets.at(lines, columns) - share_C[lines] * q_CV[pairs],
        )
        factor_C = -scale_C / top.t_C
        if targets.dense_CV is None:
            torch.mul(r_CV, q_CV, out=s_CV)
            factor_C = factor_C * share_C
        else:
            torch.mul(r_CV, q_CV.mul_(share_C[:, None]).sub_(targets.dense_CV), out=s_CV)
        s_CV[pairs] = 0.0
        if self.wanted.prior:
            q_CV[pairs] = 0.0
            each_C = self.scale_B[rows] * share_C if targets.dense_CV is None else self.scale_B[rows]
            self.dprior_V.addmv_(q_CV.T, each_C).index_add_(0, columns, -self.scale_B[rows][lines] * lead_P)
        pair_grad_P = scale_C[lines] * lead_P / t_P
        return _Block(loss_C, logsumexp_C, top.index_C, factor_C, dexponent_C, lines, columns, pair_grad_P)

    def _top(self, t_C: Tensor, column_C: Tensor) -> Top:
        """The most probable class, from its distance and its column."""
        prior_C = None if self.prior_V is None else self.prior_V[column_C]
        line_C = torch.arange(len(t_C), device=t_C.device)
        return Top(t_C, prior_C, column_C, column_C, line_C, column_C)

    def _summed(self, *values_C: Tensor) -> tuple[Tensor, ...]:
        """Sums over the classes of the matrix, as sums over all classes."""
        return values_C

    def _best_classes(self) -> Tensor:
        """The class with the largest share of each row's target, (B,)."""
        return self.problem.target if self.indexed else self.problem.target.argmax(1)

    def _most_probable(self, t_CV: Tensor, scratch_CV: Tensor) -> tuple[Tensor, Tensor]:
        """The distance and the class whose logit is the largest, (C,) each."""
        assert self.prior_V is not None
        z_CV = torch.log(t_CV, out=scratch_CV).mul_(-self.half_exponent).add_(self.prior_V)
        top_C = z_CV.argmax(1)
        return t_CV.gather(1, top_C[:, None]).squeeze(1), top_C

    def _targets(self, rows: slice) -> Targets:
        problem = self.problem
        if not self.indexed:
            dense_CV = smoothed_probabilities(problem._replace(target=problem.target[rows]))
            return Targets(None, None, dense_CV.new_zeros(len(dense_CV)), dense_CV)
        target_C = problem.target[rows]
        kept_C = target_C != problem.ignore_index
        count_C = counted(problem._replace(target=target_C))
        index_C = target_C.masked_fill(~kept_C, 0)
        if not problem.label_smoothing:
            return Targets(index_C, ~kept_C, count_C, None)
        share_V = torch.ones_like(self.w_norm_V) if problem.weight_V is None else problem.weight_V
        dense_CV = kept_C[:, None] * (share_V * (problem.label_smoothing / len(share_V)))
        return Targets(index_C, ~kept_C, count_C * (1 - problem.label_smoothing), dense_CV)

    def _turn_into_distances(self, s_CV: Tensor, rows: slice, targets: Targets) -> tuple[Tensor, Tensor]:
        """Turn products into distances, in place. Near pairs and targets are subtracted; none stays below the floor."""
        problem = self.problem
        x_norm_C = self.x_norm_B[rows]
        torch.add(self.w_norm_V, s_CV, alpha=-2, out=s_CV).add_(x_norm_C[:, None])
        if self.infinite_V is not None:
            s_CV[:, self.infinite_V] = torch.inf
        near = find_near(s_CV, x_norm_C, self.w_norm_V)
        lines, columns = near
        if targets.index_C is not None:
            lines = torch.cat([lines, torch.arange(len(s_CV), device=s_CV.device)])
            columns = torch.cat([columns, targets.index_C])
        exact_P = pair_distances(problem.x_BD[rows], problem.w_VD, lines, columns)
        s_CV[lines, columns] = exact_P
        self._raise_hits(s_CV, lines[exact_P == 0].unique())
        s_CV.clamp_(min=absolute_floor(s_CV.dtype))
        return near

    def _raise_hits(self, s_CV: Tensor, rows_P: Tensor) -> None:
        """Raise distances of zero, which the listed rows have, to the floor, in place."""
        if len(rows_P):
            s_CV[rows_P] = above_floor(s_CV[rows_P])

    def _add_pairs(self, block: _Block, rows: slice, dx_BD: Tensor, dw_VD: Tensor) -> None:
        """Add the gradients of the pairs that are left out of the products."""
        add_pair_gradients(
            block.pair_grad_P,
            self.problem.x_BD[rows],
            self.problem.w_VD,
            block.pair_rows_P,
            block.pair_columns_P,
            dx_BD[rows] if self.wanted.x else None,
            dw_VD if self.wanted.w else None,
        )

    def _multiply(
        self, weights_CV: Tensor, factor_C: Tensor, chunk: slice, dx_BD: Tensor, dw_VD: Tensor, column_V: Tensor
    ) -> None:
        """Add the part of a chunk to the wanted gradients: two large products."""
        x_CD, factor_C1 = self.x_BD[chunk], factor_C[:, None]
        if self.wanted.x:
            pull_CD = (weights_CV @ self.w_VD).sub_(weights_CV.sum(1, keepdim=True) * x_CD)
            dx_BD[chunk].addcmul_(pull_CD, factor_C1, value=-2)
        if self.wanted.w:
            dw_VD.addmm_(weights_CV.T, factor_C1 * x_CD, alpha=-2)
            column_V.addmv_(weights_CV.T, factor_C)


def _distinct(*lists: tuple[Tensor, Tensor | None], width: int) -> tuple[Tensor, Tensor]:
    """Merge lists of (rows, columns), each pair once. A list without columns is left out."""
    flat = torch.cat([rows * width + columns for rows, columns in lists if columns is not None]).unique()
    return flat // width, flat % width
