"""Checks of arrays, in the grammar of `harmax.checks`. Values are read only where they are known: not inside jit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from harmax.checks import check_log_weights, resolve_exponent

ArrayLike = Array | np.ndarray
DTYPES = ("float16", "bfloat16", "float32", "float64")


def check_array(name: str, array: Any) -> None:
    """Refuse anything but an array of jax or numpy."""
    if not isinstance(array, (jax.Array, np.ndarray, np.generic)):
        raise TypeError(
            f"`{name}` must be an array of jax or numpy, got {type(array).__module__.partition('.')[0]}."
            f"{type(array).__name__}; convert it with jax.numpy.asarray."
        )


def check_floating(name: str, array: Any) -> None:
    """Refuse anything but an array of one of `DTYPES`."""
    check_array(name, array)
    if array.dtype.name not in DTYPES:
        raise TypeError(
            f"`{name}` must be a float16, bfloat16, float32 or float64 array, got {array.dtype}; convert it with "
            ".astype(jax.numpy.float32)."
        )


def values_of(array: Any) -> np.ndarray | None:
    """The values of an array, or None where jax traces it."""
    return None if isinstance(array, jax.core.Tracer) else np.asarray(array)


def checked_vectors(input: Any, weight: Any, name: str) -> tuple[Array, Array]:
    """Check vectors and centers; return them as matrices of one dtype, float32 or float64."""
    check_floating("input", input)
    check_floating(name, weight)
    if weight.ndim != 2 or not weight.size:
        raise ValueError(
            f"`{name}` must have shape (classes, features) with at least one of each, got {weight.shape}; give one "
            "row per class."
        )
    if input.ndim < 1 or input.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"`input` must have shape (..., {weight.shape[1]}) to match `{name}` {weight.shape}, got {input.shape}; "
            "the last dimension holds the features."
        )
    dtype = jnp.promote_types(jnp.promote_types(input.dtype, weight.dtype), jnp.float32)
    return jnp.asarray(input, dtype).reshape(-1, input.shape[-1]), jnp.asarray(weight, dtype)


def checked_exponent(exponent: Any, in_features: int, dtype: Any) -> Array:
    """Return the exponent, 0-d; None means sqrt(in_features). One that is traced and not positive becomes a NaN."""
    if isinstance(exponent, (jax.Array, np.ndarray, np.generic)):
        if exponent.ndim or exponent.dtype.name not in DTYPES:
            raise ValueError(
                f"`exponent` must be a number or a 0-d floating array, got shape {exponent.shape} of "
                f"{exponent.dtype}; pass one exponent for all classes."
            )
        known, power = values_of(exponent), jnp.asarray(exponent, dtype)
        if known is None:
            return jnp.where(power > 0, power, jnp.nan)
        resolve_exponent(float(known), in_features)
        return power
    return jnp.asarray(resolve_exponent(exponent, in_features), dtype)


def check_class_weight(weight: Any, classes: int) -> None:
    """Refuse class weights that are not one real number per class."""
    if weight is None:
        return
    check_array("weight", weight)
    if not jnp.issubdtype(weight.dtype, jnp.integer) and weight.dtype.name not in (*DTYPES, "bool"):
        raise TypeError(
            f"`weight` must hold real numbers, got {weight.dtype}; convert it with .astype(jax.numpy.float32)."
        )
    if weight.shape != (classes,):
        raise ValueError(f"`weight` must have shape ({classes},), got {weight.shape}; give one factor per class.")


def checked_prior(prior: Any, classes: int, dtype: Any) -> Array | None:
    """Return the prior; refuse one that is not one log-weight per class."""
    if prior is None:
        return None
    check_floating("prior", prior)
    if prior.shape != (classes,):
        raise ValueError(f"`prior` must have shape ({classes},), got {prior.shape}; give one log-weight per class.")
    known = values_of(prior)
    if known is not None:
        check_log_weights(known)
    return jnp.asarray(prior, dtype)


def check_target(input: Any, target: Any, classes: int, ignore_index: Any) -> None:
    """Refuse targets that are neither one class index per row nor one probability per row and class."""
    check_array("target", target)
    if not hasattr(ignore_index, "__index__"):
        raise TypeError(f"`ignore_index` must be a whole number, got {ignore_index!r}; pass an int.")
    leading = input.shape[:-1]
    if not jnp.issubdtype(target.dtype, jnp.integer):
        check_floating("target", target)
        if target.shape != (*leading, classes):
            raise ValueError(
                f"`target` of class probabilities must have shape {(*leading, classes)} to match `input` "
                f"{input.shape} and {classes} classes, got {target.shape}; class indices must be whole numbers."
            )
        if ignore_index >= 0:
            raise ValueError(
                f"`ignore_index` must be left out with class probabilities, got {ignore_index}; fill the rows to "
                "ignore with zeros."
            )
    elif target.shape != leading:
        raise ValueError(
            f"`target` must have shape {leading} to match `input` {input.shape}, got {target.shape}; flatten both or "
            "neither."
        )


def check_indices(name: str, target: Any, classes: int, remedy: str, ignore_index: int | None = None) -> None:
    """Refuse class indices out of range, where they are known."""
    known = values_of(target)
    if known is None:
        return
    wrong = ((known < 0) | (known >= classes)) & (known != ignore_index)
    if wrong.any():
        others = "" if ignore_index is None else f" or ignore_index ({ignore_index})"
        raise ValueError(
            f"`{name}` must hold class indices from 0 to {classes - 1}{others}, got {known[wrong][0]}; {remedy}"
        )
