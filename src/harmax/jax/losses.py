"""Losses of log-probabilities, one per example, as optax has them for logits."""

import jax.numpy as jnp
from jax import Array

from harmax.jax.checks import ArrayLike, check_array, check_floating, check_indices


def negative_log_likelihood(log_probabilities: ArrayLike, labels: ArrayLike) -> Array:
    r"""Return the loss of each example from the output of a `HarmonicHead`.

    .. math:: \ell_i = -\sum_j T_{ij} \log p_{ij}

    It is `optax.softmax_cross_entropy` (or its form for integer labels) without the normalization, which the head has
    done already. So a small loss keeps its relative precision.

    Args:
        log_probabilities: (..., V).
        labels: class indices, (...), of any integer dtype, or class probabilities, (..., V). Inside jit the loss of an
            index out of range is a NaN.

    Returns:
        Losses, (...).

    >>> negative_log_likelihood(jnp.log(jnp.array([[0.25, 0.75], [0.5, 0.5]])), jnp.array([0, 1]))
    Array([1.3862944, 0.6931472], dtype=float32)
    """
    check_floating("log_probabilities", log_probabilities)
    check_array("labels", labels)
    log_p = jnp.asarray(log_probabilities)
    indexed = jnp.issubdtype(labels.dtype, jnp.integer)
    wanted = log_p.shape[:-1] if indexed else log_p.shape
    if not log_p.ndim or labels.shape != wanted:
        raise ValueError(
            f"`labels` must have shape {wanted} to match `log_probabilities` {log_p.shape}, got {labels.shape}; give "
            "one class index per example, or one probability per class."
        )
    if not indexed:
        check_floating("labels", labels)
        # A class without a share costs nothing, also where it has no probability.
        return -jnp.where(labels == 0, 0, labels * jnp.where(labels == 0, 0, log_p)).sum(-1)
    check_indices("labels", labels, log_p.shape[-1], "check them and the number of classes of the head.")
    index = jnp.asarray(labels)[..., None]
    loss = -jnp.take_along_axis(log_p, index, -1, mode="clip")
    return jnp.where((index >= 0) & (index < log_p.shape[-1]), loss, jnp.nan)[..., 0]
