"""The tables that kernels share: what each one holds, its columns by name, and the names that kernels use.

A table of several numbers per row is stored column by column: (columns, rows). Kernels read column C of row i at
``TABLE + C * stride + i``. Every parameter of a kernel has one meaning everywhere; it is explained here.

Shape suffixes: V classes, D features, R rows (all of them or a block).
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from harmax.kernels.eager import absolute_floor, hit_floor
from harmax.kernels.problem import Problem, Wanted
from harmax.kernels.triton import launch, tiles
from harmax.kernels.triton.launch import Arguments
from harmax.kernels.triton.layout import Layout
from harmax.kernels.triton.operands import Operand
from harmax.kernels.triton.prior import PriorTables

# STATE (splits, STATE_SIZE, R): statistics over the wrong classes that a split has seen so far.
STATE_LEAST = tl.constexpr(0)  # smallest t of a positive s
STATE_TOTAL = tl.constexpr(1)  # sum of q
STATE_DOT = tl.constexpr(2)  # sum of q log2(t / ref)
STATE_SHARE_LOG = tl.constexpr(3)  # sum of share log2(t / t_c)
STATE_BEATEN = tl.constexpr(4)  # 1 if a wrong class is nearer than the target
STATE_HITS = tl.constexpr(5)  # number of distances of exactly zero
STATE_SHARE_HITS = tl.constexpr(6)  # sum of share over these hits
STATE_SIZE = tl.constexpr(7)

# HITS (splits, HIT_SIZE, R), with a prior only: the smallest t, and statistics over distances of exactly zero.
HIT_NEAREST = tl.constexpr(0)  # smallest t of a positive s, without the factor of its class
HIT_LEAST = tl.constexpr(1)  # smallest factor of a hit
HIT_TOTAL = tl.constexpr(2)  # sum over hits of (HIT_LEAST / factor)^h
HIT_SIZE = tl.constexpr(3)

# TERMS (TERM_SIZE, R): the terms of a row's gradient weights.
TERM_INVERSE = tl.constexpr(0)  # 1 / ref
TERM_FLOOR = tl.constexpr(1)  # the value that replaces smaller squared distances
TERM_FACTOR = tl.constexpr(2)  # factor of (ref / t)^(h + 1) in G; with smoothing, factor of (ref / t)^h in p
TERM_SCALE = tl.constexpr(3)  # the upstream gradient times h, with smoothing only
TERM_TARGET_G = tl.constexpr(4)  # G of the target
TERM_TAU = tl.constexpr(5)  # mass of the row's target distribution
TERM_SIZE = tl.constexpr(6)
TERM_MASS = tl.constexpr(6)  # only for the prior's gradient: factor of (ref / t)^h in it
TERM_TARGET_PULL = tl.constexpr(7)  # only for the prior's gradient: the target's part in it

# FAR (FAR_SIZE, R): the same for rows without near pairs, as the main pass reads it. Neutral for the other rows.
FAR_INVERSE = tl.constexpr(0)  # 1 / ref
FAR_SOFT = tl.constexpr(1)  # |x|^2 + a, divided by ref if FAST
FAR_TWICE = tl.constexpr(2)  # twice the factor of x, divided by ref if FAST
FAR_FACTOR = tl.constexpr(3)  # as TERM_FACTOR
FAR_TARGET_G = tl.constexpr(4)  # G of the target as rounded; 0 if the pair is listed
FAR_TARGET = tl.constexpr(5)  # the target, as the bits of an integer
FAR_SIZE = tl.constexpr(6)
FAR_REFERENCE = tl.constexpr(6)  # only for the prior's gradient: ref
FAR_TARGET_PULL = tl.constexpr(7)  # only for the prior's gradient: G t of the target
PRIOR_TERMS = tl.constexpr(2)  # columns of TERMS, and of FAR, that only the prior's gradient needs

# SUMS (SUM_SIZE, R): sums of a row's gradient weights.
SUM_ROUNDED = tl.constexpr(0)  # as they were written
SUM_EXACT = tl.constexpr(1)  # before rounding
SUM_SIZE = tl.constexpr(2)

FLOOR, TINY = hit_floor(torch.float32), absolute_floor(torch.float32)

TORCH_TO_TRITON = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


def aligned(v: Tensor) -> Tensor:
    """The same numbers, contiguous, at an address that kernels expect."""
    v = v.contiguous()
    return v if v.data_ptr() % 16 == 0 else v.clone()


@dataclass(eq=False)
class Rows:
    """Per-row tables used by the kernels, for all rows or for one block."""

    x_RD: Tensor
    norm_R: Tensor
    """Squared norm of x as it is multiplied."""
    factor_R: Tensor
    """Undoes the scale with which x is multiplied."""
    target_R: Tensor
    scale_R: Tensor
    """Upstream gradient of the row's loss."""
    target_distance_R: Tensor
    """Exact squared distance to the target."""
    state: Tensor
    near_row: Tensor
    """(splits, R): 1 if a split has found a near pair in the current block, 2 if it found one in a block before."""
    terms: Tensor
    far: Tensor
    sums: Tensor
    slot: Tensor
    """(R, SLOTS): classes of the listed pairs, whose gradients are exact. Slot 0 is the target's, or -1."""
    slot_g: Tensor
    """(R, SLOTS): G of the listed pairs."""
    count_R: Tensor
    """Slots in use; slot 0 always counts."""
    loss_R: Tensor
    logsumexp_R: Tensor
    hit_R: Tensor
    dexponent_R: Tensor
    target_power_R: Tensor | None
    """The prior's weight of the target, as a power of two."""
    hits: Tensor | None

    def __len__(self) -> int:
        return len(self.x_RD)

    @cached_property
    def arguments(self) -> Arguments:
        """Everything here under the names that kernels use."""
        return {
            "X": self.x_RD,
            "x_stride": self.x_RD.stride(0),
            "X_NORM": self.norm_R,
            "X_FACTOR": self.factor_R,
            "TARGET": self.target_R,
            "SCALE": self.scale_R,
            "TARGET_DISTANCE": self.target_distance_R,
            "STATE": self.state,
            "NEAR_ROW": self.near_row,
            "TERMS": self.terms,
            "FAR": self.far,
            "SUMS": self.sums,
            "SLOT": self.slot,
            "SLOT_G": self.slot_g,
            "COUNT": self.count_R,
            "LOSS": self.loss_R,
            "LSE": self.logsumexp_R,
            "HIT": self.hit_R,
            "DEXPONENT": self.dexponent_R,
            "TARGET_POWER": self.target_power_R,
            "HITS": self.hits,
            "rows": len(self),
            "stride": self.sums.stride(0),
        }

    def block(self, place: slice) -> "Rows":
        """Return views of some of the rows."""
        if place == slice(0, len(self)):
            return self
        columns_first = ("state", "near_row", "terms", "far", "sums", "hits")
        tables = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, v in tables.items():
            if v is not None:
                tables[name] = v[..., place] if name in columns_first else v[place]
        return Rows(**tables)


