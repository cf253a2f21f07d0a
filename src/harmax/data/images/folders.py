"""Class folders, as ImageNet has them: one sub-folder a class, unpacked or in a .tar, decoded one picture at a time."""

# N pictures

import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from harmax.data.images.decoding import decode_image
from harmax.data.images.source import Images
from harmax.errors import DamagedError

PICTURES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"))
ARCHIVES = (".tar", ".tar.xz", ".tar.gz", ".tgz", ".tar.bz2")


@dataclass(frozen=True)
class _Stored:
    """Where one encoded picture is: a file, a piece of an uncompressed archive, or the bytes themselves."""

    path: Path
    member: str = ""
    """Its name within an archive."""
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
            with self.path.open("rb") as file:
                file.seek(self.start)
                return file.read(-1 if self.size is None else self.size)
        except OSError as error:
            raise DamagedError(f"{self.name} must be readable, got {error}; fetch it again or take it out.") from error


class ClassFolder(Sequence[tuple[np.ndarray, int]]):
    """Pictures in class folders: `folder[i]` decodes the i-th, and gives it as (H, W, 3) uint8 with its label.

    Order and labels do not depend on the file system: classes and pictures are sorted by name. It may be handed to
    torch's DataLoader as it is.
    """

    def __init__(self, stored: Sequence[_Stored], owners: Sequence[str], *, size: int | None = None) -> None:
        self.classes: tuple[str, ...] = tuple(sorted(set(owners)))
        number = {name: index for index, name in enumerate(self.classes)}
        order = sorted(range(len(stored)), key=lambda place: (number[owners[place]], stored[place].name))
        self.labels = np.array([number[owners[place]] for place in order], dtype=np.int64)
        """(N,)"""
        self.size = size
        self._stored = [stored[place] for place in order]

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:  # type: ignore[override]  # no slices: they decode
        stored = self._stored[index]
        return decode_image(stored.read(), stored.name, size=self.size), int(self.labels[index])

    def name(self, index: int) -> str:
        """Return what the i-th picture is called: its path, within the archive where it is in one."""
        return self._stored[index].name

    def digest(self) -> str:
        """Return a SHA-256 of the classes, the labels, and every picture's file name and size; nothing is decoded.

        It does not depend on where the pictures lie, nor on what the archive is called that they may be in.
        """
        found = hashlib.sha256(os.fsencode("\0".join(self.classes)) + self.labels.tobytes())
        for stored in self._stored:
            file = os.path.basename(stored.member or stored.path)
            found.update(os.fsencode(f"{file}\0{stored.count_bytes()}\0"))
        return found.hexdigest()

    def to_images(self) -> Images:
        """Decode everything into memory; all pictures must have one size, which `size` sees to."""
        pixels: np.ndarray | None = None
        for index in range(len(self)):
            image = self[index][0]
            if pixels is None:
                pixels = np.empty((len(self), *image.shape), np.uint8)
            if image.shape != pixels.shape[1:]:
                raise ValueError(
                    f"pictures must have one size to lie in one array, got {pixels.shape[1:3]} and then "
                    f"{image.shape[:2]} for {self.name(index)}; pass `size` to class_folder."
                )
            pixels[index] = image
        assert pixels is not None  # class_folder refuses an empty one
        return Images(pixels, self.labels, self.classes)


def class_folder(path: str | os.PathLike[str], *, size: int | None = None) -> ClassFolder:
    """Open a folder with one sub-folder a class, or a .tar (.xz, .gz, .bz2) of such a folder; decode nothing yet.

    Of an uncompressed .tar, as of a folder, only the list is kept; of a compressed one the encoded pictures are,
    since there is no way to one picture that does not pass all before it.

    Args:
        path: the folder or the archive. In an archive a picture's class is the folder that it lies in; below a folder
            it is the first sub-folder on the way.
        size: if given, every picture's shorter side is scaled to it and a square of it is cut from the middle.
    """
    place = Path(path)
    if size is not None and size < 1:
        raise ValueError(f"`size` must be at least 1 pixel, got {size}; leave it out to keep pictures as they are.")
    if place.is_dir():
        found = list(_in_folder(place))
    elif place.is_file() and place.name.endswith(ARCHIVES):
        found = list(_in_archive(place))
    elif place.is_file():
        raise ValueError(f"`path` must be a folder or one of {', '.join(ARCHIVES)}, got {place}; unpack it first.")
    else:
        raise FileNotFoundError(f"`path` must be a folder of class folders or a .tar of one, got {place}: not there.")
    if not found:
        raise ValueError(
            f"{place} must hold pictures ({', '.join(sorted(PICTURES))}) in one sub-folder a class, got none; "
            "name the folder above the classes."
        )
    stored, owners = zip(*found, strict=True)
    return ClassFolder(stored, owners, size=size)


def _in_folder(root: Path) -> Iterator[tuple[_Stored, str]]:
    for owner in sorted(entry for entry in root.iterdir() if entry.is_dir()):
        for path in sorted(owner.rglob("*")):
            if path.suffix.lower() in PICTURES and path.is_file():
                yield _Stored(path), owner.name


def _in_archive(path: Path) -> Iterator[tuple[_Stored, str]]:
    plain = path.suffix == ".tar"
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                inside = PurePosixPath(member.name)
                if not member.isfile() or inside.suffix.lower() not in PICTURES or not inside.parent.name:
                    continue
                if plain:
                    yield _Stored(path, member.name, member.offset_data, member.size), inside.parent.name
                else:
                    file = archive.extractfile(member)
                    yield _Stored(path, member.name, data=b"" if file is None else file.read()), inside.parent.name
    except (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DamagedError(f"{path} must be a whole archive, got {error or 'half a file'}; fetch it again.") from error


def read_archives(files: dict[str, str]) -> Callable[[Path, str], Images]:
    """Return a reader of splits that are one archive of class folders each."""

    def read(folder: Path, split: str) -> Images:
        if not (folder / files[split]).is_file():
            raise FileNotFoundError(files[split])
        return class_folder(folder / files[split]).to_images()

    return read


def has_archives(files: dict[str, str]) -> Callable[[Path], bool]:
    """Return a test for whether a folder holds every split's archive."""
    return lambda folder: all((folder / name).is_file() for name in files.values())
