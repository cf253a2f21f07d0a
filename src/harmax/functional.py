"""Distances, HarMax and the harmonic loss as functions. Arguments are checked here; the kernels compute.

`exponent` is always the power of the *distance* (the paper's n). `softening` is added to the *squared* distance.
"""

# B rows (all leading dimensions flattened), D features, V classes

import functools
from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

import torch
from torch import Tensor
from torch.fx import Proxy

from harmax import divided
from harmax.checks import (
    check_class_weight,
    check_exponent_device,
    check_floating,
    check_softening,
    check_target,
    checked_matrices,
    checked_prior,
    number,
    resolve_exponent,
    wide,
)
from harmax.errors import unknown
from harmax.kernels import sharded
from harmax.kernels.chunked import row_chunks
from harmax.kernels.dispatch import IMPLS, OWN_DTYPES, auto
from harmax.kernels.distance import squared_distance_matrix
from harmax.kernels.eager import above_floor, entropy, log_probabilities, logits, softened_distance
from harmax.kernels.operators import is_exporting, is_traced
from harmax.kernels.problem import LossOptions, LossOutput, Problem
from harmax.sharding import is_distributed, place_of, refusing_together, register_rules, whole

__all__ = [
    "KernelSettings",
    "LossOptions",
    "LossOutput",
    "LossSettings",
    "TargetSettings",
    "check_loss_settings",
    "check_softening",
    "harmax",
    "harmonic_entropy",
    "harmonic_log_probabilities",
    "harmonic_logits",
    "harmonic_loss",
    "log_harmax",
    "resolve_exponent",
    "squared_distance",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])

REDUCTIONS = ("mean", "sum", "none")


