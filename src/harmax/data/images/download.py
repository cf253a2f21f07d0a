"""Fetching the published files: each is whole and checked, or not there; what is there is not fetched again."""

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from harmax.data.images.registry import IMAGES
from harmax.data.images.source import ImageSource, RemoteFile
from harmax.errors import unknown

BLOCK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte

Tell = Callable[[str, int, int], None]
"""Called with a file's name, the bytes that are there, and the bytes that there will be."""


def download(name: str, folder: str | os.PathLike[str], *, progress: Tell | None = None) -> Path:
    """Fetch the published files of a data set into `folder`/`name` and return that folder.

    A file counts once its size and SHA-256 are right; one that was cut off goes on where it ended. Called again, only
    what is missing is fetched.

    Args:
        name: "mnist", "fashion_mnist", "cifar10" or "cifar100".
        folder: the data folder; point HARMAX_DATA at it afterwards.
        progress: told of every block.
    """
    known = [key for key, source in IMAGES.items() if source.files]
    if name not in known:
        raise ValueError(unknown("name", name, known))
    own = Path(folder) / name
    for file in IMAGES[name].files:
        if not is_whole(own / file.name, file):
            _fetch(IMAGES[name], file, own, progress or (lambda name, there, total: None))
    return own


def list_files(files: Sequence[RemoteFile], mirror: str = "") -> str:
    """Write a line a file: name, size and checksum; with a mirror, the address instead of the name."""
    width = max((len(mirror + file.name) for file in files), default=0)
    return "\n".join(f"  {mirror + file.name:<{width}}  {file.size:>11,} bytes  sha256 {file.sha256}" for file in files)


def is_whole(path: Path, file: RemoteFile) -> bool:
    """Whether a file is there with the published size and checksum."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    with path.open("rb") as stored:
        return hashlib.file_digest(stored, "sha256").hexdigest() == file.sha256


def _fetch(source: ImageSource, file: RemoteFile, own: Path, tell: Tell) -> None:
    partial, problems = own / f".{file.name}.partial", []
    for mirror in source.mirrors:
        address = mirror + file.name
        try:
            _continue(address, file, partial, tell)
        except (OSError, http.client.HTTPException) as error:  # the partial file stays, to go on from
            problems.append(f"{address}: {error}")
            continue
        if partial.stat().st_size < file.size:
            problems.append(f"{address}: ended after {partial.stat().st_size:,} of {file.size:,} bytes")
            continue
        if is_whole(partial, file):
            os.replace(partial, own / file.name)
            return
        problems.append(f"{address}: {partial.stat().st_size:,} bytes of another checksum")
        partial.unlink()
    raise ConnectionError(
        f"{file.name} must come from one of {len(source.mirrors)} mirrors, got {'; '.join(problems)}.\n"
        f"Without internet, put these files into {own} by hand:\n{list_files(source.files)}"
    )


def _continue(address: str, file: RemoteFile, partial: Path, tell: Tell) -> None:
    there = partial.stat().st_size if partial.is_file() else 0
    if there >= file.size:
        partial.unlink()
        there = 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={there}-"} if there else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if answer.status != 206:  # all of it comes, whatever was asked for
            there = 0
        partial.parent.mkdir(parents=True, exist_ok=True)  # only now that there is something to write
        with partial.open("ab" if there else "wb") as out:
            while block := answer.read(BLOCK):
                out.write(block)
                there += len(block)
                tell(file.name, there, file.size)
            out.flush()
            os.fsync(out.fileno())
