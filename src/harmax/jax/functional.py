"""Distances, HarMax and the harmonic loss as functions of JAX. They compute what `harmax` computes in torch.

`exponent` is always the power of the *distance* (the paper's n). `softening` is added to the *squared* distance.
"""

# B rows (all leading dimensions flattened), D features, V classes

from typing import Literal, TypedDict, Unpack, overload

import jax.numpy as jnp
from jax import Array, lax

from harmax.errors import whole_number
from harmax.functional import check_loss_settings, check_softening
from harmax.jax import blocks, dense
from harmax.jax.checks import (
    ArrayLike,
    check_class_weight,
    check_floating,
    check_indices,
    check_target,
    checked_exponent,
    checked_prior,
    checked_vectors,
    values_of,
)
from harmax.jax.distance import squared_distance_matrix
from harmax.jax.meshes import Split, axes_of, first_class, gathered
from harmax.jax.problem import LossOutput, dense_problem, sparse_problem, without_gradient

IMPLS = ("eager", "chunked")
EAGER_ELEMENTS = 2**18
"""Largest tokens * classes for which impl="auto" keeps the whole matrix."""


def squared_distance(input: ArrayLike, weight: ArrayLike) -> Array:
    r"""Return the squared Euclidean distance of every vector to every center, exact near zero.

    .. math:: s_{ij} = \|x_i - w_j\|^2

    Args:
        input: vectors, (..., D).
        weight: centers, (V, D).

    Returns:
        Squared distances, (..., V), float32 or float64.

    >>> squared_distance(jnp.array([1e4, 1.0]), jnp.array([[1e4, 1.5], [0.0, 1.0]]))
    Array([2.5e-01, 1.0e+08], dtype=float32)
    """
    x_BD, w_VD = checked_vectors(input, weight, "weight")
    return squared_distance_matrix(x_BD, w_VD).reshape(*input.shape[:-1], len(weight))


class KernelSettings(TypedDict, total=False):
    """Keyword arguments of `harmonic_logits`, for functions that pass them on."""

    exponent: float | Array | None
    softening: float
    prior: ArrayLike | None


def harmonic_logits(input: ArrayLike, weight: ArrayLike, **kernel: Unpack[KernelSettings]) -> Array:
    r"""Return logits whose softmax is HarMax.

    .. math:: z_{ij} = b_j - \tfrac{n}{2} \log(\|x_i - w_j\|^2 + a)

    Args:
        input: vectors x, (..., D).
        weight: centers w, (V, D).
        kernel: `exponent` n, the power of the distance (None means sqrt(D)); `softening` a, added to the squared
            distance (0 by default); `prior` b, the logarithm of a weight per class, (V,) (None means equal weights,
            -inf leaves a class out).

    Returns:
        Logits, (..., V), float32 or float64.

    >>> import jax
    >>> x, centers = jnp.array([0.0]), jnp.array([[1.0], [2.0]])
    >>> jax.nn.softmax(harmonic_logits(x, centers, exponent=1)).round(4)
    Array([0.6667, 0.3333], dtype=float32)
    """
    t_BV, exponent, prior_V = _operands(input, weight, **kernel)
    return dense.logits(t_BV, exponent, prior_V).reshape(*input.shape[:-1], len(weight))


def harmonic_log_probabilities(input: ArrayLike, weight: ArrayLike, **kernel: Unpack[KernelSettings]) -> Array:
    r"""Return log-probabilities of all classes: normalized `harmonic_logits`.

    .. math:: \log p_{ij} = z_{ij} - \log \sum_k e^{z_{ik}}

    Near a probability of 1 they keep their relative precision.

    Args:
        input, weight, kernel: as for `harmonic_logits`.

    >>> x, centers = jnp.array([0.0]), jnp.array([[1.0], [2.0]])
    >>> jnp.exp(harmonic_log_probabilities(x, centers, exponent=1)).round(4)
    Array([0.6667, 0.3333], dtype=float32)
    """
    log_p_BV, _ = dense.log_probabilities(*_operands(input, weight, **kernel))
    return log_p_BV.reshape(*input.shape[:-1], len(weight))


def _operands(
    input: ArrayLike,
    weight: ArrayLike,
    exponent: float | Array | None = None,
    softening: float = 0.0,
    prior: ArrayLike | None = None,
) -> tuple[Array, Array, Array | None]:
    """Check the arguments of logits; return softened distances, exponent and prior."""
    x_BD, w_VD = checked_vectors(input, weight, "weight")
    power = checked_exponent(exponent, x_BD.shape[1], x_BD.dtype)
    t_BV = dense.softened_distance(x_BD, w_VD, check_softening(softening))
    return t_BV, power, checked_prior(prior, len(w_VD), x_BD.dtype)


