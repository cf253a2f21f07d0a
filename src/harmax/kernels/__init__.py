"""One loss, several implementations.

`IMPLS` maps a name to a function of a `Problem`; `eager` is the specification that every other one is tested against.
"""

from collections.abc import Callable

import torch

from harmax.kernels import chunked, eager, triton
from harmax.kernels.distance import certainly_at_most
from harmax.kernels.options import LossOptions

IMPLS: dict[str, Callable[[eager.Problem, LossOptions], eager.LossOutput]] = {
    "eager": eager.harmonic_loss,
    "chunked": chunked.harmonic_loss,
    "triton": triton.harmonic_loss,
}

OWN_DTYPES = ("triton",)
"""Implementations that take inputs as they are; for the others half precision becomes float32 first."""

EAGER_ELEMENTS = {"cpu": 2**18, "cuda": 2**24}
"""Largest tokens * classes for which `auto` keeps the whole matrix.

Above it chunked measured faster on the CPU, and no slower on a GPU, where many small launches cost more than memory.
"""


def auto(tokens: int, classes: int, device: str) -> str:
    """Name the implementation that `impl="auto"` takes; sizes may be symbolic."""
    limit = EAGER_ELEMENTS.get(device, EAGER_ELEMENTS["cuda"])
    return "eager" if certainly_at_most(tokens * classes, limit) else "chunked"


def choose(
    *,
    tokens: int,
    features: int,
    classes: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[str, str]:
    """Name the implementation that `impl="auto"` takes for a shape, and the reason.

    >>> choose(tokens=64, features=16, classes=10)[0]
    'eager'
    >>> choose(tokens=1024, features=768, classes=50304)
    ('chunked', 'the 1024 x 50304 matrix would take 196 MiB; chunks of 192 rows take 37 MiB')
    """
    itemsize = 8 if dtype == torch.float64 else 4
    kind = torch.device(device).type
    name, rows = auto(tokens, classes, kind), min(tokens, chunked.default_chunk_rows(classes, itemsize, kind))
    whole, part = (count * classes * itemsize / 2**20 for count in (tokens, rows))
    if name == "eager":
        return name, f"the {tokens} x {classes} matrix is small ({whole:.2g} MiB)"
    return (
        name,
        f"the {tokens} x {classes} matrix would take {whole:.0f} MiB; chunks of {rows} rows take {part:.0f} MiB",
    )
