"""Checks of tensors that several functions take, in one grammar of errors."""

import math
from typing import Any

import torch
from torch import Tensor

from harmax.kernels.operators import is_traced

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

LARGEST = 1e30
"""Largest exponent and softening. With larger ones the logits would not fit into float32."""


def is_quantized(tensor: Tensor) -> bool:
    """Whether a quantizer such as torchao stores a tensor in a class of its own, which can give the numbers back."""
    kind = type(tensor)
    return kind not in (Tensor, torch.nn.Parameter) and kind.dequantize is not Tensor.dequantize


def check_tensor(name: str, tensor: Any) -> None:
    """Refuse anything but an ordinary, dense tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"`{name}` must be a tensor, got {type(tensor).__name__}; convert it with torch.as_tensor.")
    if is_quantized(tensor):
        raise TypeError(
            f"`{name}` must be an ordinary tensor, got a quantized {type(tensor).__name__}; pass its .dequantize()."
        )
    if tensor.is_nested:
        raise TypeError(f"`{name}` must be an ordinary tensor, got a nested one; concatenate its rows first.")
    if tensor.layout is not torch.strided:
        raise TypeError(f"`{name}` must be a dense tensor, got {tensor.layout}; convert it with .to_dense().")


def check_floating(name: str, tensor: Tensor) -> None:
    """Refuse anything but a tensor of one of `DTYPES`."""
    check_tensor(name, tensor)
    if tensor.dtype not in DTYPES:
        raise TypeError(
            f"`{name}` must be a float16, bfloat16, float32 or float64 tensor, got {tensor.dtype}; convert it with "
            ".float()."
        )


def check_device(name: str, tensor: Tensor, input: Tensor) -> None:
    """Refuse a tensor that is not on the device of `input`."""
    if tensor.device != input.device:
        raise ValueError(
            f"`{name}` must be on the device of `input` ({input.device}), got {tensor.device}; move one of them with "
            ".to(...)."
        )


def check_exponent_device(exponent: float | Tensor | None, name: str, values: Tensor) -> None:
    """Refuse an exponent without a value. A number may lie on the CPU, whichever device the other tensors are on."""
    if isinstance(exponent, Tensor) and exponent.device.type == "meta" != values.device.type:
        raise ValueError(
            f"`exponent` must have a value, like `{name}` ({values.device}), got a tensor on meta; pass a number or a "
            "tensor on a real device."
        )


def check_class_weight(weight: Tensor | None, classes: int, input: Tensor) -> None:
    """Refuse class weights that are not one real number per class."""
    if weight is None:
        return
    check_tensor("weight", weight)
    if weight.is_complex() or (weight.is_floating_point() and weight.dtype not in DTYPES):
        raise TypeError(f"`weight` must hold real numbers, got {weight.dtype}; convert it with .float().")
    check_device("weight", weight, input)
    if tuple(weight.shape) != (classes,):
        raise ValueError(
            f"`weight` must have shape ({classes},), got {tuple(weight.shape)}; give one factor per class."
        )


def checked_prior(prior: Tensor | None, classes: int, input: Tensor) -> Tensor | None:
    """Return the prior; refuse one that is not one log-weight per class. On a GPU its values are not read."""
    if prior is None:
        return None
    check_floating("prior", prior)
    check_device("prior", prior, input)
    if tuple(prior.shape) != (classes,):
        raise ValueError(
            f"`prior` must have shape ({classes},), got {tuple(prior.shape)}; give one log-weight per class."
        )
    if prior.device.type == "cpu" and not is_traced(prior):
        check_log_weights(prior)
    return prior


def check_log_weights(prior: Any) -> None:
    """Refuse values of a prior, a tensor or an array, that are no log-weights or leave no class."""
    wrong = ~(prior < math.inf)
    if wrong.any():
        raise ValueError(
            f"`prior` must hold finite log-weights or -inf, got {float(prior[wrong][0])}; take the logarithm of "
            "weights that are not negative."
        )
    if (prior == -math.inf).all():
        raise ValueError(
            f"`prior` must leave at least one class, got -inf for all {len(prior)}; give classes that may occur a "
            "finite log-weight."
        )


def resolve_exponent(exponent: float | Tensor | None, in_features: int) -> float | Tensor:
    """Return the exponent, with None replaced by sqrt(in_features); refuse values that are not positive and finite."""
    if exponent is None:
        return math.sqrt(in_features)
    if isinstance(exponent, Tensor):
        check_tensor("exponent", exponent)
        if exponent.dim() != 0 or exponent.dtype not in DTYPES:
            raise ValueError(
                f"`exponent` must be a number or a 0-d floating tensor, got shape {tuple(exponent.shape)} of "
                f"{exponent.dtype}; pass one exponent for all classes."
            )
        if exponent.device.type != "cpu" or is_traced(exponent):
            return exponent
        value = exponent.detach().item()
    else:
        value = number("exponent", exponent)
    if not 0 < value <= LARGEST:
        raise ValueError(
            f"`exponent` must be a positive number up to {LARGEST:g}, got {value}; leave it out for the paper's "
            "sqrt(in_features)."
        )
    return exponent if isinstance(exponent, Tensor) else value


def number(name: str, value: Any) -> float:
    """Return a number as a float; refuse anything else."""
    if isinstance(value, (int, float, torch.SymFloat, torch.SymInt)):
        return float(value)
    raise TypeError(f"`{name}` must be a number, got {value!r}; pass a float.")


def check_softening(softening: float) -> float:
    """Return the softening as a float; refuse negative, huge and non-finite values."""
    value = number("softening", softening)
    if not 0 <= value <= LARGEST:
        raise ValueError(
            f"`softening` must be a number from 0 to {LARGEST:g}, got {value}; 0 gives the pure harmonic loss."
        )
    return value


def checked_matrices(
    input: Tensor, weight: Tensor, name: str = "weight", *, widen: bool = True, classes: int | None = None
) -> tuple[Tensor, Tensor]:
    """Check vectors and centers and return them as matrices; with `widen` both in one dtype, float32 or float64.

    `classes` is the number of all classes where these centers are only those of this rank.
    """
    check_floating("input", input)
    check_floating(name, weight)
    check_device(name, weight, input)
    if weight.dim() != 2 or not (classes or weight.shape[0]) or not weight.shape[1]:
        raise ValueError(
            f"`{name}` must have shape (classes, features) with at least one of each, got {tuple(weight.shape)}; "
            "give one row per class."
        )
    if input.dim() < 1 or input.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"`input` must have shape (..., {weight.shape[1]}) to match `{name}` "
            f"{(classes or weight.shape[0], weight.shape[1])}, "
            f"got {tuple(input.shape)}; the last dimension holds the features."
        )
    x_BD = input.reshape(-1, input.shape[-1])
    return wide(x_BD, weight) if widen else (x_BD, weight)


def wide(x_BD: Tensor, w_VD: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in one dtype, float32 or float64."""
    dtype = torch.promote_types(torch.promote_types(x_BD.dtype, w_VD.dtype), torch.float32)
    return x_BD.to(dtype), w_VD.to(dtype)


