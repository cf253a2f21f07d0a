"""The prior as kernels read it: per class, relative to the largest, with the factor of its squared distances."""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from harmax.kernels.triton import tiles
from harmax.kernels.triton.arithmetic import LOG2_E, log2_stretch, stretch
from harmax.kernels.triton.launch import Launcher, programs

BLOCK = 1024


class PriorTables(NamedTuple):
    """Tables of the prior b, padded as other tables of classes are."""

    power_V: Tensor
    """(b - max b) log2(e), at most 0: the weight as a power of two. 0 beyond the last class."""
    factor_V: Tensor
    """c = exp(2 (max b - b) / n), from 1 to e^60; infinite for a class that is left out. 1 beyond the last class."""
    stretch_V: Tensor
    """log2(c); not used where c is infinite. 0 beyond the last class."""
    top: Tensor
    """max b, 0-d."""


def make_tables(launch: Launcher, prior_V: Tensor, exponent: Tensor) -> PriorTables:
    """Make the tables of a prior in float32."""
    classes, padded = len(prior_V), tiles.pitch(len(prior_V))
    power_V, factor_V, stretch_V = prior_V.new_empty(3, padded).unbind()
    tables = PriorTables(power_V, factor_V, stretch_V, prior_V.amax())
    launch(
        prepare_prior,
        programs(padded, BLOCK),
        B=prior_V,
        TOP=tables.top,
        EXPONENT=exponent,
        POWER=tables.power_V,
        FACTOR=tables.factor_V,
        STRETCH=tables.stretch_V,
        classes=classes,
        padded=padded,
        BN=BLOCK,
    )
    return tables


def weighted_sum(prior_V: Tensor, tables: PriorTables, share_V: Tensor) -> Tensor:
    """``sum_j share_j (b_j - max b)``. A class without a share counts 0, even if it is left out."""
    return (share_V * (prior_V - tables.top)).masked_fill(share_V == 0, 0.0).sum()


@triton.jit
def prepare_prior(B, TOP, EXPONENT, POWER, FACTOR, STRETCH, classes, padded, BN: tl.constexpr):
    """Write the tables of some classes."""
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    half = 0.5 * tl.load(EXPONENT)
    power = (tl.load(B + j, mask=j < classes, other=0.0) - tl.load(TOP)) * LOG2_E
    power = tl.where(j < classes, power, 0.0)
    tl.store(POWER + j, power, mask=j < padded)
    tl.store(FACTOR + j, stretch(power, half), mask=j < padded)
    tl.store(STRETCH + j, log2_stretch(power, half), mask=j < padded)
