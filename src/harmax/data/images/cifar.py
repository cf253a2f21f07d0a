"""CIFAR-10 and CIFAR-100: the official binary batches, or images packed losslessly into .npz files.

The packing is one byte array of WebP images (`blob`), where each begins (`off`, one more than images), `label`, and the
names of the `classes`. The version for Python is never read: it is pickle, which may run any code.
"""

# N images

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from harmax.data.images.decoding import decode_image
from harmax.data.images.source import Images, checked_labels
from harmax.errors import DamagedError

SIDE, CHANNELS = 32, 3
PIXELS = CHANNELS * SIDE * SIDE
PACKED = ("blob", "off", "label", "classes")


@dataclass(frozen=True)
class Cifar:
    """How one of the two data sets is packed."""

    archive: str
    folder: str
    """Inside the archive, and what people have after unpacking it."""
    batches: dict[str, tuple[str, ...]]
    label_bytes: int
    """Before each image's pixels; the last of them is the label (CIFAR-100 has a coarse one first)."""
    names: str
    """The file with the names of the classes."""
    classes: int
    pickled: tuple[str, ...]
    """Names by which the version for Python is known."""


CIFAR10 = Cifar(
    archive="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    batches={"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)},
    label_bytes=1,
    names="batches.meta.txt",
    classes=10,
    pickled=("cifar-10-python.tar.gz", "cifar-10-batches-py", "data_batch_1"),
)
CIFAR100 = Cifar(
    archive="cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    batches={"train": ("train.bin",), "test": ("test.bin",)},
    label_bytes=2,
    names="fine_label_names.txt",
    classes=100,
    pickled=("cifar-100-python.tar.gz", "cifar-100-python"),
)


def read_cifar(layout: Cifar) -> Callable[[Path, str], Images]:
    """Return a reader of one split: the .npz packing first, then unpacked batches, then the archive."""

    def read(folder: Path, split: str) -> Images:
        packed = sorted(folder.glob(f"{split}*.npz"))
        if packed:
            return _joined([read_packed(path, layout.classes) for path in packed])
        for place in (folder, folder / layout.folder):
            batches = [place / name for name in layout.batches[split]]
            if all(path.is_file() for path in batches):
                names = place / layout.names
                classes = _class_names(names.read_bytes() if names.is_file() else b"", layout, names)
                return _joined([parse_batch(path.read_bytes(), layout, classes, path) for path in batches])
        if (folder / layout.archive).is_file():
            return _read_archive(folder / layout.archive, layout, split)
        for name in layout.pickled:
            if (folder / name).exists():
                raise ValueError(
                    f"{folder.name} must be the binary version, {layout.archive}, got {folder / name}, which is pickle "
                    "and may run any code when it is read; take the binary one."
                )
        raise FileNotFoundError(layout.archive)

    return read


def has_cifar(layout: Cifar) -> Callable[[Path], bool]:
    """Return a test for whether a folder holds both splits in one of the forms that are read."""

    def is_there(folder: Path) -> bool:
        packed = all(any(folder.glob(f"{split}*.npz")) for split in layout.batches)
        names = [name for batches in layout.batches.values() for name in batches]
        plain = any(all((place / name).is_file() for name in names) for place in (folder, folder / layout.folder))
        return packed or plain or (folder / layout.archive).is_file()

    return is_there


def parse_batch(data: bytes, layout: Cifar, classes: tuple[str, ...], name: object = "the batch") -> Images:
    """Return the images of one binary batch: per image its labels, then 1,024 bytes of red, of green and of blue."""
    record = layout.label_bytes + PIXELS
    if not data or len(data) % record:
        raise DamagedError(f"{name} must hold whole images of {record} bytes, got {len(data):,}; fetch it again.")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    labels = checked_labels(name, rows[:, layout.label_bytes - 1], layout.classes)
    planes = rows[:, layout.label_bytes :].reshape(-1, CHANNELS, SIDE, SIDE)
    return Images(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels, classes)


def read_packed(path: Path, classes: int) -> Images:
    """Return the images of one .npz of the packing described above."""
    try:
        with path.open("rb") as file, np.load(file) as stored:  # numpy leaves a file open that it cannot read
            arrays = {key: stored[key] for key in stored.files if key in PACKED}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError) as error:
        raise DamagedError(f"{path} must be a whole .npz file, got {error}; fetch it again.") from error
    if len(arrays) < len(PACKED):
        raise DamagedError(
            f"{path} must hold the arrays {', '.join(PACKED)}, got {', '.join(arrays) or 'none of them'}."
        )
    blob, offset, label, names = (arrays[key] for key in PACKED)
    if len(offset) != len(label) + 1 or int(offset[-1]) != len(blob) or (np.diff(offset.astype(np.int64)) < 0).any():
        raise DamagedError(
            f"{path} must have an offset an image and one more, up to its {len(blob):,} bytes, got {len(offset)} "
            f"offsets for {len(label)} labels, up to {int(offset[-1]):,}; fetch it again."
        )
    labels = checked_labels(path, label, min(classes, len(names)))
    data = blob.tobytes()
    pixels = np.empty((len(labels), SIDE, SIDE, CHANNELS), np.uint8)
    for place, (start, end) in enumerate(pairwise(offset)):
        image = decode_image(data[start:end], f"image {place} of {path}")
        if image.shape != pixels.shape[1:]:
            raise DamagedError(f"image {place} of {path} must be {SIDE} x {SIDE}, got {image.shape[:2]}.")
        pixels[place] = image
    return Images(pixels, labels, tuple(map(str, names)))


def _read_archive(path: Path, layout: Cifar, split: str) -> Images:
    found = dict(_members(path, {layout.names, *layout.batches[split]}))
    lacking = [name for name in layout.batches[split] if name not in found]
    if lacking:
        raise DamagedError(f"{path} must hold {', '.join(lacking)}, got no such file; fetch it again.")
    classes = _class_names(found.get(layout.names, b""), layout, path)
    return _joined([parse_batch(found[name], layout, classes, f"{name} in {path}") for name in layout.batches[split]])


def _members(path: Path, names: set[str]) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                file = archive.extractfile(member) if name in names else None
                if file is not None:
                    yield name, file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DamagedError(f"{path} must be a whole tar.gz file, got {error}; fetch it again.") from error


def _class_names(data: bytes, layout: Cifar, path: object) -> tuple[str, ...]:
    if not data:  # the batches do without them
        return tuple(map(str, range(layout.classes)))
    names = tuple(data.decode("utf-8", "replace").split())
    if len(names) != layout.classes:
        raise DamagedError(f"{path} must name {layout.classes} classes, got {len(names)}; fetch it again.")
    return names


def _joined(parts: list[Images]) -> Images:
    pixels, labels = (np.concatenate([part[field] for part in parts]) for field in (0, 1))
    return Images(pixels, labels, parts[0].classes)
