"""Squared Euclidean distances, and their gradients, that are exact next to a center too.

``|x|^2 + |w|^2 - 2 x.w`` cancels when x is close to w. Pairs whose result is small compared with their norms are called
near pairs. They are computed again by subtraction, in the distance and in its gradient. How many near pairs exist
depends on the data. So this part is in custom operators, which compile and vmap treat as one opaque node. A graph that
torch.export makes has the same arithmetic in plain operations, because it must run without harmax.

Shape suffixes: B rows, V centers, D features, P pairs.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from harmax.kernels.operators import is_exporting, shapes_of, with_rules, with_true_products, without_autocast

NEAR = 0.05
"""A pair is near when s <= NEAR (|x|^2 + |w|^2). For other pairs float32 products are right to a few 1e-7."""

DIRECT_ELEMENTS = 2**20
"""Largest B * V * D for which all differences x - w are stored (4 MiB in float32)."""

PAIR_ELEMENTS = 2**20
"""Largest temporary tensor, in elements, of work whose size depends on the data."""


def squared_norm(x_BD: Tensor) -> Tensor:
    """Row-wise ``|x|^2``, (B,), in blocks, so that no second matrix of the size of x is needed."""
    norm_B = x_BD.new_empty(len(x_BD))
    rows = max(1, PAIR_ELEMENTS // max(1, x_BD.shape[1]))
    scratch = x_BD.new_empty(min(rows, len(x_BD)), x_BD.shape[1])
    for start in range(0, len(x_BD), rows):
        block = x_BD[start : start + rows]
        torch.sum(torch.mul(block, block, out=scratch[: len(block)]), -1, out=norm_B[start : start + rows])
    return norm_B


def recentered(x_BD: Tensor, w_VD: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Subtract the mean center from both where it is larger than the spread of the centers.

    Subtracting a common vector leaves distances unchanged and avoids cancellation. The third result is a mask of the
    centers whose norm is infinite, (V,), or None if there are none. They have no part in the mean.
    """
    shift_D, infinite_V = _common_center(w_VD)
    return (x_BD, w_VD, infinite_V) if shift_D is None else (x_BD - shift_D, w_VD - shift_D, infinite_V)


def _common_center(w_VD: Tensor) -> tuple[Tensor | None, Tensor | None]:
    mean_D, norm_V = w_VD.mean(0), squared_norm(w_VD)
    spread = norm_V.mean() - mean_D.square().sum()
    if mean_D.square().sum() <= spread:
        return None, None
    infinite_V = norm_V.isinf()
    if not infinite_V.any():
        return mean_D, None
    finite_VD = w_VD[~infinite_V]
    return (_common_center(finite_VD)[0] if len(finite_VD) else None), infinite_V


def center_norm(w_VD: Tensor, infinite_V: Tensor | None) -> Tensor:
    """Row-wise ``|w|^2``, (V,), as `find_near` needs it: 0 for infinite centers, to which nothing is near."""
    norm_V = squared_norm(w_VD)
    return norm_V if infinite_V is None else norm_V.masked_fill(infinite_V, 0.0)


