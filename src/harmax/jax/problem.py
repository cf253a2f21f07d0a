"""What both implementations of the loss take and return. Shape suffixes: B rows, V classes, D features."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from harmax.jax.meshes import Split, first_class, total


class LossOutput(NamedTuple):
    """The loss, and per row the log-sum-exp of the logits and whether the most probable class is the target."""

    loss: Array
    logsumexp: Array
    hit: Array


class Problem(NamedTuple):
    """One loss to compute: flattened arrays of one dtype, float32 or float64."""

    x_BD: Array
    w_VD: Array
    exponent: Array
    """The power of the distance, 0-d."""
    prior_V: Array | None
    """The logarithm of a weight per class. -inf leaves the class out."""
    index_B: Array | None
    """The target class, counted over all devices; -1 where the row does not count. None for class probabilities."""
    sparse_B: Array
    """The mass of the target on that class."""
    dense: tuple[Array, Array] | None
    """The mass of the target on all classes, if any: a factor per row, (B,), and shares, (1, V) or (B, V)."""


def at_class(values_V: Array, index_B: Array, split: Split) -> Array:
    """Take the value of each row's class, (B, ...), which one of the devices holds; 0 for an index that none holds."""
    place_B = index_B - first_class(split, len(values_V))
    here_B = (place_B >= 0) & (place_B < len(values_V))
    found = values_V[jnp.clip(place_B, 0, len(values_V) - 1)]
    return total(jnp.where(here_B.reshape(-1, *[1] * (found.ndim - 1)), found, 0), split)


def sparse_problem(
    x_BD: Array,
    w_VD: Array,
    exponent: Array,
    prior_V: Array | None,
    target_B: Array,
    weight_V: Array | None,
    ignore_index: int,
    label_smoothing: float,
    split: Split,
) -> tuple[Problem, Array]:
    """The problem of class indices, and the weight of each row in the mean, (B,)."""
    kept_B = target_B != ignore_index
    # A compiled function cannot raise an error, so an index that is no class makes a NaN.
    wrong_B = kept_B & ((target_B < 0) | (target_B >= split.classes))
    index_B = jnp.where(kept_B, jnp.where(wrong_B, 0, target_B), -1)
    count_B = kept_B.astype(x_BD.dtype)
    if weight_V is not None:
        count_B = jnp.where(kept_B, at_class(weight_V, index_B, split), 0)
    count_B = jnp.where(wrong_B, jnp.nan, count_B)
    dense = None
    if label_smoothing:
        shares_V = jnp.ones(len(w_VD), x_BD.dtype) if weight_V is None else weight_V
        dense = jnp.where(kept_B, label_smoothing / split.classes, 0.0).astype(x_BD.dtype), shares_V[None]
    sparse_B = count_B * (1 - label_smoothing)
    return Problem(x_BD, w_VD, exponent, prior_V, index_B, sparse_B, dense), count_B


def dense_problem(
    x_BD: Array,
    w_VD: Array,
    exponent: Array,
    prior_V: Array | None,
    target_BV: Array,
    weight_V: Array | None,
    label_smoothing: float,
    split: Split,
) -> tuple[Problem, Array]:
    """The problem of class probabilities, and the weight of each row in the mean, (B,)."""
    if label_smoothing:
        target_BV = target_BV * (1 - label_smoothing) + label_smoothing / split.classes
    if weight_V is not None:
        target_BV = target_BV * weight_V
    one_B = jnp.ones(len(x_BD), x_BD.dtype)
    return Problem(x_BD, w_VD, exponent, prior_V, None, jnp.zeros_like(one_B), (one_B, target_BV)), one_B


def without_gradient(value: Array, message: str) -> Array:
    """Return an array whose gradient is refused with a message."""

    @jax.custom_vjp
    def same(value: Array) -> Array:
        return value

    def refuse(value: Array) -> tuple[Array, None]:
        raise ValueError(message)

    same.defvjp(refuse, lambda kept, gradient: (gradient,))
    return same(value)
