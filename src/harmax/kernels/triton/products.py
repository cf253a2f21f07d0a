"""Step 3: the large matrix products, by cuBLAS.

Shape suffixes: D features, R rows of a block, C classes of a block.
"""

import torch
from torch import Tensor

from harmax.kernels.triton import tiles
from harmax.kernels.triton.layout import Layout


def multiply(a: Tensor, b: Tensor, out: Tensor, *, add: bool = False) -> None:
    """``a @ b`` into `out`, or added to it, summed in float32."""
    if not a.is_cuda:  # only under Triton's interpreter; the CPU would sum halves in half precision
        product = a.float() @ b.float()
        out.add_(product) if add else out.copy_(product)
    elif a.dtype == out.dtype:
        torch.addmm(out, a, b, out=out) if add else torch.mm(a, b, out=out)
    else:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out) if add else torch.mm(a, b, out_dtype=out.dtype, out=out)


def _eights(count: int, *by_row: Tensor) -> list[tuple[int, tuple[Tensor, ...]]]:
    """Cut matrices of `count` rows at the last multiple of 8; each part comes with the number of rows before it.

    cuBLAS is five times slower on sizes that are not multiples of 8, however aligned. Most sizes are multiples, and
    views cost time too, so these stay whole.
    """
    even = count // 8 * 8
    if even in (0, count):
        return [(0, by_row)]
    return [(0, tuple(v[:even] for v in by_row)), (even, tuple(v[even:] for v in by_row))]


class Products:
    """Blocks of X W^T, one at a time in one buffer."""

    def __init__(self, layout: Layout, x_BD: Tensor, w_VD: Tensor) -> None:
        self.x_BD, self.w_VD = x_BD, w_VD
        elements = layout.row_blocks[0].stop * tiles.pitch(layout.column_blocks[0].stop)
        self._buffer = x_BD.new_empty(elements, dtype=layout.product_dtype)
        self._place: tuple[slice, slice] | None = None
        self._product_RC = self._buffer

    def block(self, rows: slice, columns: slice) -> Tensor:
        """Return a block, computed now unless it is the block in the buffer."""
        if self._place != (rows, columns):
            count, width = rows.stop - rows.start, columns.stop - columns.start
            whole = self._buffer[: count * tiles.pitch(width)].view(count, tiles.pitch(width))
            product_RC, x_RD = whole[:, :width], self.x_BD[rows]
            for _, (w_CD, product_CR) in _eights(width, self.w_VD[columns], product_RC.T):
                multiply(x_RD, w_CD.T, product_CR.T)
            if width < tiles.pitch(width):
                whole[:, width:].zero_()
            self._place, self._product_RC = (rows, columns), product_RC
        return self._product_RC

    def take(self, rows: slice, columns: slice) -> Tensor:
        """Return a block that the caller will overwrite."""
        product_RC = self.block(rows, columns)
        self._place = None
        return product_RC


def add_weighted_centers(weight_RC: Tensor, w_CD: Tensor, sum_RD: Tensor, *, first: int) -> None:
    """Add G W of some classes to a sum, which starts with class 0; `first` is the first of these classes."""
    for start, (weight_CR, part_CD) in _eights(weight_RC.shape[1], weight_RC.T, w_CD):
        multiply(weight_CR.T, part_CD, sum_RD, add=first + start > 0)


def add_weighted_inputs(weight_RC: Tensor, x_RD: Tensor, sum_CD: Tensor, *, first: int) -> None:
    """Add G^T X of some rows to a sum, which starts with row 0; `first` is the first of these rows."""
    for _, (weight_CR, part_CD) in _eights(weight_RC.shape[1], weight_RC.T, sum_CD):
        multiply(weight_CR, x_RD, part_CD, add=first > 0)