def new_rows(layout: Layout, problem: Problem, wanted: Wanted, x_BD: Tensor, operand: Operand, scale_B: Tensor) -> Rows:
    """Allocate the tables of all rows; `begin` fills them."""

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return x_BD.new_empty(shape, dtype=dtype)

    count, splits = layout.tokens, layout.splits
    extra = PRIOR_TERMS.value if wanted.prior else 0
    with_prior = problem.prior_V is not None
    return Rows(
        x_RD=x_BD,
        norm_R=operand.norm[:count],
        factor_R=operand.factor[:count],
        target_R=aligned(problem.target),
        scale_R=aligned(scale_B),
        target_distance_R=new(count),
        state=new(splits, STATE_SIZE.value, count),
        near_row=new(splits, count, dtype=torch.int32),
        terms=new(TERM_SIZE.value + extra, count),
        far=new(FAR_SIZE.value + extra, count),
        sums=new(SUM_SIZE.value, count),
        slot=new(count, tiles.SLOTS, dtype=torch.int32),
        slot_g=new(count, tiles.SLOTS),
        count_R=new(count, dtype=torch.int32),
        loss_R=new(count),
        logsumexp_R=new(count),
        hit_R=new(count, dtype=torch.bool),
        dexponent_R=new(count),
        target_power_R=new(count) if with_prior else None,
        hits=new(splits, HIT_SIZE.value, count) if with_prior else None,
    )


