"""Launches of Triton kernels that were compiled before, without asking again what they were compiled for.

Through Triton's own front a launch with thirty arguments takes 50 us of Python, longer than most kernels here run. What
it asks for are types, alignment, and integers that are 1 or multiples of 16; here the integers themselves are the key,
because a training step repeats its sizes.
"""

from typing import Any

from torch import Tensor

MOST = 4096
"""Launches remembered: more than any step has, few enough for batches of every size."""

_compiled: dict[tuple[Any, ...], Any] = {}


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """``kernel[grid](*args, **constants)``; tensors, numbers and None in order, then what is compiled in by name."""
    if not isinstance(args[0], Tensor) or not args[0].is_cuda:  # under Triton's interpreter nothing is compiled
        kernel[grid](*args, **constants)
        return
    key = (kernel, args[0].device, *constants.values(), *map(_kind, args))
    known = _compiled.get(key)
    if known is None:
        if len(_compiled) >= MOST:
            _compiled.clear()
        _compiled[key] = kernel[grid](*args, **constants)
        return
    compiled_in = [constants[name] for name in kernel.arg_names[len(args) :]]
    known[(*grid, 1, 1)[:3]](*args, *compiled_in)


def _kind(argument: Any) -> Any:
    """What a kernel may depend on: a tensor's type and alignment, a whole number, nothing of a float."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16
    return None if isinstance(argument, float) else argument
