"""Images by name: MNIST, Fashion-MNIST, CIFAR, class folders, and digits that need no download.

    registry.py   the data sets that have a name, their files and checksums
    source.py     what a data set is, and what is said when it is missing
    idx.py  cifar.py  digits.py  folders.py   one format each
    decoding.py   pictures to arrays (Pillow: the extra `vision`)
    download.py   fetching, checked and resumable
    check.py      which sets are there, and whether they are what was published

>>> train = load_images("digits", "train")
>>> train.pixels.shape, train.labels[:5].tolist()
((1437, 8, 8), [0, 1, 2, 3, 4])
"""

import os

from harmax.data.images.check import ImageCheck, check_images
from harmax.data.images.download import download
from harmax.data.images.folders import ClassFolder, class_folder
from harmax.data.images.registry import IMAGES
from harmax.data.images.source import SPLITS, Images, missing, own_folder
from harmax.errors import DamagedError, unknown

__all__ = [
    "IMAGES",
    "SPLITS",
    "ClassFolder",
    "ImageCheck",
    "Images",
    "check_images",
    "class_folder",
    "download",
    "has_images",
    "load_images",
]


def load_images(
    name: str, split: str = "train", folder: str | os.PathLike[str] | None = None, *, complete: bool = True
) -> Images:
    """Read one side of a data set into memory.

    Args:
        name: one of `IMAGES`; its files lie in the data folder's sub-folder of that name.
        split: "train" or "test".
        folder: the data folder; None: HARMAX_DATA, else ../shared/data.
        complete: refuse another number of images than was published, so that a part is not taken for the whole.

    Returns:
        pixels (N, H, W) or (N, H, W, 3) uint8, labels (N,) int64 and the names of the classes.
    """
    if name not in IMAGES:
        raise ValueError(unknown("name", name, IMAGES))
    source = IMAGES[name]
    if split not in source.counts:
        raise ValueError(unknown("split", split, source.counts))
    own = own_folder(name, source, folder)
    try:
        images = source.read(own, split)
    except FileNotFoundError as error:
        raise FileNotFoundError(missing(name, source, own.parent, str(error))) from None
    if complete and len(images.labels) != source.counts[split]:
        raise DamagedError(
            f"{name} must have {source.counts[split]:,} images in its {split} split, got {len(images.labels):,} in "
            f"{own}; fetch the rest, or pass complete=False for a part of it."
        )
    return images


def has_images(name: str, folder: str | os.PathLike[str] | None = None) -> bool:
    """Whether all splits of a data set seem to be there; nothing is read.

    >>> has_images("digits")
    True
    """
    if name not in IMAGES:
        raise ValueError(unknown("name", name, IMAGES))
    source = IMAGES[name]
    try:
        return source.is_there(own_folder(name, source, folder))
    except FileNotFoundError:
        return False
