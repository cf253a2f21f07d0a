"""Class folders as in ImageNet: one sub-folder per class, unpacked or in a .tar, decoded one picture at a time."""

# N pictures

import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from harmax.data.images.decoding import decode_image
from harmax.data.images.source import Images
from harmax.errors import DamagedError
from harmax.files import check_ordinary, read_whole

PICTURES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"))
ARCHIVES = (".tar", ".tar.xz", ".tar.gz", ".tgz", ".tar.bz2")
MOST_BYTES = 2**28
"""Largest picture, still encoded. A small archive may promise many GB."""
XZ = b"\xfd7zXZ\0"
MOST_RATIO = 100
"""How many times its size a compressed archive may unpack to, beyond the size of one picture. Pictures are compressed
already, so that honest archives come to about 1."""


@dataclass(frozen=True)
class _Stored:
    """The place of one encoded picture: a file, a part of an uncompressed archive, or the bytes themselves."""

    path: Path
    member: str = ""
    """The name within an archive."""
    start: int = 0
    size: int | None = None
    data: bytes | None = None

    @property
    def name(self) -> str:
        return f"{self.member} in {self.path}" if self.member else str(self.path)

    def count_bytes(self) -> int:
        if self.data is not None:
            return len(self.data)
        return self.path.stat().st_size if self.size is None else self.size

    def read(self) -> bytes:
        if self.data is not None:
            return self.data
        try:
            if self.size is None:
                return read_whole(self.path, MOST_BYTES)
            with self.path.open("rb") as file:
                file.seek(self.start)
                return file.read(self.size)
        except OSError as error:
            raise DamagedError(f"{self.name} must be readable, got {error}; fetch it again or remove it.") from error


class ClassFolder(Sequence[tuple[np.ndarray, int]]):
    """Pictures in class folders. `folder[i]` decodes picture i and returns it, (H, W, 3) uint8, with its label.

    Classes and pictures are sorted by name, so order and labels do not depend on the file system. An object of this
    class is a data set for torch's DataLoader.
    """

    def __init__(self, stored: Sequence[_Stored], owners: Sequence[str], *, size: int | None = None) -> None:
        self.classes: tuple[str, ...] = tuple(sorted(set(owners)))
        number = {name: index for index, name in enumerate(self.classes)}
        order = sorted(range(len(stored)), key=lambda place: (number[owners[place]], stored[place].name))
        self.labels = np.array([number[owners[place]] for place in order], dtype=np.int64)
        """(N,)"""
        self.size = size
        self._stored = [stored[place] for place in order]

    @classmethod
    def of_files(cls, root: Path, labels: Mapping[str, str]) -> "ClassFolder":
        """Return the pictures at some paths below `root`, each with the name of its class."""
        return cls([_Stored(check_ordinary(root / file)) for file in labels], list(labels.values()))

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:  # type: ignore[override]  # no slices
        stored = self._stored[index]
        return decode_image(stored.read(), stored.name, size=self.size), int(self.labels[index])

    def name(self, index: int) -> str:
        """Return the name of a picture: its path, or its path within the archive."""
        return self._stored[index].name

    def digest(self) -> str:
        """Return a SHA-256 of the classes, the labels, and the file name and size of every picture.

        It does not depend on the folder, nor on the name of an archive. No picture is decoded.
        """
        found = hashlib.sha256(os.fsencode("\0".join(self.classes)) + self.labels.tobytes())
        for stored in self._stored:
            file = os.path.basename(stored.member or stored.path)
            found.update(os.fsencode(f"{file}\0{stored.count_bytes()}\0"))
        return found.hexdigest()

    def to_images(self) -> Images:
        """Decode all pictures into memory. They must have one size; `size` of `class_folder` makes it so."""
        pixels: np.ndarray | None = None
        for index in range(len(self)):
            image = self[index][0]
            if pixels is None:
                pixels = np.empty((len(self), *image.shape), np.uint8)
            if image.shape != pixels.shape[1:]:
                raise ValueError(
                    f"pictures must have one size to form one array, got {pixels.shape[1:3]} and then "
                    f"{image.shape[:2]} for {self.name(index)}; pass `size` to class_folder."
                )
            pixels[index] = image
        assert pixels is not None  # class_folder refuses an empty one
        return Images(pixels, self.labels, self.classes)


