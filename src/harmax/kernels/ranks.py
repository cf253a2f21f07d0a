"""The ranks of a process group that divide the classes among themselves: what they exchange, and what they agree on.

Shape suffixes: R ranks, K numbers. Leading dimensions are free.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

NUMBERS = 20
"""How many numbers ranks exchange to agree: always as many, because an exchange of other sizes would crash or hang."""


class Shares(NamedTuple):
    """How many classes each rank holds, in the order of the ranks."""

    counts: list[int]
    rank: int

    @property
    def classes(self) -> int:
        """The number of all classes."""
        return sum(self.counts)

    @property
    def first(self) -> int:
        """The number of the first class of this rank."""
        return sum(self.counts[: self.rank])

    @property
    def own(self) -> slice:
        """The classes of this rank."""
        return slice(self.first, self.first + self.counts[self.rank])

    @property
    def largest(self) -> int:
        """The number of classes of the rank that has most, by which all ranks choose their blocks."""
        return max(self.counts)


class Ranks:
    """The ranks of a process group, by the name of the group."""

    def __init__(self, name: str) -> None:
        self.name = name
        resolve: Any = dist.distributed_c10d._resolve_process_group  # its parameter's type is not in every release
        self._group = resolve(name)
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)

    def least(self, values: Tensor) -> Tensor:
        """Return the smallest value over all ranks."""
        values = values.contiguous()
        dist.all_reduce(values, dist.ReduceOp.MIN, group=self._group)
        return values

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks; each of them gets the gradient of all its uses."""
        result: Tensor = _Sum.apply(values, self)
        return result

    def gather(self, values: Tensor) -> Tensor:
        """Return the values of all ranks, (R, ...)."""
        gathered = values.new_empty(self.size, *values.shape)
        dist.all_gather(list(gathered.unbind()), values.contiguous(), group=self._group)
        return gathered

    def agree(self, shared: dict[str, float | Tensor], classes: int, like: Tensor) -> Shares:
        """Return how many classes each rank holds, and refuse ranks that do not share their settings.

        All ranks exchange their numbers first, so that each of them raises, and none waits for one that has.

        Args:
            shared: numbers that must be the same on all ranks, by name. All ranks give the same names.
            classes: how many classes this rank holds.
            like: a tensor on the device of the group.
        """
        refused, counts, *columns = self._exchange([0.0, float(classes), *shared.values()], like)
        if any(refused):
            raise ValueError(
                f"inputs and settings must be right on all ranks that share the classes, but rank {refused.index(1.0)} "
                "has refused its own; read the error there."
            )
        for name, found in zip(shared, columns, strict=False):
            other = next((rank for rank, value in enumerate(found) if not _same(value, found[0])), None)
            if other is not None:
                raise ValueError(
                    f"{name} must be the same on all ranks that share the classes, got {found[0]:g} on rank 0 and "
                    f"{found[other]:g} on rank {other}; give all of them the same inputs and settings."
                )
        return Shares([int(count) for count in counts], self.rank)

    @contextmanager
    def refusing_together(self, like: Tensor) -> Iterator[None]:
        """Surround checks that come before `agree`: if one fails here, the ranks that wait there raise an error too."""
        try:
            yield
        except (TypeError, ValueError):
            self._exchange([1.0], like)
            raise

    def _exchange(self, values: list[float | Tensor], like: Tensor) -> list[list[float]]:
        """Return some numbers of all ranks, `NUMBERS` lists of R; those that this rank does not give are 0."""
        numbers = [torch.as_tensor(value, dtype=torch.float64, device=like.device) for value in values]
        own_K = torch.stack(numbers)
        columns: list[list[float]] = self.gather(F.pad(own_K, (0, NUMBERS - len(own_K)))).T.tolist()
        return columns


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ranks._group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.sum(gradients[0]), None
