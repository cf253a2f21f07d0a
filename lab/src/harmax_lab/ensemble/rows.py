"""One plain loop for stacks of small models on rows of numbers: several runs share their tensors and nothing else.

`Ensemble` and `fit` train whole networks with compiled steps. This loop is for smaller models: a layer on pixels, a
probe on features, a head in the plane. Losses are summed over runs, and optimizers treat each element separately. So a
run does not depend on the others.
"""

# S runs, N rows, B rows of a batch

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

B = TypeVar("B")


def descend(
    batches: Iterable[B],
    losses: Callable[[B], Tensor],
    optimizer: torch.optim.Optimizer,
    watch: Callable[[int, Tensor], object] = lambda step, losses: None,
) -> None:
    """Take one step per batch.

    Args:
        batches: arguments of `losses`.
        losses: returns one loss per run. It may set the gradients itself and return losses without a graph.
        optimizer: of the stacked parameters.
        watch: called before each step is taken, with its number from 0 and the losses.
    """
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        found = losses(batch)
        if found.requires_grad:
            found.sum().backward()
        watch(step, found.detach())
        optimizer.step()


class Record:
    """Keeps tensors at some steps of `descend`, and reports progress. Pass it as `watch`.

    Args:
        steps: at which tensors are kept.
        tensors: returns the tensors to keep; it gets the losses.
        progress: called every 250 steps with the fraction that is done and the message.
        message: for `progress`.
    """

    def __init__(
        self,
        steps: Collection[int],
        tensors: Callable[[Tensor], Sequence[Tensor]],
        progress: Callable[[float, str], object],
        message: str,
    ) -> None:
        self.steps, self._tensors, self._progress, self._message = sorted(steps), tensors, progress, message
        self._kept: list[Sequence[Tensor]] = []
        self._wanted = set(steps)

    def __call__(self, step: int, losses: Tensor) -> None:
        """Keep the tensors of a step, if it is one of the steps."""
        if step in self._wanted:
            self._kept.append([tensor.detach().clone() for tensor in self._tensors(losses)])
        if step % 250 == 0:
            self._progress(step / max(self.steps[-1], 1), self._message)

    def stacked(self) -> list[Tensor]:
        """Return each tensor of all kept steps; the steps are the first dimension."""
        return [torch.stack(series) for series in zip(*self._kept, strict=True)]


def streams(seeds: Iterable[int]) -> list[torch.Generator]:
    """Return one generator per seed, on the CPU, so that its numbers do not depend on the device."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def orders(count: int, draws: Sequence[torch.Generator]) -> Tensor:
    """Draw one random order of `count` rows from each generator, (S, N)."""
    return torch.stack([torch.randperm(count, generator=stream) for stream in draws])


def keep_where(which_S: Tensor, kept: Iterable[Tensor], now: Iterable[Tensor]) -> None:
    """Copy the parameters of the chosen runs into `kept`. Runs are the first dimensions of the parameters."""
    for best, present in zip(kept, now, strict=True):
        mask = which_S.reshape(*which_S.shape, *[1] * (best.ndim - which_S.ndim))
        best.copy_(torch.where(mask, present.detach(), best))
