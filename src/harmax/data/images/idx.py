"""The idx format of MNIST: a magic number, the sizes, then bytes."""

# N images

import gzip
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from harmax.data.images.source import Images, checked_labels
from harmax.errors import DamagedError

PREFIXES = {"train": "train", "test": "t10k"}
KINDS = {"images-idx3-ubyte": 3, "labels-idx1-ubyte": 1}
UNSIGNED_BYTES = 0x08
MOST_BYTES = 2**31
"""Largest array of an idx file. A damaged header may promise anything."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _parse(file: _Readable, dimensions: int, name: object) -> np.ndarray:
    """Read the header, then no more than it promises: a packed file may unpack to many GB."""
    magic = bytes([0, 0, UNSIGNED_BYTES, dimensions])
    size = 4 + 4 * dimensions
    header = file.read(size)
    if header[:4] != magic:
        raise DamagedError(
            f"{name} must begin with the idx magic number {magic.hex()} ({dimensions} dimensions of bytes), got "
            f"{header[:4].hex() or 'nothing'}; fetch it again."
        )
    if len(header) < size:
        raise DamagedError(f"{name} must have {size} bytes of header, got {len(header)}; fetch it again.")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    wanted = math.prod(shape)
    if wanted > MOST_BYTES:
        raise DamagedError(f"{name} must hold at most {MOST_BYTES:,} bytes, got the sizes {shape}; fetch it again.")
    data = file.read(wanted + 1)
    if len(data) != wanted:
        came = "more" if len(data) > wanted else f"{size + len(data):,}"
        raise DamagedError(
            f"{name} must have {size + wanted:,} bytes for its sizes {shape}, got {came}; fetch it again."
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def _read_file(path: Path, dimensions: int) -> np.ndarray:
    """Return the array of a file that is stored as it is or packed, as `path`.gz."""
    if path.is_file():
        with path.open("rb") as plain:
            return _parse(plain, dimensions, path)
    packed = path.with_name(f"{path.name}.gz")
    if not packed.is_file():
        raise FileNotFoundError(f"{path.name} or {packed.name}")
    try:
        with gzip.open(packed) as file:
            return _parse(file, dimensions, packed)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedError(
            f"{packed} must be a whole gzip file, got {error or 'half a file'}; fetch it again."
        ) from error


def read_idx(classes: tuple[str, ...]) -> Callable[[Path, str], Images]:
    """Return a reader of one split in two idx files, plain or .gz, with MNIST's file names."""

    def read(folder: Path, split: str) -> Images:
        paths = {folder / f"{PREFIXES[split]}-{kind}": dimensions for kind, dimensions in KINDS.items()}
        found = {path: _read_file(path, dimensions) for path, dimensions in paths.items()}
        (image_path, pixels), (label_path, labels) = found.items()
        if len(pixels) != len(labels):
            raise DamagedError(
                f"{image_path} must hold as many images as {label_path} holds labels, got {len(pixels)} and "
                f"{len(labels)}; fetch both again."
            )
        return Images(pixels, checked_labels(label_path, labels, len(classes)), classes)

    return read


def has_idx(folder: Path) -> bool:
    """Return whether all four files are in a folder, plain or .gz."""
    names = [f"{prefix}-{kind}" for prefix in PREFIXES.values() for kind in KINDS]
    return all((folder / name).is_file() or (folder / f"{name}.gz").is_file() for name in names)
