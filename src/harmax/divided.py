"""Functions of all classes, computed by ranks that divide the classes among themselves."""

# B rows, C rows of a chunk, V classes of this rank

from collections.abc import Callable
from typing import Any

from torch import Tensor

from harmax.checks import check_softening, checked_matrices, checked_prior, resolve_exponent
from harmax.kernels import autograd, eager, sharded
from harmax.kernels.chunked import default_chunk_rows, row_chunks
from harmax.kernels.problem import Block, LossOptions, LossOutput, Problem
from harmax.kernels.ranks import Ranks, Shares
from harmax.sharding import Place, place_of, refusing_together


def problem_of(
    place: Place,
    input: Tensor,
    weight: Tensor,
    exponent: float | Tensor | None = None,
    softening: float = 0.0,
    prior: Tensor | None = None,
) -> sharded.Sharded:
    """Check the arguments of logits, and return what this rank computes with."""
    x, own_VD, number, ranks = place.rows(input), place.centers(weight), place.number(exponent), Ranks(str(place.group))
    with ranks.refusing_together(x):
        checked_prior(prior, place.classes, weight)
        x_BD, w_VD = checked_matrices(x, own_VD, classes=place.classes)
        prior_V = place.prior(prior, len(w_VD))
        prior_V = None if prior_V is None else prior_V.to(x_BD.dtype)
        number = resolve_exponent(number, x.shape[-1])
        return sharded.Sharded(x_BD, w_VD, number, check_softening(softening), prior_V, ranks)


def columns(
    plain: Callable[..., Tensor],
    own_columns: Callable[[sharded.Sharded], tuple[Tensor, Shares]],
    input: Tensor,
    weight: Tensor,
    **kernel: Any,
) -> Tensor:
    """Return a matrix of all classes, whose columns the ranks compute with their own centers.

    Args:
        plain: the function for plain tensors, where every rank computes with all classes.
        own_columns: computes the columns of a rank.
        input, weight, kernel: as for `harmonic_logits`.
    """
    place = place_of(input, weight, "weight")
    if place.group is None:
        return place.repeated(plain(*place.operands(input, weight), **place.settings(kernel)))
    own_BV, shares = own_columns(problem_of(place, input, weight, **kernel))
    return place.divided(own_BV.reshape(*input.shape[:-1], own_BV.shape[1]), shares.counts)


def entropy(plain: Callable[..., Tensor], input: Tensor, weight: Tensor, options: LossOptions, **kernel: Any) -> Tensor:
    """Return the entropy of each row's probabilities, (...), the same on all ranks."""
    place = place_of(input, weight, "weight")
    if place.group is None:
        return plain(*place.operands(input, weight), options=options, **place.settings(kernel))
    problem = problem_of(place, input, weight, **kernel)

    def rows(x_CD: Tensor) -> Tensor:
        log_p_CV, _ = sharded.log_probabilities(problem._replace(x_BD=x_CD))
        return eager.entropy(log_p_CV)

    largest, w_VD = -(-place.classes // problem.ranks.size), problem.w_VD
    chunk_rows = options.chunk_rows or default_chunk_rows(largest, w_VD.element_size(), w_VD.device.type)
    part_B = row_chunks(rows, problem.x_BD, w_VD, LossOptions(chunk_rows=chunk_rows))
    return place.total(part_B).reshape(input.shape[:-1])


def loss(problem: Problem, group: str, options: LossOptions, impl: str) -> LossOutput:
    """Return loss and statistics of a problem with the centers of this rank."""
    with refusing_together(group, problem.x_BD):
        if impl not in ("auto", "chunked"):
            raise ValueError(
                f"`impl` must be 'auto' or 'chunked' for centers that ranks divide among themselves, got {impl!r}; "
                "leave it out, or gather the centers first."
            )
    return autograd.loss(problem, f"{autograd.SHARDED}{group}", Block(options.chunk_rows or 0, 0))
