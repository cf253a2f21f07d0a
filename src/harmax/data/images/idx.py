"""MNIST's own format, idx: a magic number, the sizes, then bytes."""

# N images

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harmax.data.images.source import Images, checked_labels, read_bytes
from harmax.errors import DamagedError

PREFIXES = {"train": "train", "test": "t10k"}
KINDS = {"images-idx3-ubyte": 3, "labels-idx1-ubyte": 1}
UNSIGNED_BYTES = 0x08


def parse_idx(data: bytes, dimensions: int, name: object = "the file") -> np.ndarray:
    """Return the array of an idx file of unsigned bytes.

    Args:
        data: all of the file, unpacked.
        dimensions: how many it must have: 3 for images, 1 for labels.
        name: what to call it in an error.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), 1)
    array([7, 8, 9], dtype=uint8)
    """
    magic = bytes([0, 0, UNSIGNED_BYTES, dimensions])
    header = 4 + 4 * dimensions
    if data[:4] != magic:
        raise DamagedError(
            f"{name} must begin with the idx magic number {magic.hex()} ({dimensions} dimensions of bytes), got "
            f"{data[:4].hex() or 'nothing'}; fetch it again."
        )
    if len(data) < header:
        raise DamagedError(f"{name} must have {header} bytes of header, got {len(data)}; fetch it again.")
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    wanted = header + int(np.prod(shape, dtype=np.int64))
    if len(data) != wanted:
        raise DamagedError(
            f"{name} must have {wanted:,} bytes for its sizes {shape}, got {len(data):,}; it is cut off or padded: "
            "fetch it again."
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def read_idx(classes: tuple[str, ...]) -> Callable[[Path, str], Images]:
    """Return a reader of one split in two idx files, named as MNIST's are, plain or .gz."""

    def read(folder: Path, split: str) -> Images:
        found = {}
        for kind, dimensions in KINDS.items():
            path = folder / f"{PREFIXES[split]}-{kind}"
            data = read_bytes(path)
            if data is None:
                raise FileNotFoundError(f"{path.name} or {path.name}.gz")
            found[kind] = path, parse_idx(data, dimensions, path)
        (image_path, pixels), (label_path, labels) = found.values()
        if len(pixels) != len(labels):
            raise DamagedError(
                f"{image_path} and {label_path} must hold as many images as labels, got {len(pixels)} and "
                f"{len(labels)}; fetch both again."
            )
        return Images(pixels, checked_labels(label_path, labels, len(classes)), classes)

    return read


def has_idx(folder: Path) -> bool:
    """Whether all four files are in a folder, plain or .gz."""
    names = [f"{prefix}-{kind}" for prefix in PREFIXES.values() for kind in KINDS]
    return all((folder / name).is_file() or (folder / f"{name}.gz").is_file() for name in names)
