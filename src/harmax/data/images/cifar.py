"""CIFAR-10 and CIFAR-100: the official binary batches, or images packed losslessly into .npz files.

A .npz file has four arrays: the bytes of all WebP images (`blob`), the offset of each image and the end (`off`), the
`label` of each image, and the names of the `classes`. The official Python version is never read. It is a pickle, which
may run any code.
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
from harmax.files import check_ordinary, read_whole

SIDE, CHANNELS = 32, 3
PIXELS = CHANNELS * SIDE * SIDE
PACKED = {"blob": "u", "off": "ui", "label": "ui", "classes": "U"}
"""Arrays of a packing, and the kinds of numbers or strings that each may hold; all have one dimension."""
MOST_BYTES = 2**30
"""Largest batch or packing, unpacked. The largest real one has 154 MB."""


@dataclass(frozen=True)
class Cifar:
    """The file layout of one of the two data sets."""

    archive: str
    folder: str
    """The folder inside the archive."""
    batches: dict[str, tuple[str, ...]]
    label_bytes: int
    """Number of bytes before the pixels of an image. The last one is the label; CIFAR-100 has a coarse label first."""
    names: str
    """The file with the names of the classes."""
    classes: int
    pickled: tuple[str, ...]
    """File names of the Python version, which is refused."""


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
    """Return a reader of one split. It tries .npz files first, then unpacked batches, then the archive."""

    def read(folder: Path, split: str) -> Images:
        packed = sorted(folder.glob(f"{split}*.npz"))
        if packed:
            return _joined([read_packed(path, layout.classes) for path in packed])
        for place in (folder, folder / layout.folder):
            batches = [place / name for name in layout.batches[split]]
            if all(path.is_file() for path in batches):
                names = place / layout.names
                classes = _class_names(read_whole(names) if names.is_file() else b"", layout, names)
                return _joined([parse_batch(read_whole(path, MOST_BYTES), layout, classes, path) for path in batches])
        if (folder / layout.archive).is_file():
            return _read_archive(folder / layout.archive, layout, split)
        for name in layout.pickled:
            if (folder / name).exists():
                raise ValueError(
                    f"{folder.name} must be the binary version, {layout.archive}, got {folder / name}, a pickle that "
                    "may run any code when it is read; download the binary version."
                )
        raise FileNotFoundError(layout.archive)

    return read


def has_cifar(layout: Cifar) -> Callable[[Path], bool]:
    """Return a function that tells whether a folder holds both splits in one of the supported forms."""

    def is_there(folder: Path) -> bool:
        packed = all(any(folder.glob(f"{split}*.npz")) for split in layout.batches)
        names = [name for batches in layout.batches.values() for name in batches]
        plain = any(all((place / name).is_file() for name in names) for place in (folder, folder / layout.folder))
        return packed or plain or (folder / layout.archive).is_file()

    return is_there


def parse_batch(data: bytes, layout: Cifar, classes: tuple[str, ...], name: object = "the batch") -> Images:
    """Return the images of one binary batch: per image the labels, then 1,024 bytes of red, of green and of blue."""
    record = layout.label_bytes + PIXELS
    if not data or len(data) % record:
        raise DamagedError(f"{name} must hold whole images of {record} bytes, got {len(data):,}; fetch it again.")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    labels = checked_labels(name, rows[:, layout.label_bytes - 1], layout.classes)
    planes = rows[:, layout.label_bytes :].reshape(-1, CHANNELS, SIDE, SIDE)
    return Images(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels, classes)


def read_packed(path: Path, classes: int) -> Images:
    """Return the images of one .npz file of the packing described above."""
    blob, offset, label, names = _load_arrays(check_ordinary(path))
    ends = offset.astype(np.int64)
    if len(ends) != len(label) + 1 or ends[0] != 0 or ends[-1] != len(blob) or (np.diff(ends) < 0).any():
        raise DamagedError(
            f"{path} must have rising offsets, one per image and the end ({len(blob):,} bytes), got {len(ends)} "
            f"offsets for {len(label)} labels; fetch it again."
        )
    labels = checked_labels(path, label, min(classes, len(names)))
    data = blob.tobytes()
    pixels = np.empty((len(labels), SIDE, SIDE, CHANNELS), np.uint8)
    for place, (start, end) in enumerate(pairwise(ends.tolist())):
        image = decode_image(data[start:end], f"image {place} of {path}")
        if image.shape != pixels.shape[1:]:
            raise DamagedError(
                f"image {place} of {path} must be {SIDE} x {SIDE}, got {image.shape[:2]}; fetch it again."
            )
        pixels[place] = image
    return Images(pixels, labels, tuple(map(str, names)))


def _load_arrays(path: Path) -> list[np.ndarray]:
    """Return the arrays of a packing, checked for size, kind and dimensions."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_BYTES:
            raise DamagedError(f"{path} must unpack to at most {MOST_BYTES:,} bytes, got {size:,}; fetch it again.")
        with path.open("rb") as file, np.load(file) as stored:  # numpy leaves a file open that it cannot read
            arrays = {key: stored[key] for key in PACKED if key in stored.files}
    except DamagedError:
        raise
    except Exception as error:  # zipfile and numpy report damage with many types of errors
        raise DamagedError(f"{path} must be a whole .npz file, got {error!r}; fetch it again.") from error
    if len(arrays) < len(PACKED):
        raise DamagedError(
            f"{path} must hold the arrays {', '.join(PACKED)}, got {', '.join(arrays) or 'none of them'}; fetch it "
            "again."
        )
    for key, kinds in PACKED.items():
        if arrays[key].ndim != 1 or arrays[key].dtype.kind not in kinds:
            raise DamagedError(
                f"`{key}` in {path} must have one dimension and {'text' if kinds == 'U' else 'whole numbers'}, got "
                f"{arrays[key].dtype} of shape {arrays[key].shape}; fetch it again."
            )
    if arrays["blob"].dtype != np.uint8:
        raise DamagedError(f"`blob` in {path} must be uint8, got {arrays['blob'].dtype}; fetch it again.")
    return [arrays[key] for key in PACKED]


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
                if name not in names or not member.isfile():
                    continue
                if member.size > MOST_BYTES:
                    raise DamagedError(
                        f"{name} in {path} must have at most {MOST_BYTES:,} bytes, got {member.size:,}; fetch it again."
                    )
                file = archive.extractfile(member)
                if file is not None:
                    yield name, file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DamagedError(f"{path} must be a whole tar.gz file, got {error}; fetch it again.") from error


def _class_names(data: bytes, layout: Cifar, path: object) -> tuple[str, ...]:
    if not data:  # the file is optional: then classes are named by their numbers
        return tuple(map(str, range(layout.classes)))
    names = tuple(data.decode("utf-8", "replace").split())
    if len(names) != layout.classes:
        raise DamagedError(f"{path} must name {layout.classes} classes, got {len(names)}; fetch it again.")
    return names


def _joined(parts: list[Images]) -> Images:
    pixels, labels = (np.concatenate([part[field] for part in parts]) for field in (0, 1))
    return Images(pixels, labels, parts[0].classes)
