"""How a problem is cut into blocks, and the dtypes in which it is multiplied.

Half-precision inputs are multiplied as float16, scaled row by row, and summed in float32. A bfloat16 fits into it
without rounding, and the product has eight times the precision of bfloat16 logits. Gradient weights are bfloat16, for
its range. float32 inputs are multiplied in float32.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from harmax.kernels.problem import Block
from harmax.kernels.triton import tiles

NEAR = {torch.float32: 0.05, torch.float16: 0.25}
"""A pair is near when s <= NEAR (|x|^2 + |w|^2). For other pairs a product of that dtype is precise enough."""

LISTED_NEAR = 1e-4
"""The same limit for pairs whose gradient stays out of the products, if these have exact factors and float32 sums."""


class Layout(NamedTuple):
    """Sizes, blocks and dtypes of one computation."""

    tokens: int
    features: int
    classes: int
    row_blocks: list[slice]
    column_blocks: list[slice]
    product_dtype: torch.dtype
    weight_dtype: torch.dtype
    """Of the gradient weights."""
    exact: bool
    """Whether the weights' dtype holds x and w exactly.

    Then no center is subtracted from what weights are multiplied by, and only the very nearest pairs must stay out of
    the products, because only float32 sums of exact terms cancel."""
    near: float
    listed_near: float
    width: int
    """Features that a kernel reads at a time."""
    splits: int
    """Programs that share the columns of a row in the first pass: enough to keep the device busy."""
    span: int
    """Columns of one split: enough to be worth a program."""

    @property
    def one_block(self) -> bool:
        """Whether the whole matrix is one block."""
        return len(self.row_blocks) == len(self.column_blocks) == 1


def lay_out(x_BD: Tensor, w_VD: Tensor, block: Block) -> Layout:
    """Cut a problem into blocks of at most this size."""
    (tokens, features), classes = x_BD.shape, len(w_VD)
    row_blocks = tiles.pieces(tokens, max(1, min(block.rows, tokens)))
    column_blocks = tiles.pieces(classes, max(1, min(block.columns, classes)))
    halves = x_BD.dtype != torch.float32
    product_dtype = torch.float16 if halves else torch.float32
    weight_dtype = torch.bfloat16 if halves else torch.float32
    exact = halves and all(v.dtype == weight_dtype for v in (x_BD, w_VD))
    near = NEAR[product_dtype]
    first_rows = row_blocks[0].stop if row_blocks else 0
    row_programs = max(1, -(-first_rows // tiles.TILE["BM"]))
    columns = tiles.pitch(column_blocks[0].stop)
    splits = max(1, min(-(-tiles.PROGRAMS // row_programs), columns // (4 * tiles.TILE["BN"])))
    return Layout(
        tokens=tokens,
        features=features,
        classes=classes,
        row_blocks=row_blocks,
        column_blocks=column_blocks,
        product_dtype=product_dtype,
        weight_dtype=weight_dtype,
        exact=exact,
        near=near,
        listed_near=LISTED_NEAR if exact else near,
        width=min(1024, 1 << max(4, (features - 1).bit_length())),
        splits=splits,
        span=-(-columns // (splits * tiles.TILE["BN"])) * tiles.TILE["BN"],
    )
