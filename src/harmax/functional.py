"""Distances, HarMax and the harmonic loss as functions: checked arguments in, mathematics out.

`exponent` is always the power of the *distance* (the paper's n); `softening` is added to the *squared* distance.
"""

import math
from typing import Any

import torch
from torch import Tensor

from harmax.errors import unknown
from harmax.kernels.dispatch import IMPLS, OWN_DTYPES, auto
from harmax.kernels.distance import squared_distance_matrix
from harmax.kernels.eager import above_floor, log_probabilities, logits, softened_distance
from harmax.kernels.operators import is_traced
from harmax.kernels.problem import LossOptions, LossOutput, Problem

REDUCTIONS = ("mean", "sum", "none")


def resolve_exponent(exponent: float | Tensor | None, in_features: int) -> float | Tensor:
    """Replace None by sqrt(in_features) and refuse what is not a positive, finite number (or a 0-d tensor)."""
    if exponent is None:
        return math.sqrt(in_features)
    if isinstance(exponent, Tensor):
        if exponent.dim() != 0 or not exponent.is_floating_point():
            raise ValueError(
                f"`exponent` must be a 0-d floating tensor, got shape {tuple(exponent.shape)} of {exponent.dtype}; "
                "pass one exponent for all classes."
            )
        if exponent.device.type != "cpu" or is_traced(exponent):
            return exponent
        value = exponent.detach().item()
    else:
        value = _number("exponent", exponent)
    if not 0 < value < math.inf:
        raise ValueError(
            f"`exponent` must be a positive, finite number, got {value}; the paper uses sqrt(in_features), which is "
            "the default."
        )
    return exponent if isinstance(exponent, Tensor) else value


def _number(name: str, value: Any) -> float:
    if isinstance(value, (int, float, torch.SymFloat, torch.SymInt)):
        return float(value)
    raise TypeError(f"`{name}` must be a number, got {value!r}; pass a float.")


def check_softening(softening: float) -> float:
    """Refuse a softening that is negative or not finite."""
    value = _number("softening", softening)
    if not 0 <= value < math.inf:
        raise ValueError(f"`softening` must be zero or a positive, finite number, got {value}; 0 is pure harmonic.")
    return value


def _flat(input: Tensor, weight: Tensor, name: str = "weight", *, wide: bool = True) -> tuple[Tensor, Tensor]:
    """Check the operands of a distance and give them as matrices, if `wide` of one dtype, float32 or float64."""
    for label, tensor in (("input", input), (name, weight)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"`{label}` must be a tensor, got {type(tensor).__name__}; convert it with torch.tensor.")
        if not tensor.is_floating_point():
            raise TypeError(f"`{label}` must be a floating tensor, got {tensor.dtype}; convert it with .float().")
    if weight.dim() != 2 or not weight.shape[0] or not weight.shape[1]:
        raise ValueError(
            f"`{name}` must have shape (classes, features) with at least one of each, got {tuple(weight.shape)}; "
            "give one row per class."
        )
    if input.dim() < 1 or input.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"`input` must have shape (..., {weight.shape[1]}) to match `{name}` {tuple(weight.shape)}, "
            f"got {tuple(input.shape)}; the last dimension holds the features."
        )
    x_BD = input.reshape(-1, input.shape[-1])
    return _wide(x_BD, weight) if wide else (x_BD, weight)


