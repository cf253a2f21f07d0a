"""The loss in blocks of classes: only (B, C) of the (B, V) matrix is in memory at a time, also for gradients.

Per row, with u_j as in `statistics`, q_j = exp(-u_j), Z = sum_j q_j and a target distribution T of mass tau,

    loss = sum_j T_j u_j + tau log Z          G_j = dloss/dt_j = (n / (2 t_j)) (T_j - tau q_j / Z)
    dloss/db_j = tau q_j / Z - T_j            dloss/dn = sum_j (T_j - tau q_j / Z) log(t_j / t_top) / 2

Some pairs would cancel in the products G W and G^T X: near pairs, the target and the most probable class. They are left
out of the products and added as G (x - w). The backward pass computes the distances of each block again.

Inside `jax.shard_map` each device may hold a part of the classes. What it found is merged over the devices once.

Shape suffixes: B rows, C classes of a block, V classes, D features.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from harmax.jax.dense import absolute_floor, log_ratio
from harmax.jax.distance import Gradients, Vectors, block_distances, block_starts, pair_step, squared_norm
from harmax.jax.meshes import Split, first_class, gathered, summed_like, total, varying
from harmax.jax.problem import LossOutput, Problem, at_class
from harmax.jax.statistics import (
    Classes,
    RowStatistics,
    block_found,
    distances_behind,
    finished,
    merged_found,
    nothing_found,
    softened,
)


class Plan(NamedTuple):
    """What is known before anything is computed."""

    softening: float
    chunk_classes: int | None
    split: Split


class Target(NamedTuple):
    """The target class of each row, next to its most probable one."""

    t_B: Array
    u_B: Array
    """How far its logit is below the largest one; 0 where it is the largest."""
    dense_B: Array
    """The dense part of the target on it."""


class Kept(NamedTuple):
    """What the backward pass needs."""

    problem: Problem
    top: RowStatistics
    zero_B: Array
    target: Target | None


def rows(problem: Problem, plan: Plan) -> LossOutput:
    """The loss and the log-sum-exp of each row, and its most probable class."""
    loss_B, lse_B, top_B = _rows(plan, problem)
    return LossOutput(loss_B, lax.stop_gradient(lse_B), top_B)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows(plan: Plan, problem: Problem) -> LossOutput:
    return _forward(plan, problem)[0]


def _forward(plan: Plan, problem: Problem) -> tuple[LossOutput, Kept]:
    half, vectors = 0.5 * problem.exponent, Vectors.of(problem.x_BD, problem.w_VD)
    places, size = _places(problem, plan)

    def body(found: Any, place: tuple[Array, Array]) -> tuple[Any, None]:
        s_BC, _ = block_distances(vectors, place[0], size)
        classes = _classes(problem, plan, *place, size)
        return merged_found(found, block_found(s_BC, classes, plan.softening, half), half), None

    start = varying(nothing_found(vectors.norm_B), problem, places)
    here = lax.scan(body, start, places)[0]
    first, *others = gathered(here, plan.split)
    for other in others:
        first = merged_found(first, other, half)
    top, zero_B = finished(first, plan.softening, half)
    target = None if problem.index_B is None else _target(problem, plan, top, zero_B)
    log_z_B = jnp.log1p(top.rest_B)
    loss_B = top.pull_B + _mass(problem, top) * log_z_B
    if target is not None:
        loss_B = loss_B + jnp.where(target.u_B == 0, 0, problem.sparse_B * target.u_B)
        loss_B = jnp.where(problem.index_B == -1, 0, loss_B)  # also where an ignored row holds a NaN
    lse_B = log_z_B - half * jnp.log(top.t_B) + top.prior_B
    return LossOutput(loss_B, lse_B, top.top_B), Kept(problem, top, zero_B, target)


def _mass(problem: Problem, top: RowStatistics) -> Array:
    return problem.sparse_B + top.share_B + top.off_B


def _places(problem: Problem, plan: Plan) -> tuple[tuple[Array, Array], int]:
    """The first class of each block, and the first one that was not in the block before."""
    starts, size = block_starts(len(problem.x_BD), len(problem.w_VD), plan.chunk_classes)
    return (starts, jnp.concatenate([jnp.zeros(1, starts.dtype), starts[:-1] + size])), size


def _classes(problem: Problem, plan: Plan, start: Array, new_from: Array, size: int) -> Classes:
    number_C = start + jnp.arange(size)
    new_C = number_C >= new_from
    prior_C = None if problem.prior_V is None else lax.dynamic_slice_in_dim(problem.prior_V, start, size)
    dense_BC = None
    if problem.dense is not None:
        factor_B, shares = problem.dense
        dense_BC = jnp.where(new_C, factor_B[:, None] * lax.dynamic_slice_in_dim(shares, start, size, 1), 0)
    return Classes(number_C + first_class(plan.split, len(problem.w_VD)), new_C, prior_C, dense_BC)


def _target(problem: Problem, plan: Plan, top: RowStatistics, zero_B: Array) -> Target:
    """Look at the target class of each row on the device that holds it."""
    index_B, split = jnp.asarray(problem.index_B), plan.split
    place_B, here_B = _held(index_B, problem, plan)
    s_B = total(jnp.where(here_B, squared_norm(problem.x_BD - problem.w_VD[place_B]), 0), split)
    t_B = jnp.where(s_B == 0, zero_B, jnp.maximum(s_B, absolute_floor(s_B.dtype)) + plan.softening)
    u_B = 0.5 * problem.exponent * log_ratio(t_B, top.t_B) + top.prior_B
    if problem.prior_V is not None:
        u_B = u_B - at_class(problem.prior_V, index_B, split)
    u_B = jnp.where(index_B == top.top_B, 0, u_B)
    dense_B = jnp.zeros_like(s_B)
    if problem.dense is not None:
        factor_B, shares = problem.dense
        dense_B = factor_B * at_class(shares[0], index_B, split)
    return Target(t_B, u_B, dense_B)


def _held(index_B: Array, problem: Problem, plan: Plan) -> tuple[Array, Array]:
    """The row of each class among the centers of this device, and whether it has one."""
    place_B = index_B - first_class(plan.split, len(problem.w_VD))
    here_B = (place_B >= 0) & (place_B < len(problem.w_VD))
    return jnp.where(here_B, place_B, 0), here_B


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gradients(plan: Plan, kept: Kept, scale_B: Array) -> tuple[Array, Array, Array, Array | None]:
    """The gradients of x, w, the exponent and the prior, given the gradient of each row's loss."""
    problem, top, zero_B, target = kept
    half, vectors = 0.5 * problem.exponent, Vectors.of(problem.x_BD, problem.w_VD)
    places, size = _places(problem, plan)
    share_B = _mass(problem, top) / (1 + top.rest_B)

    def body(sums: tuple[Gradients, Array, Array], place: tuple[Array, Array]) -> tuple[Any, None]:
        gradients, exponent_B, prior_V = sums
        s_BC, block = block_distances(vectors, place[0], size)
        classes = _classes(problem, plan, *place, size)
        prior_C = classes.finite_prior(s_BC.dtype)
        t_BC = softened(s_BC, classes, plan.softening)
        t_BC = jnp.where((s_BC == 0) & ~classes.left_out(), zero_B[:, None], t_BC)
        t_B1 = top.t_B[:, None]
        u_BC = distances_behind(t_BC, t_B1, top.prior_B[:, None], prior_C, half)
        excess_BC = share_B[:, None] * jnp.exp(-u_BC)
        if classes.dense_BC is not None:
            excess_BC = excess_BC - classes.dense_BC
        apart_BC = classes.number_C != top.top_B[:, None]
        if problem.index_B is not None:
            apart_BC &= classes.number_C != problem.index_B[:, None]
        excess_BC = jnp.where(apart_BC & classes.new_C, excess_BC, 0)
        gradients = gradients.with_block(vectors, block, -half * scale_B[:, None] * excess_BC / t_BC)
        stretch_BC = jnp.where(excess_BC == 0, 0, excess_BC * log_ratio(t_BC, t_B1))
        exponent_B = exponent_B - 0.5 * scale_B * stretch_BC.sum(1)
        before_C = lax.dynamic_slice_in_dim(prior_V, place[0], size)
        prior_V = lax.dynamic_update_slice_in_dim(
            prior_V, before_C + (scale_B[:, None] * excess_BC).sum(0), place[0], 0
        )
        return (gradients, exponent_B, prior_V), None

    start = Gradients.zeros(vectors), jnp.zeros_like(scale_B), jnp.zeros_like(problem.w_VD[:, 0])
    sums = lax.scan(body, varying(start, problem, scale_B, places), places)[0]
    (dx_BD, dw_VD), exponent_B, dprior_V = sums

    off_B = top.off_B
    pairs = []
    if target is not None and problem.index_B is not None:
        other_B = problem.index_B != top.top_B
        off_B = off_B + jnp.where(other_B, problem.sparse_B, 0)
        lead_B = problem.sparse_B + target.dense_B - share_B * jnp.exp(-target.u_B)
        pairs.append((jnp.where(other_B, lead_B, 0), target.t_B, problem.index_B))
    # 1 - p of the most probable class is a sum of small terms: subtracting from 1 would lose it.
    pairs.append((share_B * top.rest_B - off_B, top.t_B, top.top_B))
    for lead_B, t_B, index_B in pairs:
        place_B, here_B = _held(index_B, problem, plan)
        lead_B = jnp.where(here_B, scale_B * lead_B, 0)
        step_BD = pair_step(half * lead_B / t_B, problem.x_BD - problem.w_VD[place_B])
        dx_BD, dw_VD = dx_BD + step_BD, dw_VD.at[place_B].add(-step_BD)
        dprior_V = dprior_V.at[place_B].add(-lead_B)
        exponent_B = exponent_B + 0.5 * jnp.where(lead_B == 0, 0, lead_B * log_ratio(t_B, top.t_B))
    return dx_BD, dw_VD, exponent_B.sum(), None if problem.prior_V is None else dprior_V


def _refuse(plan: Plan, kept: Kept, scale_B: Array) -> Any:
    raise ValueError(
        "a second derivative of the harmonic loss must come from impl='eager', got impl='chunked', which computes only "
        "the first one; pass impl='eager'."
    )


def _backward(plan: Plan, kept: Kept, gradient: LossOutput) -> tuple[Problem]:
    problem = kept.problem
    scale_B = gradient.loss
    if problem.index_B is not None:
        scale_B = jnp.where(problem.index_B == -1, 0, scale_B)
    gradients = _gradients(plan, kept, scale_B)
    dx_BD, dw_VD, dexponent, dprior_V = jax.tree.map(summed_like, gradients, tuple(problem[:4]))
    nothing: Any = None
    return (Problem(dx_BD, dw_VD, dexponent, dprior_V, nothing, nothing, nothing),)


_rows.defvjp(_forward, _backward)
_gradients.defvjp(_refuse, lambda plan, kept, gradients: (None, None))
