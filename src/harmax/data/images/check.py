"""Which data sets are there, and whether they are what was published: by checksum, then by reading every image."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harmax.data.folder import find_data
from harmax.data.images.registry import IMAGES
from harmax.data.images.source import ImageSource, own_folder
from harmax.errors import DamagedError, unknown

SUMS = "SHA256SUMS"
STATES = ("embedded", "missing", "incomplete", "there", "part", "whole", "damaged")


@dataclass(frozen=True)
class ImageCheck:
    """What was found of one data set."""

    name: str
    state: str
    """`embedded`: inside a Python package. `missing`: nothing there. `incomplete`: some files are not there. `there`:
    all are, and were not looked into. `whole`, `part`, `damaged`: read, with as many images as published, fewer, or
    something wrong."""
    folder: Path | None = None
    """Where it lies."""
    wanted: tuple[str, ...] = ()
    """Names of the published files that are not there, where the set cannot be read without them."""
    checked: tuple[str, ...] = ()
    """Names of the files whose checksum is right."""
    problems: tuple[str, ...] = ()
    """What is wrong, a sentence each."""
    counts: dict[str, int] = field(default_factory=dict)
    """Images of each split, where they were read."""


def check_images(name: str, folder: str | os.PathLike[str] | None = None, *, read: bool = True) -> ImageCheck:
    """Look for a data set, and say whether it is what was published.

    The published files must have their published checksums, other files those of the data folder's SHA256SUMS, if it
    has one. Then every image is decoded and counted.

    Args:
        name: one of `IMAGES`.
        folder: the data folder, as for `load_images`.
        read: whether to look into the files at all, which takes seconds.

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
        with path.open("rb") as stored:
            found = hashlib.file_digest(stored, "sha256").hexdigest()
        if found == digest:
            checked.append(path.name)
        else:
            problems.append(f"{path} must have the sha256 {digest} ({origin}), got {found}; fetch it again.")
    counts: dict[str, int] = {}
    if not problems:  # else it is known already, and a reader might take long over it
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
    """Yield the files of a set that have a checksum to compare with, the checksum, and who says so."""
    root = find_data() if folder is None else Path(folder)
    if root is None or own != root / name:
        return  # a system package's files are packed anew, and the package manager checks them
    digests = {file.name: (file.sha256, "as published") for file in source.files}
    sums = root / SUMS
    for line in sums.read_text("utf-8", "replace").splitlines() if sums.is_file() else ():
        digest, _, path = line.partition(" ")
        inside = Path(path.strip().removeprefix("*"))
        if len(inside.parts) == 2 and inside.parts[0] == name:
            digests.setdefault(inside.name, (digest.lower(), f"in {sums}"))
    for file, (digest, origin) in digests.items():
        if (own / file).is_file():
            yield own / file, digest, origin
