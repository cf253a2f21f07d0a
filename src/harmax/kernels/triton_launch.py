"""Launches of Triton kernels that were compiled before, without asking again what they were compiled for.

Through Triton's own front a launch with thirty arguments takes 50 us of Python, longer than most kernels here run. What
it asks for are types, alignment, and integers that are 1 or multiples of 16. A training step repeats its shapes, and
within one all blocks start at multiples of 16: the shape says as much.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

MOST = 256
"""Shapes remembered: batches of every size must not fill the memory."""

_by_shape: dict[Hashable, dict[Hashable, Any]] = {}


class Launcher:
    """Launches kernels for problems of one shape; `shape` has everything that pointers and numbers depend on."""

    def __init__(self, shape: Hashable, device: torch.device) -> None:
        if len(_by_shape) >= MOST:
            _by_shape.clear()
        self.known = _by_shape.setdefault((device, shape), {})
        self.stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None

    def __call__(
        self, kernel: Any, grid: tuple[int, ...], *args: Any, size: tuple[int, ...] = (), **constants: Any
    ) -> None:
        """``kernel[grid](*args, **constants)``. `size` is that of the block, which the arguments depend on as well."""
        if self.stream is None:  # under Triton's interpreter nothing is compiled
            kernel[grid](*args, **constants)
            return
        key = (kernel, size)
        found = self.known.get(key)
        if found is None:
            compiled = kernel[grid](*args, **constants)
            self.known[key] = compiled, [constants[name] for name in kernel.arg_names[len(args) :]]
        else:
            compiled, compiled_in = found
            # Addresses: of a tensor the launcher would ask the driver where it lies.
            values = [value.data_ptr() if isinstance(value, Tensor) else value for value in args]
            compiled[(*grid, 1, 1)[:3]](*values, *compiled_in, stream=self.stream)
