"""The loss over classes that are divided among ranks: each computes with its own centers, for all rows.

A block of the matrix is computed as in `chunked`, with its columns on different ranks. Three exchanges per block make
one softmax of them, of some numbers per row each: the smallest distance (for exact hits), the most probable class, and
the sums over classes. No rank ever holds a (tokens, classes) matrix, or the centers of another rank. Gradients of
centers and priors are complete; those of inputs and exponent are this rank's part of a sum over the ranks.

Shape suffixes: B rows, C rows of a block, V classes of this rank, R ranks, P pairs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from harmax.kernels import eager
from harmax.kernels.chunked import Sweep, Targets, Top, default_chunk_rows
from harmax.kernels.distance import squared_distance_matrix
from harmax.kernels.eager import absolute_floor, counted, hit_floor
from harmax.kernels.problem import Block, Problem, Result, Scale, Wanted
from harmax.kernels.ranks import Ranks, Shares

REDUCTIONS = ("mean", "sum", "none")


def compute(problem: Problem, wanted: Wanted, scale: Scale, block: Block, *, group: str) -> Result:
    """Compute a problem whose `w_VD` and `prior_V` are those of this rank, and the rest the same on all ranks.

    Probability targets have the columns of this rank, or those of all ranks. `block.rows` 0 means the default.
    """
    ranks = Ranks(group)
    shares = ranks.agree(_shared(problem, wanted, block), len(problem.w_VD), problem.w_VD)
    if problem.target.is_floating_point() and problem.target.shape[1] == shares.classes:
        problem = problem._replace(target=problem.target[:, shares.own])
    rows = block.rows or default_chunk_rows(shares.largest, problem.w_VD.element_size(), problem.w_VD.device.type)
    result = ShardedSweep(problem, wanted, scale(), ranks, shares).run(rows)
    if shares.counts[ranks.rank]:
        return result
    return result._replace(dw_VD=result.dw_VD[:0], dprior_V=result.dprior_V[:0])


def _shared(problem: Problem, wanted: Wanted, block: Block) -> dict[str, float | Tensor]:
    """What all ranks must agree on, as numbers. The sum of the targets tells most batches from each other."""
    target, weight_V = problem.target, problem.weight_V
    indexed = not target.is_floating_point()
    return {
        "`exponent`": problem.exponent.detach() if isinstance(problem.exponent, Tensor) else problem.exponent,
        "`softening`": problem.softening,
        "the number of vectors": len(problem.x_BD),
        "the number of features": problem.x_BD.shape[1],
        "the bytes of a number": problem.x_BD.element_size(),
        "`reduction`": REDUCTIONS.index(problem.reduction),
        "`label_smoothing`": problem.label_smoothing,
        "`chunk_rows`": block.rows,
        "the number of priors": 0 if problem.prior_V is None else 1,
        "the number of class weights": 0 if weight_V is None else len(weight_V),
        "the sum of `weight`": 0.0 if weight_V is None else weight_V.double().sum(),
        "the dimensions of `target`": target.dim(),
        "`ignore_index`": problem.ignore_index if indexed else 0,
        "the sum of `target`": target.double().sum() if indexed else 0.0,
        "the number of wanted gradients": sum(wanted),
    }


class ShardedSweep(Sweep):
    """A pass over the rows of a problem that shares its classes with other ranks."""

    def __init__(self, problem: Problem, wanted: Wanted, scale_B: Tensor, ranks: Ranks, shares: Shares) -> None:
        self.ranks, self.shares, self.is_empty = ranks, shares, not len(problem.w_VD)
        if self.is_empty:
            problem = _with_one_class_left_out(problem)
        super().__init__(problem, wanted, scale_B)
        self.width = shares.largest

    def _targets(self, rows: slice) -> Targets:
        problem, shares, smoothing = self.problem, self.shares, self.problem.label_smoothing
        share_V = torch.ones_like(self.w_norm_V) if problem.weight_V is None else problem.weight_V[shares.own]
        if self.is_empty:
            share_V = torch.zeros_like(self.w_norm_V)
        if not self.indexed:
            smooth_CV = problem.target[rows] * (1 - smoothing) + smoothing / shares.classes
            return Targets(None, None, smooth_CV.new_zeros(len(smooth_CV)), smooth_CV * share_V)
        target_C = problem.target[rows]
        kept_C = target_C != problem.ignore_index
        elsewhere_C = ~(kept_C & (target_C >= shares.own.start) & (target_C < shares.own.stop))
        index_C = (target_C - shares.first).masked_fill(elsewhere_C, 0)
        sparse_C = counted(problem._replace(target=target_C)).masked_fill(elsewhere_C, 0.0) * (1 - smoothing)
        dense_CV = kept_C[:, None] * (share_V * (smoothing / shares.classes)) if smoothing else None
        return Targets(index_C, ~kept_C, sparse_C, dense_CV, elsewhere_C)

    def _raise_hits(self, s_CV: Tensor, rows_P: Tensor) -> None:
        nearest_C = torch.full_like(s_CV[:, 0], torch.inf) if self.is_empty else s_CV.amin(1)
        if len(rows_P) and not self.is_empty:
            nearest_C[rows_P] = _nearest(s_CV[rows_P])
        nearest_C = self.ranks.least(nearest_C)
        if len(rows_P):
            s_CV[rows_P] += _lift(s_CV[rows_P], nearest_C[rows_P])

    def _top(self, t_C: Tensor, column_C: Tensor) -> Top:
        prior_C = None if self.prior_V is None else self.prior_V[column_C]
        best = _best_of_all(t_C, prior_C, column_C + self.shares.first, self.half_exponent, self.ranks)
        own_C = best.rank_C == self.ranks.rank
        (lines,) = own_C.nonzero(as_tuple=True)
        prior_C = None if self.prior_V is None else best.prior_C
        return Top(best.t_C, prior_C, best.index_C, column_C.masked_fill(~own_C, -1), lines, column_C[lines])

    def _summed(self, *values_C: Tensor) -> tuple[Tensor, ...]:
        return self.ranks.sum(torch.stack(values_C)).unbind()

    def _best_classes(self) -> Tensor:
        if self.indexed:
            return self.problem.target
        share_B, index_B = self.problem.target.max(1)
        share_RB, index_RB = (self.ranks.gather(each) for each in (share_B, index_B + self.shares.first))
        return _of_rank(index_RB, share_RB.argmax(0))


def _with_one_class_left_out(problem: Problem) -> Problem:
    """Give a rank without classes one that the prior leaves out, because reductions need at least one column."""
    w_VD, target = problem.w_VD, problem.target
    return problem._replace(
        w_VD=w_VD.new_zeros(1, w_VD.shape[1]),
        prior_V=w_VD.new_full((1,), -torch.inf),
        target=target.new_zeros(len(target), 1) if target.is_floating_point() else target,
    )


class _Best(NamedTuple):
    """The most probable of all classes, per row: its distance, its prior, its number, and the rank that has it."""

    t_C: Tensor
    prior_C: Tensor
    index_C: Tensor
    rank_C: Tensor


def _best_of_all(
    t_C: Tensor, prior_C: Tensor | None, index_C: Tensor, half_exponent: float | Tensor, ranks: Ranks
) -> _Best:
    """Find the most probable of all classes from that of each rank. In float64, which holds every class number."""
    prior_C = torch.zeros_like(t_C) if prior_C is None else prior_C
    t_RC, prior_RC, index_RC = ranks.gather(torch.stack([t_C.double(), prior_C.double(), index_C.double()])).unbind(1)
    rank_C = (prior_RC - half_exponent * t_RC.log()).argmax(0)
    t, prior, index = (_of_rank(each_RC, rank_C) for each_RC in (t_RC, prior_RC, index_RC))
    return _Best(t.to(t_C.dtype), prior.to(t_C.dtype), index.long(), rank_C)


def _of_rank(values_RC: Tensor, rank_C: Tensor) -> Tensor:
    return values_RC.gather(0, rank_C[None]).squeeze(0)


def _nearest(s_BV: Tensor) -> Tensor:
    """The smallest squared distance of each row that is not zero, (B,)."""
    return s_BV.masked_fill(s_BV == 0, torch.inf).amin(1)


def _lift(s_BV: Tensor, nearest_B: Tensor) -> Tensor:
    """What raises distances of zero to the floor; `nearest_B` is over the classes of all ranks. See `eager`."""
    floor_B = hit_floor(s_BV.dtype) * nearest_B.nan_to_num(nan=torch.nan, posinf=0.0)
    return (floor_B.clamp(min=absolute_floor(s_BV.dtype))[:, None] - s_BV).clamp(min=0)


class Sharded(NamedTuple):
    """Rows, and this rank's centers and priors, for functions of all classes."""

    x_BD: Tensor
    w_VD: Tensor
    exponent: float | Tensor
    softening: float
    prior_V: Tensor | None
    ranks: Ranks

    def agree(self) -> Shares:
        """Return how many classes each rank holds, and refuse ranks that do not share their settings."""
        exponent = self.exponent.detach() if isinstance(self.exponent, Tensor) else self.exponent
        shared: dict[str, float | Tensor] = {"`exponent`": exponent, "`softening`": self.softening}
        shared |= {"the number of vectors": len(self.x_BD), "the number of features": self.x_BD.shape[1]}
        shared["the number of priors"] = 0 if self.prior_V is None else 1
        return self.ranks.agree(shared, len(self.w_VD), self.w_VD)


