"""What an image data set is: its files, how they are read, and what to say when they are not there."""

# N images, H rows, W columns, C channels

import gzip
import os
import zlib
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
    """(N, H, W) for gray images, (N, H, W, 3) for colors, uint8: 0 is black, 255 white."""
    labels: np.ndarray
    """(N,) int64, an index into `classes` each."""
    classes: tuple[str, ...]


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its name, and what it must be to the byte."""

    name: str
    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, sha256 {self.sha256})"


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A data set that `load_images` knows by name."""

    title: str
    read: Callable[[Path, str], Images]
    """Reads one split from the data set's own folder; raises FileNotFoundError where a file is missing."""
    counts: Mapping[str, int]
    """Images of each split, as published."""
    is_there: Callable[[Path], bool]
    """Whether the folder seems to hold every split; nothing is read."""
    files: tuple[RemoteFile, ...] = ()
    """What `download` fetches; empty: nothing can be fetched."""
    mirrors: tuple[str, ...] = ()
    """Addresses that the files' names are appended to, tried in this order."""
    elsewhere: tuple[str, ...] = ()
    """Folders that a system package installs the files in, looked at where no folder is given."""
    embedded: bool = False
    """Whether it comes with a Python package, so that no folder is needed."""
    note: str = ""
    """How else to get it, for the message that says it is missing."""

    @property
    def wanted(self) -> str:
        """The exact files, in words."""
        return ", ".join(map(str, self.files))


def own_folder(name: str, source: ImageSource, folder: str | os.PathLike[str] | None) -> Path:
    """Return where a data set's files lie: `name` below the data folder, or where a system package put them."""
    if source.embedded:
        return Path()
    root = find_data() if folder is None else Path(folder)
    places = [] if root is None else [root / name]
    if folder is None:
        places += map(Path, source.elsewhere)
    # A download that broke off leaves a folder behind, which must not hide what a package installed.
    for suits in (source.is_there, Path.is_dir):
        for place in places:
            if suits(place):
                return place
    raise FileNotFoundError(missing(name, source, root))


def missing(name: str, source: ImageSource, root: Path | None, what: str = "") -> str:
    """Say which files are wanted, where they belong and how they get there."""
    where = "the data folder" if root is None else str(root)
    first = f"{what or name} must lie in {where}/{name}, and it does not"
    if root is None:
        first = f"{name} must lie in the data folder, and there is none; set HARMAX_DATA to it"
    if not source.files:
        return f"{first}; {source.note}" if source.note else f"{first}."
    fetch = f"where there is internet, `harmax data images {name} --folder {root or 'FOLDER'}` fetches them"
    words = f"{first}. Wanted in its sub-folder {name}/: {source.wanted}; {fetch}."
    return f"{words} {source.note}".rstrip()


def read_bytes(path: Path) -> bytes | None:
    """Return a file's bytes, unpacked where it is there as `path`.gz only; None where there is neither."""
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            data = candidate.read_bytes()
            if candidate == path:
                return data
            try:
                return gzip.decompress(data)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DamagedError(
                    f"{candidate} must be a whole gzip file, got {error or 'half a file'}; fetch it again."
                ) from error
    return None


def checked_labels(path: object, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return labels as int64, all of which name a class."""
    found = labels.astype(np.int64)
    outside = np.flatnonzero((found < 0) | (found >= classes))
    if len(outside):
        raise DamagedError(
            f"{path} must hold labels from 0 to {classes - 1}, got {found[outside[0]]} for image {outside[0]}; "
            "fetch it again."
        )
    return found
