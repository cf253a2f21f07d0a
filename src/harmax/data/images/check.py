"""Which data sets are there, and whether they match the published ones: by checksum, then by reading every image."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harmax.data.checksums import SUMS, read_sums, sha256_of
from harmax.data.folder import find_data
from harmax.data.images.registry import IMAGES
from harmax.data.images.source import ImageSource, own_folder
from harmax.errors import DamagedError, unknown

STATES = ("embedded", "missing", "incomplete", "there", "part", "whole", "damaged")


@dataclass(frozen=True)
class ImageCheck:
    """The state of one data set on this machine."""

    name: str
    state: str
    """Without reading: `embedded` (inside a Python package), `missing` (no file), `incomplete` (some files) or `there`
    (all files). After reading: `whole` (all published images), `part` (fewer images) or `damaged`."""
    folder: Path | None = None
    """The folder of the data set."""
    wanted: tuple[str, ...] = ()
    """Names of the missing files, if the data set cannot be read without them."""
    checked: tuple[str, ...] = ()
    """Names of the files whose checksum is right."""
    problems: tuple[str, ...] = ()
    """One sentence per problem."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of images per split, if they were read."""


def check_images(name: str, folder: str | os.PathLike[str] | None = None, *, read: bool = True) -> ImageCheck:
    """Look for a data set, and report whether it matches the published one.

    Published files must have their published checksums. Other files must have the checksums in the SHA256SUMS of the
    data folder, if it has one. Then every image is decoded and counted.

    Args:
        name: one of `IMAGES`.
        folder: the data folder, as for `load_images`.
        read: whether to read the files, which takes seconds.

    >>> check_images("digits").counts
    {'train': 1437, 'test': 360}
    """
    if name not in IMAGES:
        raise ValueError(unknown("name", name, IMAGES))
    source = IMAGES[name]
    if source.embedded and not read:
        return ImageCheck(name, "embedded")
    try:
        own = own_folder(name, source, folder)
    except FileNotFoundError:
        return ImageCheck(name, "missing", wanted=tuple(file.name for file in source.files))
    there = None if source.embedded else own
    if not source.is_there(own):
        lacking = tuple(file.name for file in source.files if not (own / file.name).is_file())
        return ImageCheck(name, "incomplete", there, lacking)
    if not read:
        return ImageCheck(name, "there", there)
    checked, problems = [], []
    for path, digest, origin in () if there is None else _expected(name, source, there, folder):
        found = sha256_of(path)
        if found == digest:
            checked.append(path.name)
        else:
            problems.append(f"{path} must have the sha256 {digest} ({origin}), got {found}; fetch it again.")
    counts: dict[str, int] = {}
    if not problems:  # a wrong checksum is enough, and reading a damaged file may take long
        try:
            counts = {split: len(source.read(own, split).labels) for split in source.counts}
        except DamagedError as error:
            problems.append(str(error))
    whole = counts == dict(source.counts)
    state = "damaged" if problems else "part" if not whole else "embedded" if source.embedded else "whole"
    return ImageCheck(name, state, there, (), tuple(checked), tuple(problems), counts)


def _expected(
    name: str, source: ImageSource, own: Path, folder: str | os.PathLike[str] | None
) -> Iterator[tuple[Path, str, str]]:
    """Yield the files of a data set that have a known checksum, the checksum, and where it comes from."""
    root = find_data() if folder is None else Path(folder)
    if root is None or own != root / name:
        return  # a system package compresses the files again, and its package manager checks them
    digests = {file.name: (file.sha256, "as published") for file in source.files}
    sums = root / SUMS
    for path, digest in read_sums(sums).items() if sums.is_file() else ():
        inside = Path(path)
        if len(inside.parts) == 2 and inside.parts[0] == name:
            digests.setdefault(inside.name, (digest, f"in {sums}"))
    for file, (digest, origin) in digests.items():
        if (own / file).is_file():
            yield own / file, digest, origin
