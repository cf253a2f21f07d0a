"""What a set of classes does to each row, in a form in which two sets can be merged: blocks, and parts of devices.

Per row, with t the softened squared distances, b the prior, top the most probable class of the set, T the dense part of
the target, and u_j = (n/2) log(t_j / t_top) + b_top - b_j >= 0, a set is summed up by sum_{j != top} exp(-u_j) and
sum_j T_j u_j. All terms are positive, so nothing cancels.

Exact hits are a set of their own, because the distance that replaces zero follows from the nearest other center.

Shape suffixes: B rows, C classes of a block.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from harmax.jax.dense import absolute_floor, log_ratio, zero_distance


class RowStatistics(NamedTuple):
    """A set of classes, per row. A set without a class has t = inf."""

    t_B: Array
    """Softened squared distance of the most probable class."""
    prior_B: Array
    top_B: Array
    """The most probable class, counted over all devices."""
    rest_B: Array
    """``sum exp(-u)`` over the other classes."""
    pull_B: Array
    """``sum T u`` over all classes."""
    share_B: Array
    """T of the most probable class."""
    off_B: Array
    """``sum T`` over the other classes."""


class Found(NamedTuple):
    """A set of classes: those apart from each row, those exactly on it, and the smallest positive distance."""

    apart: RowStatistics
    hits: RowStatistics
    nearest_B: Array


def merged(one: RowStatistics, other: RowStatistics, half: Array) -> RowStatistics:
    """Sum up two sets as one; `half` is half of the exponent."""
    behind_B = half * log_ratio(other.t_B, one.t_B) + one.prior_B - other.prior_B
    swap_B = behind_B < 0
    top, low = (
        jax.tree.map(lambda a, b, swap_B=swap_B: jnp.where(swap_B, a, b), *pair)
        for pair in ((other, one), (one, other))
    )
    u_B = jnp.where(jnp.isinf(low.t_B), jnp.inf, jnp.abs(behind_B))
    mass_B = low.share_B + low.off_B
    return RowStatistics(
        top.t_B,
        top.prior_B,
        top.top_B,
        top.rest_B + jnp.exp(-u_B) * (1 + low.rest_B),
        top.pull_B + low.pull_B + _times(mass_B, u_B),
        top.share_B,
        top.off_B + mass_B,
    )


def merged_found(one: Found, other: Found, half: Array) -> Found:
    """Sum up two sets of classes as one."""
    return Found(
        merged(one.apart, other.apart, half),
        merged(one.hits, other.hits, half),
        jnp.minimum(one.nearest_B, other.nearest_B),
    )


def nothing_found(like_B: Array) -> Found:
    """Return the statistics of an empty set of classes."""
    zero_B = jnp.zeros_like(like_B)
    infinite_B = jnp.full_like(like_B, jnp.inf)
    none = RowStatistics(infinite_B, zero_B, jnp.zeros(like_B.shape, int), zero_B, zero_B, zero_B, zero_B)
    return Found(none, none, infinite_B)


def finished(found: Found, softening: float, half: Array) -> tuple[RowStatistics, Array]:
    """The statistics of all classes, and what replaced a squared distance of zero, (B,)."""
    zero_B = zero_distance(found.nearest_B) + softening
    hits = found.hits._replace(t_B=jnp.where(jnp.isinf(found.hits.t_B), jnp.inf, zero_B))
    return merged(found.apart, hits, half), zero_B


class Classes(NamedTuple):
    """The classes of a block."""

    number_C: Array
    """Counted over all devices."""
    new_C: Array
    """Whether the class was not in the block before."""
    prior_C: Array | None
    dense_BC: Array | None
    """The dense part of the target; 0 for a class that is not new."""

    def left_out(self) -> Array:
        """Classes that have no probability, (C,)."""
        return ~self.new_C if self.prior_C is None else ~self.new_C | (self.prior_C == -jnp.inf)

    def finite_prior(self, dtype: jnp.dtype) -> Array:
        """The prior, 0 for classes that are left out."""
        if self.prior_C is None:
            return jnp.zeros(self.number_C.shape, dtype)
        return jnp.where(self.prior_C == -jnp.inf, 0, self.prior_C)


def softened(s_BC: Array, classes: Classes, softening: float) -> Array:
    """Softened squared distances of classes that are not exactly hit; inf for classes that are left out."""
    t_BC = jnp.maximum(s_BC, absolute_floor(s_BC.dtype)) + softening
    return jnp.where(classes.left_out(), jnp.inf, t_BC)


def block_found(s_BC: Array, classes: Classes, softening: float, half: Array) -> Found:
    """Sum up the classes of a block, given their squared distances."""
    prior_C = classes.finite_prior(s_BC.dtype)
    hit_BC = (s_BC == 0) & ~classes.left_out()
    t_BC = jnp.where(hit_BC, jnp.inf, softened(s_BC, classes, softening))
    hit_t_BC = jnp.where(hit_BC, 1.0, jnp.inf).astype(s_BC.dtype)
    apart_BC = hits_BC = None
    if classes.dense_BC is not None:
        apart_BC, hits_BC = (jnp.where(mask, classes.dense_BC, 0) for mask in (~hit_BC, hit_BC))
    return Found(
        _summed_up(t_BC, prior_C, apart_BC, classes, half),
        _summed_up(hit_t_BC, prior_C, hits_BC, classes, half),
        jnp.where((s_BC > 0) & classes.new_C, s_BC, jnp.inf).min(1),
    )


def _summed_up(t_BC: Array, prior_C: Array, dense_BC: Array | None, classes: Classes, half: Array) -> RowStatistics:
    if classes.prior_C is None:
        place_B1 = t_BC.argmin(1)[:, None]
    else:
        place_B1 = (prior_C - half * jnp.log(t_BC)).argmax(1)[:, None]
    t_B1 = jnp.take_along_axis(t_BC, place_B1, 1)
    u_BC = distances_behind(t_BC, t_B1, prior_C[place_B1], prior_C, half)
    is_top_BC = jnp.arange(t_BC.shape[1]) == place_B1
    u_BC = jnp.where(is_top_BC, 0, u_BC)
    rest_B = jnp.where(is_top_BC, 0, jnp.exp(-u_BC)).sum(1)
    pull_B = share_B = off_B = jnp.zeros_like(rest_B)
    if dense_BC is not None:
        pull_B = _times(dense_BC, u_BC).sum(1)
        share_B = jnp.take_along_axis(dense_BC, place_B1, 1)[:, 0]
        off_B = jnp.where(is_top_BC, 0, dense_BC).sum(1)
    return RowStatistics(
        t_B1[:, 0], prior_C[place_B1[:, 0]], classes.number_C[place_B1[:, 0]], rest_B, pull_B, share_B, off_B
    )


def distances_behind(t_BC: Array, t_B1: Array, prior_B1: Array, prior_C: Array, half: Array) -> Array:
    """``u_j``: how far the logit of each class is below that of the most probable one."""
    return jnp.where(jnp.isinf(t_BC), jnp.inf, half * log_ratio(t_BC, t_B1) + prior_B1 - prior_C)


def _times(mass: Array, u: Array) -> Array:
    """``mass * u``, where a class without mass costs nothing, however far it is."""
    return jnp.where(mass == 0, 0, mass * u)
