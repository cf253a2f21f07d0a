"""Batches on the device, with the next one read in the background."""

# B sequences of a micro-batch, T tokens of each

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harmax.data.text import TokenLoader
from harmax.train.world import send


class _Read(NamedTuple):
    arrays: tuple[np.ndarray, np.ndarray]
    state: dict[str, Any]
    epochs_seen: float


class Prefetched(Iterator[tuple[Tensor, Tensor]]):
    """The batches of a loader as tensors. A thread reads the next batch while this one is used.

    The loader belongs to this iterator from now on, and is one batch ahead of it.

    Attributes:
        state: the loader's state after the batch that was returned last, without what is read ahead.
        epochs_seen: how often each token has been returned.
    """

    def __init__(self, loader: TokenLoader, device: torch.device) -> None:
        self._loader, self._device = loader, device
        self.state, self.epochs_seen = loader.state(), loader.epochs_seen
        self._thread = ThreadPoolExecutor(1)
        self._ahead: Future[_Read] | None = None

    def __next__(self) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, (B, T) each."""
        if self._ahead is None:
            self._ahead = self._thread.submit(self._read)
        (inputs_BT, targets_BT), self.state, self.epochs_seen = self._ahead.result()
        self._ahead = self._thread.submit(self._read)
        return send(inputs_BT, self._device), send(targets_BT, self._device)

    def _read(self) -> _Read:
        arrays = next(self._loader)
        return _Read(arrays, self._loader.state(), self._loader.epochs_seen)
