"""The types that all implementations of the loss share: what to compute, how, and what comes back.

Shape suffixes: B rows, V classes, D features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

MODES = ("fast", "balanced", "lean")
"""Modes of impl="triton", from the fastest to the one that needs the least memory."""


@dataclass(frozen=True)
class LossOptions:
    """How `harmonic_loss` computes. No option changes what it computes."""

    chunk_rows: int | None = None
    """Rows of the (tokens, classes) matrix in memory at a time (impl="chunked").

    None: as many as fit into 38 MiB, or into 256 MiB on a GPU."""
    mode: str | None = None
    """Time against memory (impl="triton"). None: the first of these that fits into the free memory.

    "fast" keeps up to 8192 rows of the (tokens, classes) matrix in 16 bits, "balanced" about 2048 rows. "lean" keeps a
    block of rows and classes, and computes a fourth matrix product in return."""
    check_targets: bool | None = None
    """Whether to look for class indices out of range. None: on the CPU, outside compile and vmap, where it is cheap."""

    def __post_init__(self) -> None:
        if self.chunk_rows is not None and (not isinstance(self.chunk_rows, int) or self.chunk_rows < 1):
            raise ValueError(
                f"`chunk_rows` must be a whole number from 1 on, got {self.chunk_rows}; leave it None for the default."
            )
        if self.mode not in (None, *MODES):
            raise ValueError(f"`mode` must be one of {', '.join(MODES)}, got {self.mode!r}; see LossOptions.")


class Problem(NamedTuple):
    """One loss to compute: flattened tensors, and the settings that `F.cross_entropy` has too.

    All tensors have one dtype, float32 or float64. Only `triton` takes x and w in their own dtypes.
    """

    x_BD: Tensor
    w_VD: Tensor
    target: Tensor
    """Class indices (B,) or class probabilities (B, V)."""
    exponent: float | Tensor
    """The power of the distance; a tensor is 0-d."""
    softening: float
    weight_V: Tensor | None
    ignore_index: int
    label_smoothing: float
    reduction: str
    prior_V: Tensor | None = None
    """The logarithm of a weight per class, which is added to its logit. -inf leaves the class out."""


class LossOutput(NamedTuple):
    """The loss, and per row the log-sum-exp of the logits and whether the most probable class is the target."""

    loss: Tensor
    logsumexp: Tensor
    hit: Tensor


class Wanted(NamedTuple):
    """Which gradients to compute."""

    x: bool
    w: bool
    exponent: bool
    prior: bool = False


class Block(NamedTuple):
    """The part of the (B, V) matrix that is in memory at a time."""

    rows: int
    columns: int


ANY_BLOCK = Block(0, 0)
"""The engine chooses the block when it runs, by the memory that is free then."""


class Result(NamedTuple):
    """What an engine computes: losses and statistics per row, and the wanted gradients (the others are empty)."""

    loss_B: Tensor
    logsumexp_B: Tensor
    hit_B: Tensor
    """Whether the most probable class is the target."""
    dx_BD: Tensor
    dw_VD: Tensor
    dexponent: Tensor
    dprior_V: Tensor


Scale = Callable[[], Tensor]
"""Makes the upstream gradient of each row's loss, (B,), when an engine needs it."""

Engine = Callable[[Problem, Wanted, Scale, Block], Result]
"""Computes a problem block by block."""