def _traceable(function: _Function) -> _Function:
    """Let torch.fx write a call into its graph as one node, because only real tensors can be checked.

    It stands in this file, because doctest passes by a function whose globals are those of another one.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, Proxy):
                return value.tracer.create_proxy("call_function", call, args, kwargs)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]  # it has the signature of the function


@_traceable
def squared_distance(input: Tensor, weight: Tensor) -> Tensor:
    r"""Return the squared Euclidean distance of every vector to every center, exact near zero.

    .. math:: s_{ij} = \|x_i - w_j\|^2

    The result is float32 or float64, also under autocast. For half-precision inputs it is the exact distance of the
    rounded values.

    Args:
        input: vectors, (..., D).
        weight: centers, (V, D).

    Returns:
        Squared distances, (..., V).

    >>> squared_distance(torch.tensor([1e4, 1.0]), torch.tensor([[1e4, 1.5], [0.0, 1.0]]))
    tensor([2.5000e-01, 1.0000e+08])
    """
    if is_distributed(input, weight):
        register_rules()
        if not is_distributed(input):
            input, weight = place_of(input, weight, "weight").operands(input, weight)
    x_BD, w_VD = checked_matrices(input, weight)
    return squared_distance_matrix(x_BD, w_VD).reshape(*input.shape[:-1], weight.shape[0])


@_traceable
def harmonic_logits(
    input: Tensor,
    weight: Tensor,
    *,
    exponent: float | Tensor | None = None,
    softening: float = 0.0,
    prior: Tensor | None = None,
) -> Tensor:
    r"""Return logits whose softmax is HarMax.

    .. math:: z_{ij} = b_j - \tfrac{n}{2} \log(\|x_i - w_j\|^2 + a)

    Args:
        input: vectors x, (..., D).
        weight: centers w, (V, D).
        exponent: n, the power of the distance; None means sqrt(D).
        softening: a, added to the squared distance. Above 0 the kernel is Student's t.
        prior: b, the logarithm of a weight per class, (V,). -inf leaves a class out. None means equal weights.

    Returns:
        Logits, (..., V), float32 or float64. They are finite: a distance of zero counts as a tiny distance. Only a
        class that the prior leaves out has -inf.

    >>> x, centers = torch.tensor([0.0]), torch.tensor([[1.0], [2.0]])
    >>> harmonic_logits(x, centers, exponent=1).softmax(-1)
    tensor([0.6667, 0.3333])

    Class 1 is four times as frequent:

    >>> harmonic_logits(x, centers, exponent=1, prior=torch.tensor([1.0, 4.0]).log()).softmax(-1)
    tensor([0.3333, 0.6667])
    """
    if is_distributed(input, weight, exponent, prior):
        kernel: KernelSettings = {"exponent": exponent, "softening": softening, "prior": prior}
        return divided.columns(harmonic_logits, sharded.logits, input, weight, **kernel)
    x_BD, w_VD, exponent, softening, prior_V = _operands(input, weight, exponent, softening, prior)
    z_BV = logits(softened_distance(x_BD, w_VD, softening), exponent, prior_V)
    return z_BV.reshape(*input.shape[:-1], weight.shape[0])


class KernelSettings(TypedDict, total=False):
    """Keyword arguments of `harmonic_logits`, for functions that pass them on."""

    exponent: float | Tensor | None
    softening: float
    prior: Tensor | None


@_traceable
def harmonic_log_probabilities(input: Tensor, weight: Tensor, **kernel: Unpack[KernelSettings]) -> Tensor:
    r"""Return log-probabilities of all classes: normalized `harmonic_logits`.

    .. math:: \log p_{ij} = z_{ij} - \log \sum_k e^{z_{ik}}

    Near a probability of 1 they keep their relative precision.

    Args:
        input, weight, kernel: as for `harmonic_logits`.

    >>> x, centers = torch.tensor([0.0]), torch.tensor([[1.0], [2.0]])
    >>> harmonic_log_probabilities(x, centers, exponent=1).exp()
    tensor([0.6667, 0.3333])
    """
    if is_distributed(input, weight, *kernel.values()):
        return divided.columns(harmonic_log_probabilities, sharded.log_probabilities, input, weight, **kernel)
    x_BD, w_VD, exponent, softening, prior_V = _operands(input, weight, **kernel)
    log_p_BV, _ = log_probabilities(softened_distance(x_BD, w_VD, softening), exponent, prior_V)
    return log_p_BV.reshape(*input.shape[:-1], weight.shape[0])


@_traceable
def harmonic_entropy(
    input: Tensor, weight: Tensor, *, options: LossOptions | None = None, **kernel: Unpack[KernelSettings]
) -> Tensor:
    r"""Return the entropy of each vector's probabilities, in nats. It never stores a large (tokens, classes) matrix.

    .. math:: H_i = -\sum_j p_{ij} \log p_{ij}

    Gradients flow to all that `harmonic_log_probabilities` takes, so it can be part of a loss. Where they are wanted,
    each chunk of rows is computed a second time in the backward pass. A small entropy keeps its relative precision.

    Args:
        input, weight, kernel: as for `harmonic_logits`.
        options: how to compute; only `chunk_rows` counts here.

    Returns:
        Entropies, (...), float32 or float64.

    >>> x, centers = torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [-1.0]])
    >>> harmonic_entropy(x, centers, exponent=1, softening=1e-6)
    tensor([0.6931, 0.0043])
    """
    if is_distributed(input, weight, *kernel.values()):
        return divided.entropy(harmonic_entropy, input, weight, _checked_options(options), **kernel)
    x_BD, w_VD, exponent, softening, prior_V = _operands(input, weight, **kernel)

    def rows(x_CD: Tensor) -> Tensor:
        log_p_CV, _ = log_probabilities(softened_distance(x_CD, w_VD, softening), exponent, prior_V)
        return entropy(log_p_CV)

    return row_chunks(rows, x_BD, w_VD, _checked_options(options)).reshape(input.shape[:-1])


def _operands(
    input: Tensor,
    weight: Tensor,
    exponent: float | Tensor | None = None,
    softening: float = 0.0,
    prior: Tensor | None = None,
) -> tuple[Tensor, Tensor, float | Tensor, float, Tensor | None]:
    """Check the arguments of logits, and return them as the kernels take them."""
    x_BD, w_VD = checked_matrices(input, weight)
    check_exponent_device(exponent, "input", input)
    exponent, softening = resolve_exponent(exponent, input.shape[-1]), check_softening(softening)
    prior = checked_prior(prior, weight.shape[0], input)
    return x_BD, w_VD, exponent, softening, None if prior is None else prior.to(x_BD.dtype)


@_traceable
def log_harmax(distance: Tensor, exponent: float | Tensor, *, dim: int = -1) -> Tensor:
    r"""Return the logarithm of HarMax. Near a probability of 1 it keeps its relative precision.

    .. math:: \log p_i = -n \log d_i - \log \sum_j d_j^{-n}

    Args:
        distance: distances d >= 0 (not squared), any shape. Classes at distance 0 share all the probability.
        exponent: n.
        dim: the dimension of the classes.

    >>> log_harmax(torch.tensor([1e-6, 1.0]), 2)
    tensor([-1.0000e-12, -2.7631e+01])
    """
    if exponent is None:
        raise TypeError("`exponent` must be a number, got None; a distance has no width to derive a default from.")
    resolved = resolve_exponent(exponent, 1)
    check_floating("distance", distance)
    check_exponent_device(exponent, "distance", distance)
    if distance.device.type == "cpu" and not is_traced(distance) and (distance < 0).any():
        raise ValueError(f"`distance` must not be negative, got {distance.min().item()}; pass a norm.")
    d = distance.to(torch.promote_types(distance.dtype, torch.float32)).movedim(dim, -1)
    log_p_BV, _ = log_probabilities(above_floor(d).reshape(-1, d.shape[-1]), 2 * resolved)
    return log_p_BV.reshape(d.shape).movedim(-1, dim)


@_traceable
def harmax(distance: Tensor, exponent: float | Tensor, *, dim: int = -1) -> Tensor:
    r"""Return HarMax: probabilities that fall with a power of the distance.

    .. math:: p_i = d_i^{-n} / \sum_j d_j^{-n}

    Args:
        distance: distances d >= 0 (not squared), any shape. Classes at distance 0 share all the probability.
        exponent: n.
        dim: the dimension of the classes.

    >>> harmax(torch.tensor([1.0, 2.0, 2.0]), 1)
    tensor([0.5000, 0.2500, 0.2500])
    >>> harmax(torch.tensor([0.0, 0.0, 3.0]), 3)
    tensor([0.5000, 0.5000, 0.0000])
    """
    return log_harmax(distance, exponent, dim=dim).exp()


def _checked_options(options: LossOptions | None) -> LossOptions:
    if options is None or isinstance(options, LossOptions):
        return options or LossOptions()
    raise TypeError(
        f"`options` must be a LossOptions, got {type(options).__name__}; build one with harmax.LossOptions(...)."
    )


def check_loss_settings(
    reduction: str, impl: str, label_smoothing: float, impls: tuple[str, ...] = tuple(IMPLS)
) -> None:
    """Refuse a reduction, an implementation or a label smoothing that `harmonic_loss` does not know."""
    if reduction not in REDUCTIONS:
        raise ValueError(unknown("reduction", reduction, REDUCTIONS))
    if impl != "auto" and impl not in impls:
        raise ValueError(unknown("impl", impl, ("auto", *impls)))
    if not 0.0 <= number("label_smoothing", label_smoothing) <= 1.0:
        raise ValueError(
            f"`label_smoothing` must be a number from 0 to 1, got {label_smoothing}; it is a share of the target."
        )


class TargetSettings(TypedDict, total=False):
    """Keyword arguments of `harmonic_loss` that a head leaves to its caller."""

    weight: Tensor | None
    reduction: str
    ignore_index: int
    label_smoothing: float
    impl: str
    options: LossOptions | None


class LossSettings(TargetSettings, KernelSettings, total=False):
    """Keyword arguments of `harmonic_loss`, for functions that pass them on."""


@overload
def harmonic_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    return_stats: Literal[False] = ...,
    **settings: Unpack[LossSettings],
) -> Tensor: ...
@overload
def harmonic_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    return_stats: Literal[True],
    **settings: Unpack[LossSettings],
) -> LossOutput: ...
@overload
def harmonic_loss(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, return_stats: bool, **settings: Unpack[LossSettings]
) -> Tensor | LossOutput: ...
@_traceable
def harmonic_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    exponent: float | Tensor | None = None,
    softening: float = 0.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    impl: str = "auto",
    options: LossOptions | None = None,
    prior: Tensor | None = None,
    return_stats: bool = False,
) -> Tensor | LossOutput:
    r"""Return the harmonic loss of vectors against class centers. It never stores a large (tokens, classes) matrix.

    .. math:: \ell = \log \sum_j e^{b_j - b_c} (s_j + a)^{-n/2} + \tfrac{n}{2} \log(s_c + a), \qquad
        s_j = \|x - w_j\|^2

    The value is ``F.cross_entropy(harmonic_logits(input, linear_weight), target)`` with the class dimension last.
    Targets, class weights, smoothing and reductions mean the same as there. A small loss keeps its relative precision.

    Args:
        input: vectors x, (..., D).
        linear_weight: centers w, (V, D).
        target: class indices (...), int64, or class probabilities (..., V).
        exponent: n, the power of the distance; None means sqrt(D). A 0-d tensor may require a gradient.
        softening: a, added to the squared distance.
        weight: a factor per class, (V,).
        reduction: "mean", "sum" or "none".
        ignore_index: rows with this target are left out.
        label_smoothing: share of the target that is spread evenly over all classes, 0 to 1.
        impl: a name in `harmax.kernels.IMPLS`, or "auto". `harmax doctor` reports what "auto" chooses and why.
        options: how to compute; see `LossOptions`.
        prior: b, the logarithm of a weight per class, (V,). It may require a gradient. Adding one number to all of them
            changes nothing. -inf leaves a class out; as a target, or with label smoothing, its loss is infinite. None
            means equal weights.
        return_stats: also return two statistics per row, without gradient: the log-sum-exp of the logits, and whether
            the most probable class is the target. Without a prior it is the class of the nearest center.

    Returns:
        The loss: a scalar, or (...) with reduction="none". With `return_stats` a `LossOutput` (loss, logsumexp, hit).

    >>> x, centers = torch.tensor([[0.0, 1e-6]]), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    >>> harmonic_loss(x, centers, torch.tensor([0]), exponent=2)
    tensor(1.0000e-12)

    Half way between two centers the prior decides:

    >>> x, prior = torch.tensor([[0.5, 0.0]]), torch.tensor([0.9, 0.1]).log()
    >>> harmonic_loss(x, centers, torch.tensor([0]), prior=prior).exp()
    tensor(1.1111)
    """
    place, classes = None, len(linear_weight) if isinstance(linear_weight, Tensor) and linear_weight.dim() else 0
    if is_distributed(input, linear_weight, target, exponent, weight, prior):
        place = place_of(input, linear_weight, "linear_weight")
        input, linear_weight = place.rows(input), place.centers(linear_weight)
        exponent, weight = place.number(exponent), None if weight is None else whole(weight)
    group = None if place is None else place.group
    with refusing_together(group, input):
        options = _checked_options(options)
        softening = check_softening(softening)
        x_BD, w_VD = checked_matrices(input, linear_weight, "linear_weight", widen=False, classes=classes)
        check_exponent_device(exponent, "input", input)
        if not hasattr(ignore_index, "__index__"):
            raise TypeError(f"`ignore_index` must be a whole number, got {ignore_index!r}; pass an int.")
        leading = input.shape[:-1]
        check_target(input, target, classes, ignore_index, options.check_targets)
        check_loss_settings(reduction, impl, label_smoothing)
        check_class_weight(weight, classes, input)
        prior = checked_prior(prior, classes, input)
        if place is not None:
            target, prior = place.target(target, len(w_VD)), place.prior(prior, len(w_VD))
        indexed = not target.is_floating_point()
        dtype = torch.promote_types(torch.promote_types(x_BD.dtype, w_VD.dtype), torch.float32)
        if impl == "auto" and group is None:
            learned = any(tensor is not None and tensor.requires_grad for tensor in (target, weight))
            kind = dtype if dtype == torch.float64 else x_BD.dtype
            plain = learned or is_exporting()
            impl = "eager" if plain else auto(x_BD.shape[0], classes, x_BD.device, dtype=kind, indexed=indexed)
        if impl not in OWN_DTYPES:
            x_BD, w_VD = wide(x_BD, w_VD)
        problem = Problem(
            x_BD,
            w_VD,
            target.reshape(-1) if indexed else target.reshape(-1, target.shape[-1]).to(dtype),
            resolve_exponent(exponent, input.shape[-1]),
            softening,
            None if weight is None else weight.to(dtype),
            ignore_index,
            float(label_smoothing),
            reduction,
            None if prior is None else prior.to(dtype),
        )
    output = IMPLS[impl](problem, options) if group is None else divided.loss(problem, group, options, impl)
    loss = output.loss.reshape(leading) if reduction == "none" else output.loss
    return LossOutput(loss, output.logsumexp.reshape(leading), output.hit.reshape(leading)) if return_stats else loss
