"""Pictures of class folders, decoded and cropped by worker processes."""

# B pictures, H rows, W columns, C channels

import signal
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from harmax.data.images import ClassFolder
from harmax.errors import DamagedError
from harmax.train.vision.augment import CENTER, PICTURES, generator, middle_crop, random_crop

Key = tuple[int, int]
"""A picture's number, and the epoch it is cropped for."""
Sample = tuple[np.ndarray, int] | str
"""A square with its label, or the message that says what is wrong with the picture."""


class Pictures(Dataset[Sample]):
    """Squares cut out of a class folder's pictures.

    Args:
        folder: the pictures.
        size: side length of the squares, in pixels.
        seed: seed of random crops; None: crop the middle.
        flip: whether half of the random crops are mirrored.
        part: of the shorter side that a square from the middle keeps.
    """

    def __init__(
        self,
        folder: ClassFolder,
        *,
        size: int,
        seed: int | None = None,
        flip: bool = False,
        part: float = CENTER,
    ) -> None:
        self.folder, self._size, self._seed, self._flip, self._part = folder, size, seed, flip, part

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""
        return self.folder.classes

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, key: Key) -> Sample:
        index, epoch = key
        try:
            picture, label = self.folder[index]
        except DamagedError as error:
            return str(error)  # an error from another process would hide its message in a traceback
        if self._seed is None:
            return middle_crop(picture, self._size, self._part), label
        numbers = generator(PICTURES, self._seed, epoch, index)
        return random_crop(picture, self._size, numbers, flip=self._flip), label


def read_pictures(
    pictures: Pictures, wanted: Iterable[list[Key]], workers: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches on the device: squares (B, H, W, C), uint8, and labels, (B,), int64."""
    pinned = device.type == "cuda"
    loader: DataLoader[Any] = DataLoader(
        pictures,
        batch_sampler=wanted,
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=pinned,
        worker_init_fn=_start if workers else None,
        generator=torch.Generator(),  # else it draws from torch's own random numbers
    )
    for batch in loader:
        if isinstance(batch, str):
            raise DamagedError(batch)
        pixels, labels = batch
        yield pixels.to(device, non_blocking=pinned), labels.to(device, non_blocking=pinned)


def _collate(samples: list[Sample]) -> tuple[Tensor, Tensor] | str:
    squares, labels = [], []
    for sample in samples:
        if isinstance(sample, str):
            return sample
        squares.append(sample[0])
        labels.append(sample[1])
    return torch.from_numpy(np.stack(squares)), torch.tensor(labels)


def _start(worker: int) -> None:
    """Leave signals to the training process, which still needs pictures for its current step."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def whole_squares(folder: ClassFolder, size: int) -> Pictures:
    """Return the largest squares in the middle of a person's own pictures: what matters may lie near the border."""
    return Pictures(folder, size=size, part=1.0)