def logits(problem: Sharded) -> tuple[Tensor, Shares]:
    """This rank's columns of the logits of all classes, (B, V), in plain torch operations, and the shares of all."""
    shares, is_empty = problem.agree(), not len(problem.w_VD)
    t_BV = _softened_distance(problem, is_empty=is_empty)
    return eager.logits(t_BV, problem.exponent, problem.prior_V), shares


def log_probabilities(problem: Sharded) -> tuple[Tensor, Shares]:
    """This rank's columns of the log-probabilities of all classes, as `logits` returns them."""
    shares = problem.agree()
    if len(problem.w_VD):
        return _log_probabilities(problem, shares.first), shares
    # A rank without classes takes part in all exchanges, forward and backward: it computes with a class of no effect.
    w_VD, prior_V = problem.w_VD, problem.prior_V
    alone = problem._replace(
        w_VD=w_VD.new_zeros(1, w_VD.shape[1]) + w_VD.sum(),
        prior_V=None if prior_V is None else prior_V.new_zeros(1) + prior_V.sum(),
    )
    return _log_probabilities(alone, shares.first, is_empty=True)[:, :0], shares


def _softened_distance(problem: Sharded, *, is_empty: bool) -> Tensor:
    s_BV = squared_distance_matrix(problem.x_BD, problem.w_VD)
    with torch.no_grad():
        nearest_B = problem.ranks.least(s_BV.new_full((len(s_BV),), torch.inf) if is_empty else _nearest(s_BV))
        lift_BV = _lift(s_BV, nearest_B)
    return s_BV + lift_BV + problem.softening


