"""Which images a process computes at which step."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from harmax.train.vision.augment import ORDER, generator
from harmax.train.vision.settings import VisionSpec


class Share(NamedTuple):
    """A micro-batch: its images, and the integers that seed its random numbers."""

    chosen: np.ndarray
    """(B,) int64"""
    epoch: int
    step: int
    part: int
    """Number of the micro-batch within its step, over all processes."""


@dataclass(frozen=True)
class Order:
    """The order of the images: a function of seed and step alone, shuffled anew every epoch.

    >>> order = Order(VisionSpec(batch=4, micro_batch=2), 10, rank=1, world=2)
    >>> order.steps_of_epoch, next(order.shares(1)).part
    (2, 1)
    """

    spec: VisionSpec
    count: int
    rank: int
    world: int

    def __post_init__(self) -> None:
        if self.count < self.spec.batch:
            raise ValueError(
                f"the training set must hold a `batch` of {self.spec.batch} images, got {self.count}; use a smaller "
                "`batch`, or more images."
            )

    @property
    def steps_of_epoch(self) -> int:
        """Complete batches per epoch; the images left over differ from epoch to epoch."""
        return self.count // self.spec.batch

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.spec.epochs * self.steps_of_epoch

    def shares(self, first: int) -> Iterator[Share]:
        """Yield this process's micro-batches, from step `first` (counted from 1) to the end of the run."""
        micro_batches, micro = self.spec.micro_batches(self.world), self.spec.micro_batch
        for step in range(first, self.steps + 1):
            epoch, place = divmod(step - 1, self.steps_of_epoch)
            shuffled = _shuffled(self.spec.seed, epoch, self.count)
            for turn in range(micro_batches):
                part = turn * self.world + self.rank
                start = place * self.spec.batch + part * micro
                yield Share(shuffled[start : start + micro], epoch, step, part)


@lru_cache(maxsize=2)
def _shuffled(seed: int, epoch: int, count: int) -> np.ndarray:
    return generator(ORDER, seed, epoch).permutation(count)


def evaluation_shares(count: int, size: int, rank: int, world: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield this process's parts of a whole set: images, (B,), and which of them count.

    All parts have one shape, and all processes have as many parts; places beyond the last image do not count.
    """
    for start in range(0, count, size * world):
        places = start + rank * size + np.arange(size)
        yield np.minimum(places, count - 1), places < count
