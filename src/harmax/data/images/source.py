"""The description of an image data set: its files, how they are read, and the error for missing files."""

# N images, H rows, W columns

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harmax.data.folder import find_data
from harmax.errors import DamagedError

SPLITS = ("train", "test")


class Images(NamedTuple):
    """Images in memory."""

    pixels: np.ndarray
    """(N, H, W) for gray images, (N, H, W, 3) for colors, uint8: 0 is black, 255 is white."""
    labels: np.ndarray
    """(N,) int64, indices into `classes`."""
    classes: tuple[str, ...]


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its name, size and checksum."""

    name: str
    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, sha256 {self.sha256})"


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A data set that `load_images` finds by its name."""

    title: str
    read: Callable[[Path, str], Images]
    """Reads one split from the folder of the data set; raises FileNotFoundError if a file is missing."""
    counts: Mapping[str, int]
    """Published number of images per split."""
    is_there: Callable[[Path], bool]
    """Returns whether the folder seems to hold every split, without reading a file."""
    files: tuple[RemoteFile, ...] = ()
    """The files that `download` fetches; empty if there is no download."""
    mirrors: tuple[str, ...] = ()
    """Addresses to which the file names are appended, tried in this order."""
    elsewhere: tuple[str, ...] = ()
    """Folders where a system package installs the files; used only if no folder is given."""
    embedded: bool = False
    """Whether the data set comes with a Python package, so that no folder is needed."""
    note: str = ""
    """Another way to get the data set, for the error message."""

    @property
    def wanted(self) -> str:
        """The names, sizes and checksums of all files, as text."""
        return ", ".join(map(str, self.files))


def own_folder(name: str, source: ImageSource, folder: str | os.PathLike[str] | None) -> Path:
    """Return the folder of a data set: `name` below the data folder, or the folder of a system package."""
    if source.embedded:
        return Path()
    root = find_data() if folder is None else Path(folder)
    places = [] if root is None else [root / name]
    if folder is None:
        places += map(Path, source.elsewhere)
    # An interrupted download leaves a folder behind, which must not hide the files of a system package.
    for suits in (source.is_there, Path.is_dir):
        for place in places:
            if suits(place):
                return place
    raise FileNotFoundError(missing(name, source, root))


def missing(name: str, source: ImageSource, root: Path | None, what: str = "") -> str:
    """Return the error message for missing files: which files, where they belong, how to get them."""
    if root is None:
        first = f"{name} must be in the data folder, but no data folder was found; set HARMAX_DATA to its path"
    else:
        first = f"{what or name} must be in {root / name}, but it is not there"
    if not source.files:
        return f"{first}; {source.note}" if source.note else f"{first}."
    fetch = f"with internet, run `harmax data images {name} --folder {root or 'FOLDER'}`"
    return f"{first}. Files for the sub-folder {name}/: {source.wanted}; {fetch}. {source.note}".rstrip()


def checked_labels(path: object, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return labels as int64; refuse labels that are not an index of a class."""
    found = labels.astype(np.int64)
    outside = np.flatnonzero((found < 0) | (found >= classes))
    if len(outside):
        raise DamagedError(
            f"{path} must hold labels from 0 to {classes - 1}, got {found[outside[0]]} for image {outside[0]}; "
            "fetch it again."
        )
    return found
