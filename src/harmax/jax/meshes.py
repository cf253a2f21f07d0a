"""Arrays inside `jax.shard_map`: which mesh axes they differ along, and sums over the parts of the classes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax


class Split(NamedTuple):
    """Where the classes of this device lie among all classes."""

    axis: str | None
    """The mesh axis that the classes are split along; None if they are not."""
    classes: int
    """The number of all classes, over all devices."""


def axes_of(array: Any) -> frozenset[str]:
    """The mesh axes along which an array differs between devices."""
    return frozenset(jax.typeof(array).manual_axis_type.varying)


def varying(tree: Any, *like: Any) -> Any:
    """Mark arrays as different along the mesh axes along which others are different; the values stay.

    A loop needs it, because what it carries may not change its kind.
    """
    wanted = frozenset().union(*(axes_of(leaf) for leaf in jax.tree.leaves(like)))

    def mark(leaf: Any) -> Array:
        missing = wanted - axes_of(leaf)
        return lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else jnp.asarray(leaf)

    return jax.tree.map(mark, tree)


def summed_like(gradient: Array, value: Array) -> Array:
    """Sum a gradient over the mesh axes along which the value is the same on all devices."""
    return lax.psum(varying(gradient, value), tuple(sorted(axes_of(gradient) - axes_of(value))))


def total(array: Array, split: Split) -> Array:
    """Sum over the parts of the classes."""
    return array if split.axis is None else lax.psum(array, split.axis)


def gathered(tree: Any, split: Split) -> list[Any]:
    """What each part of the classes has, in a list that is the same on all devices."""
    if split.axis is None:
        return [tree]
    parts, here = lax.axis_size(split.axis), lax.axis_index(split.axis)
    # A sum with zeros, because the result of all_gather counts as different on each device.
    every = jax.tree.map(
        lambda leaf: lax.psum(jnp.zeros((parts, *leaf.shape), leaf.dtype).at[here].set(leaf), split.axis), tree
    )
    return [jax.tree.map(lambda leaf, part=part: leaf[part], every) for part in range(parts)]


def first_class(split: Split, classes_here: int) -> Array | int:
    """The number of the first class of this device."""
    return 0 if split.axis is None else lax.axis_index(split.axis) * classes_here