def class_folder(path: str | os.PathLike[str], *, size: int | None = None) -> ClassFolder:
    """Open a folder with one sub-folder per class, or a .tar (.xz, .gz, .bz2) of such a folder. Nothing is decoded yet.

    For a folder and for an uncompressed .tar, only the list of pictures is kept in memory. For a compressed .tar the
    encoded pictures are kept, because reaching one picture means unpacking all pictures before it.

    Args:
        path: the folder or the archive. In an archive, the class of a picture is the folder that contains it. In a
            folder, it is the first sub-folder.
        size: if given, the shorter side is scaled to it, and a square of this size is cut from the middle.
    """
    place = Path(path)
    if size is not None and size < 1:
        raise ValueError(f"`size` must be at least 1 pixel, got {size}; leave it out to keep the pictures' own sizes.")
    if place.is_dir():
        found = list(_in_folder(place))
    elif place.is_file() and place.name.endswith(ARCHIVES):
        found = list(_in_archive(place))
    elif place.is_file():
        raise ValueError(f"`path` must be a folder or one of {', '.join(ARCHIVES)}, got {place}; unpack it first.")
    else:
        raise FileNotFoundError(
            f"`path` must be a folder of class folders or a .tar of one, but {place} does not exist; check its name."
        )
    if not found:
        raise ValueError(
            f"{place} must hold pictures ({', '.join(sorted(PICTURES))}) in one sub-folder per class, got none; "
            "name the folder above the class folders."
        )
    stored, owners = zip(*found, strict=True)
    return ClassFolder(stored, owners, size=size)


def _in_folder(root: Path) -> Iterator[tuple[_Stored, str]]:
    for owner in sorted(entry for entry in root.iterdir() if entry.is_dir()):
        for path in sorted(owner.rglob("*")):
            if path.suffix.lower() in PICTURES and not path.is_dir():
                yield _Stored(check_ordinary(path)), owner.name


def _in_archive(path: Path) -> Iterator[tuple[_Stored, str]]:
    plain, unpacked, most = path.suffix == ".tar", 0, max(MOST_BYTES, MOST_RATIO * path.stat().st_size)
    try:
        with path.open("rb") as packed:
            if (
                path.suffix == ".xz" and packed.read(len(XZ)) != XZ
            ):  # lzma would take zeros for empty files, without end
                raise lzma.LZMAError("no xz file")
        with tarfile.open(path) as archive:
            for member in archive:
                inside = PurePosixPath(member.name)
                if not member.isfile() or inside.suffix.lower() not in PICTURES or not inside.parent.name:
                    continue
                if member.size > MOST_BYTES:
                    raise DamagedError(
                        f"{member.name} in {path} must have at most {MOST_BYTES:,} bytes, got {member.size:,}; take it "
                        "out of the archive."
                    )
                unpacked += member.size
                if not plain and unpacked > most:
                    raise DamagedError(f"{path} must unpack to at most {most:,} bytes, got more; unpack it yourself.")
                if plain:
                    yield _Stored(path, member.name, member.offset_data, member.size), inside.parent.name
                else:
                    file = archive.extractfile(member)
                    yield _Stored(path, member.name, data=b"" if file is None else file.read()), inside.parent.name
    except (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DamagedError(f"{path} must be a whole archive, got {error or 'half a file'}; fetch it again.") from error


def read_archives(files: dict[str, str]) -> Callable[[Path, str], Images]:
    """Return a reader for data sets with one archive of class folders per split."""

    def read(folder: Path, split: str) -> Images:
        if not (folder / files[split]).is_file():
            raise FileNotFoundError(files[split])
        return class_folder(folder / files[split]).to_images()

    return read


def has_archives(files: dict[str, str]) -> Callable[[Path], bool]:
    """Return a function that tells whether a folder holds the archive of every split."""
    return lambda folder: all((folder / name).is_file() for name in files.values())
