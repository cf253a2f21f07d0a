"""Which implementation of the loss runs: `IMPLS` by name, and the choice that impl="auto" makes, with its reason.

`eager` is the specification that every other implementation is tested against.
"""

import warnings
from collections.abc import Callable

import torch

from harmax.kernels import autograd, chunked, eager
from harmax.kernels.distance import certainly_at_most
from harmax.kernels.problem import LossOptions, LossOutput, Problem
from harmax.kernels.triton import modes, support


def _chunked(problem: Problem, options: LossOptions) -> LossOutput:
    return autograd.loss(problem, "chunked", chunked.choose_block(problem, options))


def _triton(problem: Problem, options: LossOptions) -> LossOutput:
    problem = support.checked(problem)
    return autograd.loss(problem, "triton", modes.choose_block(problem, options))


IMPLS: dict[str, Callable[[Problem, LossOptions], LossOutput]] = {
    "eager": eager.harmonic_loss,
    "chunked": _chunked,
    "triton": _triton,
}

OWN_DTYPES = ("triton",)
"""Implementations that take inputs in their own dtypes. For the others half precision becomes float32 first."""

EAGER_ELEMENTS = {"cpu": 2**18, "cuda": 2**16}
"""Largest tokens * classes for which `auto` keeps the whole matrix. Up to here, few launches cost less than blocks.

Measured with `harmax bench loss` on both devices.
"""

_warned: set[str] = set()


def auto(
    tokens: int, classes: int, device: torch.device | str, *, dtype: torch.dtype = torch.float32, indexed: bool = True
) -> str:
    """Name the implementation that impl="auto" takes; sizes may be symbolic. `indexed`: targets are class indices."""
    device = torch.device(device)
    limit = EAGER_ELEMENTS.get(device.type, EAGER_ELEMENTS["cuda"])
    if certainly_at_most(tokens * classes, limit):
        return "eager"
    return "chunked" if why_not_triton(device, dtype, indexed=indexed) else "triton"


def why_not_triton(device: torch.device, dtype: torch.dtype, *, indexed: bool = True) -> str | None:
    """Return why `auto` does not take `triton`, or None if it does. On a GPU, warn once about a missing requirement."""
    if device.type != "cuda":
        return "it is for GPUs"
    if dtype not in support.DTYPES or not indexed:
        return "it takes float32 and halves, and class indices"
    reason = support.why_not(device)
    if reason is not None and reason not in _warned and not torch.compiler.is_compiling():
        _warned.add(reason)
        warnings.warn(f"impl='auto' takes 'chunked', which is slower: impl='triton' needs {reason}.", stacklevel=4)
    return reason


def choose(
    *,
    tokens: int,
    features: int,
    classes: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[str, str]:
    """Name the implementation that impl="auto" takes for a shape, and the reason.

    >>> choose(tokens=64, features=16, classes=10)[0]
    'eager'
    >>> choose(tokens=1024, features=768, classes=50304)
    ('chunked', 'the 1024 x 50304 matrix would take 196 MiB; chunks of 192 rows take 37 MiB')
    """
    device = torch.device(device)
    name, itemsize = auto(tokens, classes, device, dtype=dtype), 8 if dtype == torch.float64 else 4
    rows = min(tokens, chunked.default_chunk_rows(classes, itemsize, device.type))
    whole, part = (count * classes * itemsize / 2**20 for count in (tokens, rows))
    if name == "eager":
        return name, f"the {tokens} x {classes} matrix is small ({whole:.2g} MiB)"
    if name == "triton":
        shape = (tokens, features, classes)
        free, size = modes.free_bytes(device), dtype.itemsize
        mode = modes.choose_mode(*shape, itemsize=size, free=free)
        takes = modes.peak_bytes(mode, *shape, itemsize=size) / 2**20
        known = "" if free is None else f" of {free / 2**20:.0f} MiB free"
        return name, f"mode {mode} is the fastest that fits: {takes:.0f} MiB{known}, the gradients included"
    return (
        name,
        f"the {tokens} x {classes} matrix would take {whole:.0f} MiB; chunks of {rows} rows take {part:.0f} MiB",
    )
