"""Image data sets by name: MNIST, Fashion-MNIST, CIFAR, class folders, and digits without a download.

    registry.py   the named data sets with their files and checksums
    source.py     the description of a data set, and the error for a missing one
    idx.py  cifar.py  digits.py  folders.py   one file per format
    picture_files.py  picture_list.py   a person's own pictures: their classes; checked, divided, written down
    decoding.py   pictures to arrays, with Pillow (the extra `vision`)
    download.py   downloads that are checked and can be resumed
    check.py      which data sets are there, and whether they match the published ones

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
    """Read one split of a data set into memory.

    Args:
        name: one of `IMAGES`. Its files are in the sub-folder of that name.
        split: "train" or "test".
        folder: the data folder; None means HARMAX_DATA, else ../shared/data.
        complete: refuse a number of images other than the published one, so that a part is not taken for the whole.

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
            f"{own}; fetch the rest, or pass complete=False to use a part of it."
        )
    return images


def has_images(name: str, folder: str | os.PathLike[str] | None = None) -> bool:
    """Return whether all splits of a data set seem to be there; no file is read.

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