def log_harmax(distance: ArrayLike, exponent: float | Array, *, axis: int = -1) -> Array:
    r"""Return the logarithm of HarMax. Near a probability of 1 it keeps its relative precision.

    .. math:: \log p_i = -n \log d_i - \log \sum_j d_j^{-n}

    Args:
        distance: distances d >= 0 (not squared), any shape. Classes at distance 0 share all the probability.
        exponent: n.
        axis: the dimension of the classes.

    >>> [f"{value:.4g}" for value in log_harmax(jnp.array([1e-6, 1.0]), 2)]
    ['-1e-12', '-27.63']
    """
    if exponent is None:
        raise TypeError("`exponent` must be a number, got None; a distance has no width to derive a default from.")
    check_floating("distance", distance)
    known = values_of(distance)
    if known is not None and (known < 0).any():
        raise ValueError(f"`distance` must not be negative, got {known.min()}; pass a norm.")
    d = jnp.moveaxis(jnp.asarray(distance, jnp.promote_types(distance.dtype, jnp.float32)), axis, -1)
    d = jnp.where(d < 0, jnp.nan, d)  # a compiled function cannot raise an error
    power = checked_exponent(exponent, 1, d.dtype)
    log_p_BV, _ = dense.log_probabilities(dense.above_floor(d).reshape(-1, d.shape[-1]), 2 * power)
    return jnp.moveaxis(log_p_BV.reshape(d.shape), -1, axis)


def harmax(distance: ArrayLike, exponent: float | Array, *, axis: int = -1) -> Array:
    r"""Return HarMax: probabilities that fall with a power of the distance.

    .. math:: p_i = d_i^{-n} / \sum_j d_j^{-n}

    Args:
        distance: distances d >= 0 (not squared), any shape. Classes at distance 0 share all the probability.
        exponent: n.
        axis: the dimension of the classes.

    >>> harmax(jnp.array([0.0, 0.0, 3.0]), 3)
    Array([0.5, 0.5, 0. ], dtype=float32)
    """
    return jnp.exp(log_harmax(distance, exponent, axis=axis))


class TargetSettings(TypedDict, total=False):
    """Keyword arguments of `harmonic_loss` that a head leaves to its caller."""

    weight: ArrayLike | None
    reduction: str
    ignore_index: int
    label_smoothing: float
    impl: str
    chunk_classes: int | None
    class_axis: str | None
    batch_axis: str | None


class LossSettings(TargetSettings, KernelSettings, total=False):
    """Keyword arguments of `harmonic_loss`, for functions that pass them on."""


