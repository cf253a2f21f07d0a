"""Squared Euclidean distances, and their gradients, that are exact next to a center too, block by block of centers.

``|x|^2 + |w|^2 - 2 x.w`` cancels when x is close to w. Pairs whose result is small compared with their norms are called
near pairs. They are computed again by subtraction, in the distance and in its gradient: one pair per row at a time, in
a loop that runs as often as the row with the most near pairs needs.

Shape suffixes: B rows, V centers, C centers of a block, D features.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from harmax.jax.meshes import varying
from harmax.kernels.distance import DIRECT_ELEMENTS, NEAR

BLOCK_ELEMENTS = 2**23
"""Elements of a block of the (B, V) matrix: 32 MiB in float32."""

LEAST_CLASSES = 128
"""Centers of a block at least, so that its product is worth a call."""


def product(a: Array, b: Array) -> Array:
    """``a @ b`` without the shortcuts that a GPU or TPU takes in float32: they round what cancels in a distance."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def block_starts(rows: int, classes: int, chunk_classes: int | None = None) -> tuple[Array, int]:
    """The first centers of the blocks, and the size of all blocks; the last one may overlap the one before."""
    size = chunk_classes or max(LEAST_CLASSES, BLOCK_ELEMENTS // max(1, rows))
    count = -(-classes // size)
    size = -(-classes // count)
    return jnp.minimum(jnp.arange(count) * size, classes - size), size


class Vectors(NamedTuple):
    """Vectors and centers, and what all blocks need of them."""

    x_BD: Array
    w_VD: Array
    shift_D: Array
    """A common vector that is subtracted from both in products. Distances do not change, and less cancels."""
    moved_BD: Array
    norm_B: Array
    """``|x|^2`` of the moved vectors."""

    @classmethod
    def of(cls, x_BD: Array, w_VD: Array) -> "Vectors":
        """Subtract the mean center where it is larger than the spread of the centers."""
        finite_V = jnp.isfinite(squared_norm(w_VD))  # a center whose norm overflows has no part in the mean
        count = jnp.maximum(finite_V.sum(), 1)
        finite_VD = jnp.where(finite_V[:, None], w_VD, 0)
        mean_D = finite_VD.sum(0) / count
        spread = squared_norm(finite_VD).sum() / count - squared_norm(mean_D)
        shift_D = jnp.where(squared_norm(mean_D) > spread, mean_D, 0)
        moved_BD = x_BD - shift_D
        return cls(x_BD, w_VD, shift_D, moved_BD, squared_norm(moved_BD))


class Block(NamedTuple):
    """The centers of a block, as they are and moved, and which pairs with them are near."""

    start: Array
    w_CD: Array
    moved_CD: Array
    near_BC: Array


def squared_norm(x: Array) -> Array:
    """``|x|^2`` along the last dimension."""
    return jnp.square(x).sum(-1)


def block_distances(vectors: Vectors, start: Array, size: int) -> tuple[Array, Block]:
    """Squared distances, (B, C), to the centers from `start` on."""
    w_CD = lax.dynamic_slice_in_dim(vectors.w_VD, start, size)
    moved_CD = w_CD - vectors.shift_D
    norm_C = squared_norm(moved_CD)
    infinite_C = jnp.isinf(norm_C)
    norm_C = jnp.where(infinite_C, 0, norm_C)
    s_BC = vectors.norm_B[:, None] + norm_C - 2 * product(vectors.moved_BD, moved_CD.T)
    s_BC = jnp.where(infinite_C, jnp.inf, s_BC)
    near_BC = s_BC <= NEAR * (vectors.norm_B[:, None] + norm_C)

    def put(s_BC: Array, place: Any, there_B: Array, difference_BD: Array) -> Array:
        return s_BC.at[place].set(jnp.where(there_B, squared_norm(difference_BD), s_BC[place]))

    block = Block(start, w_CD, moved_CD, near_BC)
    return _each_near(vectors, block, put, s_BC), block


def _each_near(vectors: Vectors, block: Block, visit: Callable[[Any, Any, Array, Array], Any], carried: Any) -> Any:
    """Visit the near pairs of a block, one per row at a time: ``carried = visit(carried, place, there_B, x - w)``."""
    rows, size = block.near_BC.shape
    row_B, column_C = jnp.arange(rows), jnp.arange(size)

    def body(_: Any, state: tuple[Array, Any]) -> tuple[Array, Any]:
        last_B, carried = state
        ahead_BC = block.near_BC & (column_C > last_B[:, None])
        column_B = ahead_BC.argmax(1)
        there_B = ahead_BC[row_B, column_B]
        carried = visit(carried, (row_B, column_B), there_B, vectors.x_BD - block.w_CD[column_B])
        return jnp.where(there_B, column_B, size), carried

    before_B = jnp.full(rows, -1)
    trips = block.near_BC.sum(1).max(initial=0)
    state = varying((before_B, carried), vectors, block)
    return lax.fori_loop(varying(jnp.zeros_like(trips), trips), trips, body, state)[1]


class Gradients(NamedTuple):
    """Gradients of vectors and centers, which blocks add to."""

    dx_BD: Array
    dw_VD: Array

    @classmethod
    def zeros(cls, vectors: Vectors) -> "Gradients":
        """Return gradients of 0, to which blocks add."""
        return cls(*varying((jnp.zeros_like(vectors.x_BD), jnp.zeros_like(vectors.w_VD)), vectors))

    def with_block(self, vectors: Vectors, block: Block, g_BC: Array) -> "Gradients":
        """Add the part of a block, given the gradients of its distances."""
        far_BC = jnp.where(block.near_BC, 0, g_BC)
        pull_BD = far_BC.sum(1, keepdims=True) * vectors.moved_BD - product(far_BC, block.moved_CD)
        dw_CD = far_BC.sum(0)[:, None] * block.moved_CD - product(far_BC.T, vectors.moved_BD)

        def add(sums: tuple[Array, Array], place: Any, there_B: Array, difference_BD: Array) -> tuple[Array, Array]:
            step_BD = pair_step(jnp.where(there_B, g_BC[place], 0), difference_BD)
            return sums[0] + step_BD, sums[1].at[place[1]].add(-step_BD)

        sums = (self.dx_BD + 2 * pull_BD, 2 * dw_CD)
        dx_BD, dw_CD = _each_near(vectors, block, add, sums)
        before_CD = lax.dynamic_slice_in_dim(self.dw_VD, block.start, len(dw_CD))
        return Gradients(dx_BD, lax.dynamic_update_slice_in_dim(self.dw_VD, before_CD + dw_CD, block.start, 0))


def pair_step(gradient_B: Array, difference_BD: Array) -> Array:
    """``2 g (x - w)``, where a gradient that is too large for its format does not turn a zero into a NaN."""
    largest = jnp.finfo(gradient_B.dtype).max
    return 2 * jnp.clip(gradient_B, -largest, largest)[:, None] * difference_BD


@jax.custom_vjp
def _distance(x_BD: Array, w_VD: Array) -> Array:
    vectors = Vectors.of(x_BD, w_VD)
    starts, size = block_starts(len(x_BD), len(w_VD))

    def body(s_BV: Array, start: Array) -> tuple[Array, None]:
        s_BC, _ = block_distances(vectors, start, size)
        return lax.dynamic_update_slice_in_dim(s_BV, s_BC, start, 1), None

    return lax.scan(body, varying(jnp.zeros((len(x_BD), len(w_VD)), x_BD.dtype), vectors), starts)[0]


@jax.custom_vjp
def _gradient(g_BV: Array, x_BD: Array, w_VD: Array) -> tuple[Array, Array]:
    vectors = Vectors.of(x_BD, w_VD)
    starts, size = block_starts(len(x_BD), len(w_VD))
    done = jnp.concatenate([jnp.zeros(1, starts.dtype), starts[:-1] + size])

    def body(sums: Gradients, place: tuple[Array, Array]) -> tuple[Gradients, None]:
        start, first = place
        _, block = block_distances(vectors, start, size)
        g_BC = lax.dynamic_slice_in_dim(g_BV, start, size, 1)
        g_BC = jnp.where(start + jnp.arange(size) >= first, g_BC, 0)
        return sums.with_block(vectors, block, g_BC), None

    return tuple(lax.scan(body, varying(Gradients.zeros(vectors), g_BV), (starts, done))[0])


def _gradient_backward(kept: tuple[Array, Array, Array], ab: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    # The gradient is bilinear in g and (x, w): <a, dx> + <b, dw> = 2 sum_ij g_ij (a_i - b_j).(x_i - w_j). Only
    # differences matter, so a common shift is removed. Near pairs are not treated separately: see the guide.
    g_BV, x_BD, w_VD = kept
    (x_BD, w_VD), (a_BD, b_VD) = ((p - q.mean(0), q - q.mean(0)) for p, q in ((x_BD, w_VD), ab))
    cross_BV = (
        (a_BD * x_BD).sum(1, keepdims=True) + (b_VD * w_VD).sum(1) - product(a_BD, w_VD.T) - product(x_BD, b_VD.T)
    )
    dx_BD = g_BV.sum(1, keepdims=True) * a_BD - product(g_BV, b_VD)
    dw_VD = g_BV.sum(0)[:, None] * b_VD - product(g_BV.T, a_BD)
    return 2 * cross_BV, 2 * dx_BD, 2 * dw_VD


_gradient.defvjp(lambda *inputs: (_gradient(*inputs), inputs), _gradient_backward)
_distance.defvjp(lambda *inputs: (_distance(*inputs), inputs), lambda kept, g_BV: _gradient(g_BV, *kept))


def squared_distance_matrix(x_BD: Array, w_VD: Array) -> Array:
    """``s_ij = |x_i - w_j|^2``, (B, V), for two matrices of one floating dtype, float32 or float64."""
    x_BD, w_VD = varying((x_BD, w_VD), x_BD, w_VD)
    if x_BD.shape[0] * w_VD.size <= DIRECT_ELEMENTS:
        return squared_norm(x_BD[:, None] - w_VD)
    return _distance(x_BD, w_VD)
