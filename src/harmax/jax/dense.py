"""The specification: the harmonic loss in plain JAX operations, with the whole (B, V) matrix in memory.

JAX differentiates it. Shape suffixes: B rows, V classes, D features.
"""

import math

import jax.numpy as jnp
from jax import Array, lax

from harmax.jax.distance import squared_distance_matrix
from harmax.jax.problem import LossOutput, Problem


def hit_floor(dtype: jnp.dtype) -> float:
    """The value that replaces a squared distance of exactly zero, in units of the smallest positive one of its row."""
    return math.sqrt(float(jnp.finfo(dtype).tiny))


def absolute_floor(dtype: jnp.dtype) -> float:
    """The smallest squared distance used anywhere: 1 / s times any exponent stays finite."""
    return float(jnp.finfo(dtype).tiny) * 2**13


def zero_distance(nearest: Array) -> Array:
    """What replaces a squared distance of zero, from the smallest positive one of its row (inf if there is none)."""
    nearest = jnp.where(jnp.isinf(nearest), 0, nearest)
    return jnp.maximum(hit_floor(nearest.dtype) * nearest, absolute_floor(nearest.dtype))


def above_floor(s_BV: Array) -> Array:
    """Squared distances, (..., V), with exact zeros raised to a floor, so that logarithm and inverse are finite."""
    fixed_BV = lax.stop_gradient(s_BV)
    nearest_B1 = jnp.where(fixed_BV == 0, jnp.inf, fixed_BV).min(-1, keepdims=True)
    # Added, not clamped: the gradient is still that of the distance, which is zero where the distance is zero.
    return s_BV + jnp.maximum(zero_distance(nearest_B1) - fixed_BV, 0)


def softened_distance(x_BD: Array, w_VD: Array, softening: float) -> Array:
    """Squared distances, zeros raised to the floor, plus the softening, (B, V)."""
    return above_floor(squared_distance_matrix(x_BD, w_VD)) + softening


def logits(t_BV: Array, exponent: Array, prior_V: Array | None = None) -> Array:
    """``z = b - (n/2) log t`` from softened squared distances and the prior b, which is 0 if there is none."""
    z_BV = -0.5 * exponent * jnp.log(t_BV)
    return z_BV if prior_V is None else z_BV + prior_V


def log_ratio(t: Array, over: Array) -> Array:
    """``log(t / over)``: of the ratio, which is exact where two large logarithms cancel, unless it is out of range."""
    ratio = t / over
    sound = (ratio >= jnp.finfo(ratio.dtype).tiny) & (ratio < jnp.inf)
    return jnp.where(sound, jnp.log(jnp.where(sound, ratio, 1)), jnp.log(t) - jnp.log(over))


def log_probabilities(t_BV: Array, exponent: Array, prior_V: Array | None = None) -> tuple[Array, Array]:
    """``log p``, (B, V), exact in relative terms even where p is close to 1, and the most probable class, (B,).

    With top the most probable class and u_j = (n/2) log(t_j / t_top) + b_top - b_j >= 0,
    -log p_j = u_j + log1p(sum_{k != top} exp(-u_k)).
    """
    fixed_BV = lax.stop_gradient(t_BV)
    top_B = fixed_BV.argmin(1) if prior_V is None else logits(fixed_BV, exponent, prior_V).argmax(1)
    is_top_BV = jnp.arange(t_BV.shape[1]) == top_B[:, None]
    t_top_B1 = jnp.take_along_axis(t_BV, top_B[:, None], 1)
    difference_BV = jnp.log(t_BV) - jnp.log(t_top_B1)
    # The difference gives the gradient, which cannot overflow. The ratio gives the value.
    gain_BV = lax.stop_gradient(log_ratio(t_BV, t_top_B1) - difference_BV)
    u_BV = 0.5 * exponent * (difference_BV + jnp.where(jnp.isfinite(gain_BV), gain_BV, 0))
    if prior_V is not None:
        u_BV = u_BV + (prior_V[top_B][:, None] - prior_V)
    # The top class is a constant 0. Its gradient reaches t_top through the other classes, without cancellation.
    u_BV = jnp.where(is_top_BV, 0, u_BV)
    rest_B1 = jnp.where(is_top_BV, 0, jnp.exp(-u_BV)).sum(1, keepdims=True)
    return -(u_BV + jnp.log1p(rest_B1)), top_B


def rows(problem: Problem, softening: float) -> LossOutput:
    """The loss and the log-sum-exp of each row, and its most probable class."""
    t_BV = softened_distance(problem.x_BD, problem.w_VD, softening)
    log_p_BV, top_B = log_probabilities(t_BV, problem.exponent, problem.prior_V)
    loss_B = jnp.zeros(len(t_BV), t_BV.dtype)
    if problem.index_B is not None:
        place_B1 = jnp.maximum(problem.index_B, 0)[:, None]
        loss_B = -problem.sparse_B * jnp.take_along_axis(log_p_BV, place_B1, 1, mode="clip")[:, 0]
    if problem.dense is not None:
        factor_B, shares = problem.dense
        share_BV = factor_B[:, None] * shares
        cost_BV = -log_p_BV
        if problem.prior_V is not None:  # a class that the prior leaves out costs nothing without a share
            cost_BV = jnp.where((share_BV == 0) & (problem.prior_V == -jnp.inf), 0, cost_BV)
        loss_B = loss_B + (share_BV * cost_BV).sum(1)
    if problem.index_B is not None:  # also where an ignored row holds a NaN
        loss_B = jnp.where(problem.index_B == -1, 0, loss_B)
    top_B1 = top_B[:, None]
    z_B1 = logits(jnp.take_along_axis(t_BV, top_B1, 1), problem.exponent)
    lse_B = (z_B1 - jnp.take_along_axis(log_p_BV, top_B1, 1))[:, 0]
    if problem.prior_V is not None:
        lse_B = lse_B + problem.prior_V[top_B]
    return LossOutput(loss_B, lax.stop_gradient(lse_B), top_B)
