"""Sizes of tiles, tables and blocks. Code reads them through this module, so that tests can make them small."""

from typing import Any

TILE: dict[str, Any] = {"BM": 8, "BN": 128, "num_warps": 2}
"""Rows and columns of a tile in the passes over products. One warp has whole rows of it, so sums stay in the warp."""

NEAR_TILE: dict[str, Any] = {"BM": 16, "BN": 1024}
"""Rows per program that searches for rows with near pairs, and columns at a time in a row that it found."""

ROWS = 4
"""Vectors at a time in kernels that read whole vectors."""

PROGRAMS = 2048
"""Number of programs that keeps a GPU busy."""

SLOTS = 8
"""Near pairs per row whose gradients are exact. Slot 0 is the target's. Further pairs go through the products."""

CENTER_SAMPLE = 128
"""Centers whose mean may be subtracted from all vectors."""

PITCH = 128
"""Rows of products are padded to a multiple of this."""

DW_COLUMNS = 8192
"""Classes whose gradient is in float32 at a time, if no sum over blocks of rows is needed."""


def pitch(columns: int) -> int:
    """Elements from one row of products to the next: kernels read whole tiles, and cuBLAS needs aligned rows.

    >>> pitch(50257)
    50304
    """
    return -(-columns // PITCH) * PITCH


def pieces(count: int, size: int) -> list[slice]:
    """Cut a range into slices.

    >>> pieces(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