@dataclass(eq=False)
class Classes:
    """Per-class tables used by the kernels, padded to whole tiles where a pass reads them."""

    w_VD: Tensor
    norm_V: Tensor
    """Squared norm of w as it is multiplied; infinite beyond the last class."""
    factor_V: Tensor
    """Undoes the scale with which w is multiplied; 0 beyond the last class."""
    weight_V: Tensor | None
    """Class weights."""
    share_V: Tensor | None
    """The share of each class in a smoothed target."""
    share_sum: Tensor | None
    column_sum_V: Tensor
    """Sums of the gradient weights of each class, as rounded."""
    flag_V: Tensor
    """1 if a pair of this class is listed."""
    any_near: Tensor
    """1 if any row has a near pair."""
    prior: PriorTables | None
    prior_share: Tensor | None
    """Sum of the prior, relative to the largest, over the shares of a smoothed target."""
    dprior_V: Tensor | None
    """The gradient of the prior."""

    @cached_property
    def arguments(self) -> Arguments:
        """Everything here under the names that kernels use."""
        return {
            "W": self.w_VD,
            "w_stride": self.w_VD.stride(0),
            "W_NORM": self.norm_V,
            "W_FACTOR": self.factor_V,
            "WEIGHT": self.weight_V,
            "SHARE": self.share_V,
            "SHARE_SUM": self.share_sum,
            "COLUMN_SUM": self.column_sum_V,
            "FLAG": self.flag_V,
            "ANY_NEAR": self.any_near,
            "PRIOR_POWER": None if self.prior is None else self.prior.power_V,
            "PRIOR_FACTOR": None if self.prior is None else self.prior.factor_V,
            "PRIOR_STRETCH": None if self.prior is None else self.prior.stretch_V,
            "PRIOR_TOP": None if self.prior is None else self.prior.top,
            "PRIOR_SHARE": self.prior_share,
            "WITH_PRIOR": self.prior is not None,
            "WANT_PRIOR": self.dprior_V is not None,
            "WEIGHTED": self.weight_V is not None,
            "SMOOTHED": self.share_V is not None,
        }


def kernel_settings(problem: Problem, wanted: Wanted, layout: Layout) -> Arguments:
    """The settings of a problem under the names that kernels use."""
    assert isinstance(problem.exponent, Tensor)
    settings: dict[str, Any] = {
        "EXPONENT": aligned(problem.exponent.float()),
        "softening": problem.softening,
        "ignore_index": problem.ignore_index,
        "sparse": 1 - problem.label_smoothing,  # mass of a target on its own class
        "near": layout.near,
        "listed_near": layout.listed_near,
        "hit_floor": FLOOR,
        "tiny": TINY,
        "features": layout.features,
        "classes": layout.classes,
        "splits": layout.splits,
        "span": layout.span,
        "SLOTS": tiles.SLOTS,
        "BD": layout.width,
        "G_TYPE": TORCH_TO_TRITON[layout.weight_dtype],
        "DOT": wanted.exponent,
        # The hardware's logarithm is precise enough for float16 products. Triton's interpreter does not know it.
        "FAST": layout.product_dtype == torch.float16 and launch.is_compiled(problem.x_BD),
    }
    return settings
