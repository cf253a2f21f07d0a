"""The training and test images that a classifier is inspected on."""

# N images, K chosen ones, H rows, W columns

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harmax.data.images import IMAGES, Images, class_folder, load_images
from harmax.data.images.picture_list import PictureList
from harmax.errors import DamagedError, unknown
from harmax.train.vision.pictures import Pictures, whole_squares

GENERATED, FOLDER = "generated", "folder"
BATCH = 512


@dataclass(frozen=True)
class Side:
    """The training images or the test images of a data set, or some of them."""

    read: Callable[[np.ndarray], np.ndarray]
    """Returns images by their numbers in the data set, (K, H, W) or (K, H, W, 3), uint8."""
    labels: np.ndarray
    """(N,), the classes of the images."""
    numbers: np.ndarray
    """(N,), the numbers of the images in the data set."""
    classes: tuple[str, ...]
    """The names of the classes."""
    files: tuple[str, ...] | None = None
    """(N,), the paths of the pictures below their folder; None: the data set has no files of its own."""

    def name(self, place: int) -> str:
        """Return what a picture is called: its file, or its number in the data set."""
        return f"number {self.numbers[place]}" if self.files is None else self.files[place]

    def batches(self, prepare: Callable[[Tensor], Tensor], tell: Callable[[int, int], None]) -> Iterator[Tensor]:
        """Yield all images as a model takes them, and call `tell` with the number so far and the number of all."""
        for start in range(0, len(self.numbers), BATCH):
            tell(start, len(self.numbers))
            yield prepare(torch.from_numpy(self.read(self.numbers[start : start + BATCH])))

    def pictures(self, places: np.ndarray) -> np.ndarray:
        """Return images by their indices here, any shape (...), as (..., H, W) or (..., 3, H, W), from 0 to 1."""
        pixels = self.read(self.numbers[places.reshape(-1)]).astype(np.float32) / 255
        if pixels.ndim == 4:
            pixels = pixels.transpose(0, 3, 1, 2)
        return pixels.reshape(*places.shape, *pixels.shape[1:])


def read_sides(
    dataset: str,
    *,
    data: Path | None = None,
    partial: bool = False,
    limit: int | None = None,
    size: int = 0,
    pictures: PictureList | None = None,
) -> tuple[Side, Side]:
    """Return the training and the test images of a data set.

    Args:
        dataset: a key of `IMAGES`, "folder" for class folders, or "generated".
        data: the data folder, or for class folders the one with train/ and val/. None: HARMAX_DATA.
        partial: accept a data set of which only a part is there.
        limit: at most this many images per side, spread evenly. None: all.
        size: height and width to which pictures of class folders are resized.
        pictures: read these instead; `data` says where they are now.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"`--limit` must be at least 1, got {limit}; leave it out for all images.")
    if pictures is not None:
        there = pictures if data is None else replace(pictures, root=data)
        train, test = (whole_squares(there.open_side(side), size) for side in ("train", "test"))
        return _decoded(train, there.root, limit), _decoded(test, there.root, limit)
    if dataset == FOLDER:
        return _open_folder(data, limit, size)
    if dataset == GENERATED:
        from harmax.train.vision.data import generate_images

        images = [generate_images(512), generate_images(256, start=512)]
    else:
        if dataset not in IMAGES:
            raise ValueError(unknown("--dataset", dataset, [*IMAGES, FOLDER, GENERATED]))
        images = [load_images(dataset, split, data, complete=not partial) for split in ("train", "test")]
    return _resident(images[0], limit), _resident(images[1], limit)


def _resident(images: Images, limit: int | None) -> Side:
    numbers = _evenly(len(images.labels), limit)
    return Side(lambda chosen: images.pixels[chosen], images.labels[numbers], numbers, images.classes)


def _open_folder(data: Path | None, limit: int | None, size: int) -> tuple[Side, Side]:
    from harmax.train.vision.data import find_side

    if data is None:
        raise ValueError("`--data` must name the folder with train/ and val/, got none; a run does not store it.")
    train, test = (Pictures(class_folder(find_side(data, name)), size=size) for name in ("train", "test"))
    return _decoded(train, data, limit), _decoded(test, data, limit)


def _decoded(pictures: Pictures, root: Path, limit: int | None) -> Side:
    def read(chosen: np.ndarray) -> np.ndarray:
        squares = []
        for number in chosen:
            sample = pictures[int(number), 0]
            if isinstance(sample, str):
                raise DamagedError(sample)
            squares.append(sample[0])
        return np.stack(squares)

    numbers = _evenly(len(pictures), limit)
    files = tuple(_below(pictures.folder.name(number), root) for number in numbers)
    return Side(read, pictures.folder.labels[numbers], numbers, pictures.classes, files)


def _below(name: str, root: Path) -> str:
    path = Path(name)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else name


def _evenly(count: int, limit: int | None) -> np.ndarray:
    """Return the numbers of all images, or of `limit` images spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, limit or count)).round().astype(np.int64))
