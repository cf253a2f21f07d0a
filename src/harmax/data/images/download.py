"""Download of published files. Each file ends up whole and checked, or not at all; no file is fetched twice."""

import errno
import http.client
import os
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from harmax.data.checksums import sha256_of
from harmax.data.images.registry import IMAGES
from harmax.data.images.source import ImageSource, RemoteFile
from harmax.errors import unknown

BLOCK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # another mirror would not help

Progress = Callable[[str, int, int], None]
"""Called with the name of a file, the number of bytes so far, and the number of bytes in total."""


def download(name: str, folder: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """Fetch the published files of a data set into `folder`/`name` and return that folder.

    A file is kept only if its size and SHA-256 are right. An interrupted download continues where it stopped. A second
    call fetches only the missing files.

    Args:
        name: "mnist", "fashion_mnist", "cifar10" or "cifar100".
        folder: the data folder. Set HARMAX_DATA to it afterwards.
        progress: called after every block.
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
    """Return one line per file: name, size and checksum; with a mirror, the address in place of the name."""
    width = max((len(mirror + file.name) for file in files), default=0)
    return "\n".join(f"  {mirror + file.name:<{width}}  {file.size:>11,} bytes  sha256 {file.sha256}" for file in files)


def is_whole(path: Path, file: RemoteFile) -> bool:
    """Return whether a file is there with the published size and checksum."""
    return path.is_file() and path.stat().st_size == file.size and sha256_of(path) == file.sha256


def _fetch(source: ImageSource, file: RemoteFile, own: Path, progress: Progress) -> None:
    partial, problems = own / f".{file.name}.partial", []
    for mirror in source.mirrors:
        address = mirror + file.name
        try:
            _continue(address, file, partial, progress)
        except (OSError, http.client.HTTPException) as error:  # the partial file stays, so a later call continues it
            if isinstance(error, OSError) and error.errno in DISK_FAULTS:
                error.filename = str(partial)
                raise
            problems.append(f"{address}: {error}")
            continue
        if partial.stat().st_size < file.size:
            problems.append(f"{address}: ended after {partial.stat().st_size:,} of {file.size:,} bytes")
            continue
        if is_whole(partial, file):
            os.replace(partial, own / file.name)
            return
        if partial.stat().st_size > file.size:
            problems.append(f"{address}: more than {file.size:,} bytes")
        else:
            problems.append(f"{address}: {partial.stat().st_size:,} bytes with another checksum")
        partial.unlink()
    raise ConnectionError(
        f"{file.name} could not be downloaded from any of {len(source.mirrors)} mirrors: {'; '.join(problems)}.\n"
        f"Without internet, put these files into {own} by hand:\n{list_files(source.files)}"
    )


def _continue(address: str, file: RemoteFile, partial: Path, progress: Progress) -> None:
    there = partial.stat().st_size if partial.is_file() else 0
    if there >= file.size:
        partial.unlink()
        there = 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={there}-"} if there else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if answer.status != 206:  # the server ignored the range and sends the whole file
            there = 0
        partial.parent.mkdir(parents=True, exist_ok=True)  # only now, so that a failed attempt leaves no folder
        with partial.open("ab" if there else "wb") as out:
            # A mirror that sends more than was published is cut off: it cannot be the file.
            while there <= file.size and (block := answer.read(BLOCK)):
                out.write(block)
                there += len(block)
                progress(file.name, there, file.size)
            out.flush()
            os.fsync(out.fileno())
