"""Launches of Triton kernels: arguments by name, and compiled kernels without asking again what they depend on.

Through Triton's own front end a launch with thirty arguments takes 50 us of Python, longer than most kernels here run.
It asks for types, alignment, and integers that are 1 or multiples of 16. A training step repeats its shapes, and all
blocks of one step start at multiples of 16. So the shape is enough to know the answers.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

Arguments = Mapping[str, Any]
"""Values for parameters of kernels, by name."""

MOST = 256
"""Shapes remembered: batches of every size must not fill the memory."""

_by_shape: dict[Hashable, dict[Hashable, Any]] = {}


def is_compiled(v: Tensor) -> bool:
    """Whether kernels for this tensor are compiled. Otherwise Triton's interpreter runs them."""
    return v.is_cuda


def programs(count: int, size: int) -> tuple[int]:
    """Return the grid in which each program takes `size` of `count` things."""
    return (-(-count // size),)


class Launcher:
    """Launches kernels for problems of one shape. `shape` has everything that pointers and numbers depend on."""

    def __init__(self, shape: Hashable, device: torch.device) -> None:
        if len(_by_shape) >= MOST:
            _by_shape.clear()
        self.known = _by_shape.setdefault((device, shape), {})
        self.stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        *groups: Arguments,
        size: tuple[int, ...] = (),
        num_warps: int = 4,
        registers: int | None = None,
        **own: Any,
    ) -> None:
        """Launch a kernel. It takes what its parameters name, from `own` first and then from the groups.

        `size` is the size of the block: the arguments' alignment depends on it as well. `registers` limits those of a
        thread.
        """
        given = (own, *groups)
        found = self.known.get((kernel, size)) if self.stream is not None else None
        if found is None:
            places = [(_place(kernel, name, given), name) for name in kernel.arg_names]
            limits = {"num_warps": num_warps} if registers is None else {"num_warps": num_warps, "maxnreg": registers}
            compiled = kernel[grid](*(given[place][name] for place, name in places), **limits)
            if self.stream is not None:
                self.known[kernel, size] = compiled, places
            return
        compiled, places = found
        # Addresses, because for a tensor the launcher would ask the driver where it is.
        values = [
            value.data_ptr() if isinstance(value := given[place][name], Tensor) else value for place, name in places
        ]
        compiled[(*grid, 1, 1)[:3]](*values, stream=self.stream)


def _place(kernel: Any, name: str, given: tuple[Arguments, ...]) -> int:
    for place, group in enumerate(given):
        if name in group:
            return place
    raise TypeError(f"`{name}` must be given to launch {kernel.__name__}, got no value; name it or add its group.")