def _wide(x_BD: Tensor, w_VD: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one dtype, float32 or float64."""
    dtype = torch.promote_types(torch.promote_types(x_BD.dtype, w_VD.dtype), torch.float32)
    return x_BD.to(dtype), w_VD.to(dtype)


def squared_distance(input: Tensor, weight: Tensor) -> Tensor:
    r"""Squared Euclidean distance of every input vector to every center, exact near zero.

    .. math:: s_{ij} = \|x_i - w_j\|^2

    float32 at least, whatever autocast says; half-precision inputs give the float32 distance of their rounded values.

    Args:
        input: vectors, (..., D).
        weight: centers, (V, D).

    Returns:
        Squared distances, (..., V).

    >>> squared_distance(torch.tensor([1e4, 1.0]), torch.tensor([[1e4, 1.5], [0.0, 1.0]]))
    tensor([2.5000e-01, 1.0000e+08])
    """
    x_BD, w_VD = _flat(input, weight)
    return squared_distance_matrix(x_BD, w_VD).reshape(*input.shape[:-1], weight.shape[0])


def harmonic_logits(
    input: Tensor, weight: Tensor, *, exponent: float | Tensor | None = None, softening: float = 0.0
) -> Tensor:
    r"""Logits whose softmax is HarMax.

    .. math:: z_{ij} = -\tfrac{n}{2} \log(\|x_i - w_j\|^2 + a)

    Args:
        input: vectors x, (..., D).
        weight: centers w, (V, D).
        exponent: n, the power of the distance; None means sqrt(D).
        softening: a, added to the squared distance; above 0 the kernel is Student's t.

    Returns:
        Logits, (..., V), float32 or float64. A distance of zero counts as a tiny one, so they are finite.

    >>> harmonic_logits(torch.tensor([0.0]), torch.tensor([[1.0], [2.0]]), exponent=1).softmax(-1)
    tensor([0.6667, 0.3333])
    """
    exponent, softening = resolve_exponent(exponent, input.shape[-1]), check_softening(softening)
    x_BD, w_VD = _flat(input, weight)
    z_BV = logits(softened_distance(x_BD, w_VD, softening), exponent)
    return z_BV.reshape(*input.shape[:-1], weight.shape[0])


def log_harmax(distance: Tensor, exponent: float | Tensor, *, dim: int = -1) -> Tensor:
    r"""Logarithm of HarMax, exact in relative terms where a probability is close to 1.

    .. math:: \log p_i = -n \log d_i - \log \sum_j d_j^{-n}

    Args:
        distance: distances d >= 0 (not squared), any shape. Zeros share all the probability among themselves.
        exponent: n.
        dim: the dimension of the classes.

    >>> log_harmax(torch.tensor([1e-6, 1.0]), 2)
    tensor([-1.0000e-12, -2.7631e+01])
    """
    if exponent is None:
        raise TypeError("`exponent` must be a number, got None; there are no features here to take a default from.")
    resolved = resolve_exponent(exponent, 1)
    if not distance.is_floating_point():
        raise TypeError(f"`distance` must be a floating tensor, got {distance.dtype}; convert it with .float().")
    if distance.device.type == "cpu" and not is_traced(distance) and (distance < 0).any():
        raise ValueError(f"`distance` must not be negative, got {distance.min().item()}; take a norm or a square root.")
    d = distance.to(torch.promote_types(distance.dtype, torch.float32)).movedim(dim, -1)
    log_p_BV, _ = log_probabilities(above_floor(d).reshape(-1, d.shape[-1]), 2 * resolved)
    return log_p_BV.reshape(d.shape).movedim(-1, dim)


def harmax(distance: Tensor, exponent: float | Tensor, *, dim: int = -1) -> Tensor:
    r"""HarMax: probabilities that fall with a power of the distance.

    .. math:: p_i = d_i^{-n} / \sum_j d_j^{-n}

    Args:
        distance: distances d >= 0 (not squared), any shape. Zeros share all the probability among themselves.
        exponent: n.
        dim: the dimension of the classes.

    >>> harmax(torch.tensor([1.0, 2.0, 2.0]), 1)
    tensor([0.5000, 0.2500, 0.2500])
    >>> harmax(torch.tensor([0.0, 0.0, 3.0]), 3)
    tensor([0.5000, 0.5000, 0.0000])
    """
    return log_harmax(distance, exponent, dim=dim).exp()


def _check_target(input: Tensor, target: Tensor, classes: int, ignore_index: int, check: bool | None) -> None:
    leading = tuple(input.shape[:-1])
    if target.is_floating_point():
        if tuple(target.shape) != (*leading, classes):
            raise ValueError(
                f"`target` of class probabilities must have shape {(*leading, classes)} to match `input` "
                f"{tuple(input.shape)} and {classes} classes, got {tuple(target.shape)}; class indices must be int64."
            )
        if ignore_index >= 0:
            raise ValueError(
                f"`ignore_index` must be left out with class probabilities, got {ignore_index}; give such rows zeros."
            )
        return
    if target.dtype != torch.int64:
        raise TypeError(f"`target` of class indices must be int64, got {target.dtype}; convert it with .long().")
    if tuple(target.shape) != leading:
        raise ValueError(
            f"`target` must have shape {leading} to match `input` {tuple(input.shape)}, got {tuple(target.shape)}; "
            "flatten both or neither."
        )
    if check is None:
        check = target.device.type == "cpu" and not is_traced(target)
    if not check:
        return
    must = f"`target` must hold class indices from 0 to {classes - 1} or ignore_index ({ignore_index})"
    remedy = "check the labels or the number of rows of `linear_weight`."
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if torch.compiler.is_compiling():
        torch._assert_async(~wrong.any(), f"{must}, got another; {remedy}")
    elif wrong.any():
        raise ValueError(f"{must}, got {target[wrong][0].item()}; {remedy}")


def check_loss_settings(reduction: str, impl: str, label_smoothing: float) -> None:
    """Refuse names and shares that `harmonic_loss` does not know."""
    if reduction not in REDUCTIONS:
        raise ValueError(unknown("reduction", reduction, REDUCTIONS))
    if impl != "auto" and impl not in IMPLS:
        raise ValueError(unknown("impl", impl, ("auto", *IMPLS)))
    if not 0.0 <= _number("label_smoothing", label_smoothing) <= 1.0:
        raise ValueError(f"`label_smoothing` must lie in 0..1, got {label_smoothing}; it is a share of the target.")


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
    return_stats: bool = False,
) -> Tensor | LossOutput:
    r"""Harmonic loss of vectors against class centers, without a (tokens, classes) matrix where that is large.

    .. math:: \ell = \log \sum_j (s_j + a)^{-n/2} + \tfrac{n}{2} \log(s_c + a), \qquad s_j = \|x - w_j\|^2

    It is ``F.cross_entropy(harmonic_logits(input, linear_weight), target)``, class dimension last, and treats targets,
    weights, smoothing and reductions as that does; a small loss keeps its relative precision besides.

    Args:
        input: vectors x, (..., D).
        linear_weight: centers w, (V, D).
        target: class indices (...), int64, or class probabilities (..., V).
        exponent: n, the power of the distance; None means sqrt(D). A 0-d tensor may require a gradient.
        softening: a, added to the squared distance.
        weight: a factor per class, (V,).
        reduction: "mean", "sum" or "none".
        ignore_index: rows with this target count for nothing.
        label_smoothing: share of the target spread evenly over all classes, 0 to 1.
        impl: a name in `harmax.kernels.IMPLS`, or "auto" (`harmax doctor` says what it takes and why).
        options: how to compute; see `LossOptions`.
        return_stats: also return, per row and without gradient, the log-sum-exp of the logits and whether the nearest
            center is the target's.

    Returns:
        The loss, a scalar or (...) with reduction="none"; with `return_stats` a `LossOutput` (loss, logsumexp, hit).

    >>> x, centers = torch.tensor([[0.0, 1e-6]]), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    >>> harmonic_loss(x, centers, torch.tensor([0]), exponent=2)
    tensor(1.0000e-12)
    """
    options = options or LossOptions()
    if not isinstance(options, LossOptions):
        raise TypeError(f"`options` must be a LossOptions, got {type(options).__name__}; see harmax.LossOptions.")
    softening = check_softening(softening)
    x_BD, w_VD = _flat(input, linear_weight, "linear_weight", wide=False)
    classes, leading = linear_weight.shape[0], input.shape[:-1]
    _check_target(input, target, classes, ignore_index, options.check_targets)
    check_loss_settings(reduction, impl, label_smoothing)
    if weight is not None and (not isinstance(weight, Tensor) or tuple(weight.shape) != (classes,)):
        came = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"`weight` must be a tensor of shape ({classes},), got {came}; give one factor per class.")
    indexed = not target.is_floating_point()
    dtype = torch.promote_types(torch.promote_types(x_BD.dtype, w_VD.dtype), torch.float32)
    if impl == "auto":
        learned = any(tensor is not None and tensor.requires_grad for tensor in (target, weight))
        kind = dtype if dtype == torch.float64 else x_BD.dtype
        impl = "eager" if learned else auto(x_BD.shape[0], classes, x_BD.device, dtype=kind, indexed=indexed)
    if impl not in OWN_DTYPES:
        x_BD, w_VD = _wide(x_BD, w_VD)
    problem = Problem(
        x_BD,
        w_VD,
        target.reshape(-1) if indexed else target.reshape(-1, classes).to(dtype),
        resolve_exponent(exponent, input.shape[-1]),
        softening,
        None if weight is None else weight.to(dtype),
        ignore_index,
        float(label_smoothing),
        reduction,
    )
    output = IMPLS[impl](problem, options)
    loss = output.loss.reshape(leading) if reduction == "none" else output.loss
    return LossOutput(loss, output.logsumexp.reshape(leading), output.hit.reshape(leading)) if return_stats else loss
