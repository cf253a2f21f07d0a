"""Tensors that are distributed over ranks (`DTensor`): what they mean to the functions of harmax.

| input | centers | what happens |
|---|---|---|
| plain: every rank has rows of its own | sharded, as FSDP stores them | centers are gathered, gradients averaged |
| DTensor, any placement | divided along the classes | every rank computes with its own classes |
| DTensor, any placement | replicated | every rank computes everything |

Anything else is refused. `torch.distributed.tensor` is not imported before somebody has made a DTensor.
"""

# B rows, D features, V classes of this rank

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harmax.kernels.ranks import Ranks


def is_distributed(*values: Any) -> bool:
    """Whether a value is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(value, module.DTensor) for value in values)


def local_part(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor."""
    if not is_distributed(tensor):
        return tensor
    local: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return local


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor that ranks divide, without gradient; all of them must call this."""
    if not is_distributed(tensor):
        return tensor
    full: Tensor = tensor.detach().full_tensor()  # type: ignore[attr-defined]
    return full


def total_of_parts(values: Tensor, of: Tensor) -> Tensor:
    """Return the sum of values that every rank has computed from its part of a tensor, in place."""
    for dimension in range(of.device_mesh.ndim) if is_distributed(of) else ():  # type: ignore[attr-defined]
        torch.distributed.all_reduce(values, group=of.device_mesh.get_group(dimension))  # type: ignore[attr-defined]
    return values


class Place(NamedTuple):
    """Where the rows and the classes of a problem are, decided by the input and the centers."""

    mesh: Any
    """The ranks; None where only other tensors are distributed."""
    group: str | None
    """The process group that divides the classes; None: every rank computes with all of them."""
    classes: int
    """The number of all classes."""
    rows_differ: bool
    """Whether every rank has rows of its own."""

    def rows(self, input: Tensor) -> Tensor:
        """Return the rows that this rank computes with."""
        return self._whole(input) if self.group is None else self._shared(input)

    def operands(self, input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows and centers of this rank."""
        return self.rows(input), self.centers(weight)

    def settings(self, kernel: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of logits, where every rank computes with all classes."""
        own = {"exponent": self.number(kernel.get("exponent")), "prior": self.prior(kernel.get("prior"), self.classes)}
        return {**kernel, **own}

    def number(self, exponent: Any) -> Any:
        """Return the exponent as this rank takes it."""
        if not isinstance(exponent, Tensor):
            return exponent
        return self._whole(exponent) if self.group is None else self._shared(exponent)

    def centers(self, weight: Tensor) -> Tensor:
        """Return the centers that this rank computes with, (V, D)."""
        if self.group is None:
            return self._whole(weight)
        local: Tensor = weight.to_local()  # type: ignore[attr-defined]
        return local

    def prior(self, prior: Tensor | None, own: int) -> Tensor | None:
        """Return the log-weights of the classes that this rank computes with, (V,)."""
        if prior is None:
            return None
        if self.group is None:
            return self._whole(prior)
        from torch.distributed.tensor import Shard

        local: Tensor = self._replicated(prior).redistribute(self.mesh, [Shard(0)]).to_local()
        if len(local) != own:
            raise ValueError(
                f"`prior` must be divided among the ranks as the centers are, got {len(local)} log-weights for {own} "
                "classes on this rank; distribute both with the same placement."
            )
        return local

    def target(self, target: Tensor, own: int) -> Tensor:
        """Return the targets: indices of all classes, or probabilities of all or of this rank's classes."""
        if self.group is not None and is_distributed(target) and target.is_floating_point():
            from torch.distributed.tensor import Shard

            local = self._replicated(target).redistribute(self.mesh, [Shard(target.ndim - 1)]).to_local()
            fits = local.shape[-1] == own and not target.requires_grad
            if Ranks(self.group).least(torch.tensor(fits, dtype=torch.int32, device=local.device)).item():
                return local
        return whole(target)

    def divided(self, columns: Tensor, counts: list[int]) -> Tensor:
        """Return this rank's columns, (..., V), as a part of the matrix of all classes."""
        from torch.distributed.tensor import DTensor, Replicate, Shard

        shape = torch.Size((*columns.shape[:-1], self.classes))
        if counts == _even_counts(self.classes, len(counts)):
            stride = torch.empty(shape, device="meta").stride()
            placements = [Shard(columns.ndim - 1)]
            return DTensor.from_local(columns, self.mesh, placements, run_check=False, shape=shape, stride=stride)
        # Padding rows of the centers make shares that no placement describes.
        full: Tensor = _Joined.apply(columns, counts, Ranks(str(self.group)))
        return DTensor.from_local(full, self.mesh, [Replicate()], run_check=False)

    def repeated(self, result: Tensor) -> Tensor:
        """Return a result that every rank has computed with all classes, as distributed as the input was."""
        if self.mesh is None or self.rows_differ:
            return result
        from torch.distributed.tensor import DTensor, Replicate

        return DTensor.from_local(result, self.mesh, [Replicate()], run_check=False)

    def total(self, part: Tensor) -> Tensor:
        """Return the sum over the ranks, as a plain tensor that is the same on all of them."""
        from torch.distributed.tensor import DTensor, Partial, Replicate

        summed = DTensor.from_local(part, self.mesh, [Partial()], run_check=False)
        result: Tensor = summed.redistribute(self.mesh, [Replicate()]).to_local()
        return result

    def _whole(self, tensor: Tensor) -> Tensor:
        """Return a tensor as every rank needs it, to compute with all classes."""
        if not is_distributed(tensor):
            return tensor
        from torch.distributed.tensor import Partial, Replicate

        mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
        same = tensor.redistribute(mesh, [Replicate()] * mesh.ndim)  # type: ignore[attr-defined]
        if not self.rows_differ:
            return same.to_local()
        local: Tensor = same.to_local(grad_placements=[Partial()] * mesh.ndim)
        if local.requires_grad:
            # Gradients are averaged, as FSDP does. So they are right as well if all ranks have the same rows.
            local.register_hook(lambda gradient: gradient / mesh.size())
        return local

    def _shared(self, tensor: Tensor) -> Tensor:
        """Return what all ranks compute with, whose gradient is a sum over the ranks."""
        from torch.distributed.tensor import Partial, Replicate

        same = self._replicated(tensor).redistribute(self.mesh, [Replicate()])
        local: Tensor = same.to_local(grad_placements=[Partial()])
        return local

    def _replicated(self, tensor: Tensor) -> Any:
        from torch.distributed.tensor import DTensor, Replicate

        if is_distributed(tensor):
            return tensor
        return DTensor.from_local(tensor, self.mesh, [Replicate()], run_check=False)


def place_of(input: Tensor, weight: Tensor, name: str) -> Place:
    """Decide where a problem is computed; refuse mixtures that cannot be right.

    Args:
        input: vectors.
        weight: centers.
        name: of the centers in messages.
    """
    register_rules()
    if not is_distributed(input):
        return Place(getattr(weight, "device_mesh", None), None, len(weight), True)
    mesh: Any = input.device_mesh  # type: ignore[attr-defined]
    if not is_distributed(weight):
        raise TypeError(
            f"`{name}` must be a DTensor, as `input` is, got a plain tensor; distribute it with "
            "torch.distributed.tensor.distribute_tensor, or give input.full_tensor()."
        )
    theirs: Any = weight.device_mesh  # type: ignore[attr-defined]
    if mesh != theirs or mesh.ndim != 1:
        raise ValueError(
            f"`input` and `{name}` must be on one mesh with one dimension, that of the ranks which divide the classes, "
            f"got {mesh} and {theirs}; give both on that part of the mesh, such as mesh['tp']."
        )
    (placement,) = weight.placements  # type: ignore[attr-defined]
    if placement.is_replicate():
        return Place(mesh, None, len(weight), False)
    if not placement.is_shard(0):
        raise ValueError(
            f"`{name}` must be divided along its classes, Shard(0), or replicated, got {placement}; distances need all "
            "features of a center on one rank."
        )
    if len(weight) < mesh.size():
        raise ValueError(
            f"`{name}` must have at least as many classes as ranks divide them ({mesh.size()}), got {len(weight)}; "
            "replicate it, or use fewer ranks."
        )
    return Place(mesh, mesh.get_group().group_name, len(weight), False)


def refusing_together(group: str | None, like: Tensor) -> AbstractContextManager[None]:
    """Surround checks of what one rank was given: those that share the classes with it do not wait if they fail."""
    return nullcontext() if group is None else Ranks(group).refusing_together(like)


def first_rows(tensor: Tensor, rows: int) -> Tensor:
    """Return the first rows of a tensor. Of one that is divided along its rows, every rank keeps its own part."""
    if rows == len(tensor) or not is_distributed(tensor):
        return tensor[:rows]
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    placements: Any = tensor.placements  # type: ignore[attr-defined]
    if mesh.ndim != 1 or not placements[0].is_shard(0):
        return tensor[:rows]
    from torch.distributed.tensor import DTensor

    share = -(-len(tensor) // mesh.size())
    left = max(0, rows - share * mesh.get_local_rank())
    shape, local = torch.Size((rows, *tensor.shape[1:])), tensor.to_local()  # type: ignore[attr-defined]
    return DTensor.from_local(local[:left], mesh, placements, run_check=False, shape=shape, stride=tensor.stride())


def _even_counts(classes: int, ranks: int) -> list[int]:
    """How many classes each rank holds of a DTensor.

    >>> _even_counts(9, 4)
    [3, 3, 3, 0]
    """
    share = -(-classes // ranks)
    return [max(0, min(share, classes - share * rank)) for rank in range(ranks)]


class _Joined(torch.autograd.Function):
    """Columns of all ranks side by side. Every rank has the same gradient of it, and keeps its own columns."""

    @staticmethod
    def forward(ctx: Any, columns: Tensor, counts: list[int], ranks: Ranks) -> Tensor:
        first = sum(counts[: ranks.rank])
        ctx.own = slice(first, first + counts[ranks.rank])
        full = columns.new_zeros(*columns.shape[:-1], sum(counts))
        full[..., ctx.own] = columns
        return ranks.sum(full)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][..., ctx.own], None, None


@cache
def register_rules() -> None:
    """Tell DTensor how the distance may be divided: along the classes, or along the rows."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    whole, rows, columns = Replicate(), Shard(0), Shard(1)

    @register_sharding(torch.ops.harmax.squared_distance.default)
    def distance(x_BD: Any, w_VD: Any) -> list[tuple[list[Any], list[Any]]]:
        return [([whole], [whole, whole]), ([columns], [whole, Shard(0)]), ([rows], [rows, whole])]

    @register_sharding(torch.ops.harmax.squared_distance_backward.default)
    def gradient(g_BV: Any, s_BV: Any, x_BD: Any, w_VD: Any) -> list[tuple[list[Any], list[Any]]]:
        return [
            ([whole, whole], [whole] * 4),
            ([Partial(), Shard(0)], [columns, columns, whole, Shard(0)]),
            ([rows, Partial()], [rows, rows, rows, whole]),
        ]