def _log_probabilities(problem: Sharded, first: int, *, is_empty: bool = False) -> Tensor:
    """``eager.log_probabilities``, with the most probable class and the sum over classes found among all ranks."""
    _, _, exponent, _, prior_V, ranks = problem
    t_BV = _softened_distance(problem, is_empty=is_empty)
    with torch.no_grad():
        column_B1 = (t_BV.argmin(1) if prior_V is None else eager.logits(t_BV, exponent, prior_V).argmax(1))[:, None]
        prior_B = None if prior_V is None else prior_V[column_B1].squeeze(1)
        t_B = t_BV.gather(1, column_B1).squeeze(1)
        if is_empty:
            t_B = torch.full_like(t_B, torch.inf)
        best = _best_of_all(t_B, prior_B, column_B1.squeeze(1) + first, 0.5 * exponent, ranks)
        own_B1 = (best.rank_C == ranks.rank)[:, None]
        hidden_BV = is_empty | (own_B1 & (torch.arange(t_BV.shape[1], device=t_BV.device) == column_B1))
    log_top_B1 = ranks.sum(t_BV.gather(1, column_B1).log().masked_fill(~own_B1, 0.0))
    difference_BV = t_BV.log() - log_top_B1
    with torch.no_grad():
        gain_BV = ((t_BV / best.t_C[:, None]).log() - difference_BV).nan_to_num(0.0, 0.0, 0.0)
    u_BV = 0.5 * exponent * (difference_BV + gain_BV)
    if prior_V is not None:
        u_BV = u_BV + (ranks.sum(prior_V[column_B1].masked_fill(~own_B1, 0.0)) - prior_V)
    u_BV = u_BV.masked_fill(hidden_BV, 0.0)
    rest_B1 = ranks.sum((-u_BV).exp().masked_fill(hidden_BV, 0.0).sum(1, keepdim=True))
    return -(u_BV + rest_B1.log1p())