def find_near(s_BV: Tensor, x_norm_B: Tensor, w_norm_V: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns, (P,) each, of the near pairs of a block of squared distances."""
    # One comparison per row is enough in the usual case, in which a row has no near pair.
    suspects = (s_BV.amin(1) <= NEAR * (x_norm_B + w_norm_V.max())).nonzero().squeeze(1)
    found = []
    for rows in suspects.split(max(1, PAIR_ELEMENTS // s_BV.shape[1])):
        near = s_BV[rows] <= NEAR * (x_norm_B[rows, None] + w_norm_V)
        row, column = near.nonzero(as_tuple=True)
        found.append((rows[row], column))
    if not found:
        return suspects, suspects
    return torch.cat([row for row, _ in found]), torch.cat([column for _, column in found])


def pair_differences(x_BD: Tensor, w_VD: Tensor, rows_P: Tensor, columns_P: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``x[row] - w[column]``, (block, D), for consecutive blocks of a list of pairs."""
    size = max(1, PAIR_ELEMENTS // x_BD.shape[1])
    for start in range(0, len(rows_P), size):
        block = slice(start, start + size)
        yield block, x_BD[rows_P[block]] - w_VD[columns_P[block]]


def pair_distances(x_BD: Tensor, w_VD: Tensor, rows_P: Tensor, columns_P: Tensor) -> Tensor:
    """Squared distances, (P,), of listed pairs by subtraction."""
    s_P = x_BD.new_empty(len(rows_P))
    for block, difference_PD in pair_differences(x_BD, w_VD, rows_P, columns_P):
        s_P[block] = difference_PD.square().sum(-1)
    return s_P


def add_pair_gradients(
    grad_P: Tensor,
    x_BD: Tensor,
    w_VD: Tensor,
    rows_P: Tensor,
    columns_P: Tensor,
    dx_BD: Tensor | None,
    dw_VD: Tensor | None,
) -> None:
    """Add ``2 g (x - w)`` to dx and subtract it from dw, in place, for listed pairs."""
    for block, difference_PD in pair_differences(x_BD, w_VD, rows_P, columns_P):
        step_PD = difference_PD.mul_(2 * grad_P[block, None])
        if dx_BD is not None:
            dx_BD.index_add_(0, rows_P[block], step_PD)
        if dw_VD is not None:
            dw_VD.index_add_(0, columns_P[block], step_PD, alpha=-1)


@torch.library.custom_op("harmax::squared_distance", mutates_args=())
@with_true_products
def _distance_op(x_BD: Tensor, w_VD: Tensor) -> Tensor:
    x, w, infinite_V = recentered(x_BD, w_VD)
    x_norm_B, w_norm_V = squared_norm(x), center_norm(w, infinite_V)
    s_BV = torch.addmm(w_norm_V, x, w.T, alpha=-2).add_(x_norm_B[:, None])
    if infinite_V is not None:
        s_BV[:, infinite_V] = torch.inf
    rows, columns = find_near(s_BV, x_norm_B, w_norm_V)
    s_BV[rows, columns] = pair_distances(x_BD, w_VD, rows, columns)
    return s_BV


@shapes_of(_distance_op)
def _(given: Any) -> Tensor:
    return given.x_BD.new_empty(given.x_BD.shape[0], given.w_VD.shape[0])


@torch.library.custom_op("harmax::squared_distance_backward", mutates_args=())
@with_true_products
def _gradient_op(g_BV: Tensor, s_BV: Tensor, x_BD: Tensor, w_VD: Tensor) -> tuple[Tensor, Tensor]:
    x, w, infinite_V = recentered(x_BD, w_VD)
    rows, columns = find_near(s_BV, squared_norm(x), center_norm(w, infinite_V))
    near_P = g_BV[rows, columns]
    far_BV = g_BV.index_put((rows, columns), near_P.new_zeros(()))
    dx_BD = (far_BV.sum(1, keepdim=True) * x).sub_(far_BV @ w).mul_(2)
    dw_VD = (far_BV.sum(0)[:, None] * w).sub_(far_BV.T @ x).mul_(2)
    add_pair_gradients(near_P, x_BD, w_VD, rows, columns, dx_BD, dw_VD)
    return dx_BD, dw_VD


@shapes_of(_gradient_op)
def _(given: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(given.x_BD), torch.empty_like(given.w_VD)


def _save_distance(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _distance_backward(ctx: Any, g_BV: Tensor) -> tuple[Tensor, Tensor]:
    x_BD, w_VD, s_BV = ctx.saved_tensors
    return _gradient(g_BV, s_BV.detach(), x_BD, w_VD)


def _save_gradient(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    g_BV, _, x_BD, w_VD = inputs
    ctx.save_for_backward(g_BV, x_BD, w_VD)


def _gradient_backward(ctx: Any, a_BD: Tensor, b_VD: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
    # The gradient is bilinear in g and (x, w): <a, dx> + <b, dw> = 2 sum_ij g_ij (a_i - b_j).(x_i - w_j). Only
    # differences matter, so a common shift is removed. Near pairs are not treated separately: see the guide.
    g_BV, x_BD, w_VD = ctx.saved_tensors
    (x_BD, w_VD), (a_BD, b_VD) = (
        (p - q.detach().mean(0), q - q.detach().mean(0)) for p, q in ((x_BD, w_VD), (a_BD, b_VD))
    )
    with without_autocast(x_BD.device):
        cross_BV = (a_BD * x_BD).sum(1, keepdim=True) + (b_VD * w_VD).sum(1) - a_BD @ w_VD.T - x_BD @ b_VD.T
        dx_BD = g_BV.sum(1, keepdim=True) * a_BD - g_BV @ b_VD
        dw_VD = g_BV.sum(0)[:, None] * b_VD - g_BV.T @ a_BD
    return 2 * cross_BV, None, 2 * dx_BD, 2 * dw_VD


_distance = with_rules(_distance_op, _distance_backward, _save_distance)
_gradient = with_rules(_gradient_op, _gradient_backward, _save_gradient)


def _plain_distance(x_BD: Tensor, w_VD: Tensor) -> Tensor:
    """The arithmetic of `_distance_op` in operations that every runtime knows; the number of near pairs is dynamic."""
    with without_autocast(x_BD.device):
        infinite_V = w_VD.square().sum(1).isinf()
        finite_VD = w_VD.masked_fill(infinite_V[:, None], 0.0)
        shift_D = finite_VD.mean(0)  # in all cases, because a graph cannot ask whether it is needed
        x, w = x_BD - shift_D, finite_VD - shift_D
        x_norm_B, w_norm_V = x.square().sum(1), w.square().sum(1)
        s_BV = torch.addmm(w_norm_V, x, w.T, alpha=-2) + x_norm_B[:, None]
    near_BV = (s_BV <= NEAR * (x_norm_B[:, None] + w_norm_V)) & ~infinite_V
    rows, columns = near_BV.nonzero(as_tuple=True)
    s_BV = s_BV.index_put((rows, columns), (x_BD[rows] - w_VD[columns]).square().sum(1))
    return s_BV.masked_fill(infinite_V, torch.inf)


def certainly_at_most(size: Any, limit: int) -> bool:
    """Whether a size, symbolic or not, is known to be at most the limit."""
    if isinstance(size, int):
        return size <= limit
    # A size that is symbolic under export or dynamic compilation must not become a guard.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(size <= limit)


@contextmanager
def direct_distances() -> Iterator[None]:
    """Inside this context, compute all differences x - w at any size, without the custom operators.

    It is for functions that become one graph. Compiled, the differences are never stored. An operator whose work
    depends on the data can be neither fused nor recorded on a GPU. Other threads are affected meanwhile: their results
    stay right and need more memory. (A context variable would break graphs of torch.compile.)
    """
    global DIRECT_ELEMENTS
    before, DIRECT_ELEMENTS = DIRECT_ELEMENTS, sys.maxsize
    try:
        yield
    finally:
        DIRECT_ELEMENTS = before


def squared_distance_matrix(x_BD: Tensor, w_VD: Tensor) -> Tensor:
    """``s_ij = |x_i - w_j|^2``, (B, V), for two matrices of one floating dtype, float32 or float64."""
    if certainly_at_most(x_BD.shape[0] * w_VD.shape[0] * w_VD.shape[1], DIRECT_ELEMENTS):
        return (x_BD[:, None] - w_VD).square().sum(-1)
    if is_exporting():
        return _plain_distance(x_BD, w_VD)
    return _distance(x_BD, w_VD)