def check_target(input: Tensor, target: Tensor, classes: int, ignore_index: int, check: bool | None) -> None:
    """Refuse targets that are neither class indices nor class probabilities of the input."""
    check_tensor("target", target)
    check_device("target", target, input)
    leading = tuple(input.shape[:-1])
    if target.is_floating_point():
        check_floating("target", target)
        if tuple(target.shape) != (*leading, classes):
            raise ValueError(
                f"`target` of class probabilities must have shape {(*leading, classes)} to match `input` "
                f"{tuple(input.shape)} and {classes} classes, got {tuple(target.shape)}; class indices must be int64."
            )
        if ignore_index >= 0:
            raise ValueError(
                f"`ignore_index` must be left out with class probabilities, got {ignore_index}; fill the rows to "
                "ignore with zeros."
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
    if check:
        check_indices(target, classes, ignore_index)


def check_indices(target: Tensor, classes: int, ignore_index: int) -> None:
    """Refuse class indices out of range; a compiled graph looks while it runs."""
    must = f"`target` must hold class indices from 0 to {classes - 1} or ignore_index ({ignore_index})"
    remedy = "check the labels and the number of rows of `linear_weight`."
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if torch.compiler.is_compiling():
        _assert_in_graph(~wrong.any(), f"{must}, got another index; {remedy}")
    elif wrong.any():
        raise ValueError(f"{must}, got {target[wrong][0].item()}; {remedy}")


def _assert_in_graph(condition: Tensor, message: str) -> None:
    """Fail while the graph runs, because a compiled graph cannot raise an error while it is traced."""
    torch._assert_async(condition, message)  # torch has no public name for it
