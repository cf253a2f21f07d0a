"""Checks of tensors that several functions take, in one grammar of errors."""

from typing import Any

import torch
from torch import Tensor

from harmax.kernels.operators import is_traced

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    if prior.device.type != "cpu" or is_traced(prior):
        return prior
    wrong = ~(prior < torch.inf)
    if wrong.any():
        raise ValueError(
            f"`prior` must hold finite log-weights or -inf, got {prior[wrong][0].item()}; take the logarithm of "
            "weights that are not negative."
        )
    if (prior == -torch.inf).all():
        raise ValueError(
            f"`prior` must leave at least one class, got -inf for all {classes}; give classes that may occur a finite "
            "log-weight."
        )
    return prior


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