@overload
def harmonic_loss(
    input: ArrayLike,
    linear_weight: ArrayLike,
    target: ArrayLike,
    *,
    return_stats: Literal[False] = ...,
    **settings: Unpack[LossSettings],
) -> Array: ...
@overload
def harmonic_loss(
    input: ArrayLike,
    linear_weight: ArrayLike,
    target: ArrayLike,
    *,
    return_stats: Literal[True],
    **settings: Unpack[LossSettings],
) -> LossOutput: ...
@overload
def harmonic_loss(
    input: ArrayLike,
    linear_weight: ArrayLike,
    target: ArrayLike,
    *,
    return_stats: bool,
    **settings: Unpack[LossSettings],
) -> Array | LossOutput: ...
def harmonic_loss(
    input: ArrayLike,
    linear_weight: ArrayLike,
    target: ArrayLike,
    *,
    exponent: float | Array | None = None,
    softening: float = 0.0,
    weight: ArrayLike | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    impl: str = "auto",
    chunk_classes: int | None = None,
    prior: ArrayLike | None = None,
    class_axis: str | None = None,
    batch_axis: str | None = None,
    return_stats: bool = False,
) -> Array | LossOutput:
    r"""Return the harmonic loss of vectors against class centers. It never stores a large (tokens, classes) matrix.

    .. math:: \ell = \log \sum_j e^{b_j - b_c} (s_j + a)^{-n/2} + \tfrac{n}{2} \log(s_c + a), \qquad
        s_j = \|x - w_j\|^2

    Values and gradients are those of `harmax.harmonic_loss`; arguments of the same name mean the same. What a compiled
    function cannot refuse becomes a NaN: a class index out of range, or an exponent that is not positive.

    Args:
        input: vectors x, (..., D).
        linear_weight: centers w, (V, D).
        target: class indices (...) of any integer dtype, or class probabilities (..., V).
        exponent: n, the power of the distance; None means sqrt(D). A 0-d array has a gradient.
        softening: a, added to the squared distance.
        weight: a factor per class, (V,).
        reduction: "mean", "sum" or "none".
        ignore_index: rows with this target are left out.
        label_smoothing: share of the target that is spread evenly over all classes, 0 to 1.
        impl: "eager" keeps the (tokens, classes) matrix, "chunked" a block of classes of it; "auto" chooses by size.
            Only "eager" has second derivatives, and gradients of `weight` and of class probabilities.
        chunk_classes: classes of a block (impl="chunked"). None: as many as fit into 32 MiB.
        prior: b, the logarithm of a weight per class, (V,). It has a gradient. -inf leaves a class out.
        class_axis: inside `jax.shard_map`, the mesh axis along which the classes are split. Centers, prior, class
            weights and class probabilities are then those of this device, class indices count over all devices.
        batch_axis: inside `jax.shard_map`, the mesh axis along which the rows are split; the mean or the sum is then
            that of all devices.
        return_stats: also return two statistics per row, without gradient: the log-sum-exp of the logits, and whether
            the most probable class is the target.

    Returns:
        The loss: a scalar, or (...) with reduction="none". With `return_stats` a `LossOutput` (loss, logsumexp, hit).

    >>> x, centers = jnp.array([[0.0, 1e-6]]), jnp.array([[0.0, 0.0], [1.0, 0.0]])
    >>> print(f"{harmonic_loss(x, centers, jnp.array([0]), exponent=2):.4g}")
    1e-12
    """
    softening = check_softening(softening)
    x_BD, w_VD = checked_vectors(input, linear_weight, "linear_weight")
    classes_here, dtype, leading = len(linear_weight), x_BD.dtype, input.shape[:-1]
    split = _split(linear_weight, class_axis)
    check_target(input, target, classes_here, ignore_index)
    check_loss_settings(reduction, impl, label_smoothing, IMPLS)
    check_class_weight(weight, classes_here)
    if chunk_classes is not None:
        chunk_classes = whole_number("chunk_classes", chunk_classes, least=1)
    if impl == "eager" and class_axis is not None:
        raise ValueError("`impl` must be 'chunked' or 'auto' with `class_axis`, got 'eager'; leave it out.")
    small = class_axis is None and x_BD.shape[0] * classes_here <= EAGER_ELEMENTS
    eager = impl == "eager" or (impl == "auto" and small and chunk_classes is None)
    wanted, weight_V = jnp.asarray(target), None if weight is None else jnp.asarray(weight, dtype)
    indexed = jnp.issubdtype(wanted.dtype, jnp.integer)
    if not eager:
        wanted, weight_V = _fixed("target", wanted), None if weight_V is None else _fixed("weight", weight_V)
    operands = (x_BD, w_VD, checked_exponent(exponent, x_BD.shape[1], dtype), checked_prior(prior, classes_here, dtype))
    smoothing = float(label_smoothing)
    if indexed:
        remedy = "check the labels and the number of rows of `linear_weight`."
        check_indices("target", wanted, split.classes, remedy, ignore_index)
        problem, count_B = sparse_problem(*operands, wanted.reshape(-1), weight_V, ignore_index, smoothing, split)
    else:
        target_BV = wanted.reshape(-1, classes_here).astype(dtype)
        problem, count_B = dense_problem(*operands, target_BV, weight_V, smoothing, split)
    plan = blocks.Plan(softening, chunk_classes, split)
    output = dense.rows(problem, softening) if eager else blocks.rows(problem, plan)
    loss = _reduced(output.loss, count_B, reduction, batch_axis)
    loss = loss.reshape(leading) if reduction == "none" else loss
    if not return_stats:
        return loss
    best_B = wanted.reshape(-1) if indexed else _best_class(target_BV, split)
    return LossOutput(loss, output.logsumexp.reshape(leading), (output.hit == best_B).reshape(leading))


def _split(weight: ArrayLike, class_axis: str | None) -> Split:
    if class_axis is None:
        return Split(None, len(weight))
    if not isinstance(class_axis, str) or class_axis not in axes_of(weight):
        raise ValueError(
            f"`class_axis` must be a mesh axis along which `linear_weight` is split, got {class_axis!r}; call the loss "
            "inside jax.shard_map (with check_vma=True, the default) and give the centers a PartitionSpec with it."
        )
    return Split(class_axis, len(weight) * lax.axis_size(class_axis))


def _fixed(name: str, value: Array) -> Array:
    if jnp.issubdtype(value.dtype, jnp.integer):
        return value
    return without_gradient(
        value,
        f"`{name}` must have no gradient with impl='chunked', got one; pass impl='eager', or jax.lax.stop_gradient of "
        "it.",
    )


def _reduced(loss_B: Array, count_B: Array, reduction: str, batch_axis: str | None) -> Array:
    if reduction == "none":
        return loss_B
    total, count = loss_B.sum(), count_B.sum()
    if batch_axis is not None:
        if batch_axis not in axes_of(loss_B):
            raise ValueError(
                f"`batch_axis` must be a mesh axis along which `input` is split, got {batch_axis!r}; call the loss "
                "inside jax.shard_map and give the rows a PartitionSpec with it."
            )
        total, count = lax.psum((total, count), batch_axis)
    return total / count if reduction == "mean" else total


def _best_class(target_BV: Array, split: Split) -> Array:
    """The class with the largest probability in each row of targets, counted over all devices."""
    here = target_BV.max(1), target_BV.argmax(1) + first_class(split, target_BV.shape[1])
    (most_B, best_B), *others = gathered(here, split)
    for more_B, class_B in others:
        most_B, best_B = jnp.maximum(most_B, more_B), jnp.where(more_B > most_B, class_B, best_B)
    return best_B
