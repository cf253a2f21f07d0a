"""How a loss is computed, never what."""

from dataclasses import dataclass

MODES = ("fast", "balanced", "lean")
"""From the fastest to the leanest."""


@dataclass(frozen=True)
class LossOptions:
    """How `harmonic_loss` computes, never what."""

    chunk_rows: int | None = None
    """Rows of the (tokens, classes) matrix in memory at a time (impl="chunked"); None: 38 MiB of them, 256 on a GPU."""
    mode: str | None = None
    """Time against memory (impl="triton"): "fast" keeps up to 8192 rows of the (tokens, classes) matrix in 16 bits,
    "balanced" some 2048, "lean" a block of rows and classes, at the price of a fourth matrix product. None: the first
    that fits into what memory is free."""
    check_targets: bool | None = None
    """Look for class indices out of range. None: on the CPU, outside compile and vmap, where looking is free."""

    def __post_init__(self) -> None:
        if self.chunk_rows is not None and (not isinstance(self.chunk_rows, int) or self.chunk_rows < 1):
            raise ValueError(
                f"`chunk_rows` must be a whole number from 1 on, got {self.chunk_rows}; leave it None for the default."
            )
        if self.mode not in (None, *MODES):
            raise ValueError(f"`mode` must be one of {', '.join(MODES)}, got {self.mode!r}; see LossOptions.")
