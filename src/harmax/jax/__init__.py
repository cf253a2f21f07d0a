"""The harmonic loss and its head in JAX.

    from harmax.jax import harmonic_loss

    loss, gradients = jax.value_and_grad(harmonic_loss, argnums=(0, 1))(features, centers, labels)

Needs `pip install "harmax[jax]"`.
"""

from harmax.errors import needs

with needs("jax"):
    from harmax.jax.functional import (
        harmax,
        harmonic_log_probabilities,
        harmonic_logits,
        harmonic_loss,
        log_harmax,
        squared_distance,
    )
    from harmax.jax.heads import HarmonicHead
    from harmax.jax.losses import negative_log_likelihood
    from harmax.jax.problem import LossOutput

__all__ = [
    "HarmonicHead",
    "LossOutput",
    "harmax",
    "harmonic_log_probabilities",
    "harmonic_logits",
    "harmonic_loss",
    "log_harmax",
    "negative_log_likelihood",
    "squared_distance",
]
