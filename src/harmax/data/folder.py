"""The data folder: where it is, and how its files are read without trusting them."""

import gzip
import os
import zlib
from pathlib import Path

from harmax.errors import DamagedError
from harmax.files import read_whole

MOST_TEXT = 2**28
"""Bytes of a text file of the data folder, unpacked. The largest known file has 4 MB."""


def find_data() -> Path | None:
    """Return the data folder: the one that HARMAX_DATA names, else ../shared/data, else None."""
    named = os.environ.get("HARMAX_DATA")
    if named and not Path(named).is_dir():
        raise ValueError(f"`HARMAX_DATA` must name a folder, got {named!r}; correct it, make the folder, or unset it.")
    candidate = Path(named) if named else Path("../shared/data")
    return candidate if candidate.is_dir() else None


def read_text(name: str, folder: str | os.PathLike[str] | None = None) -> str:
    """Return the text of a file of the data folder, stored as `name` or packed as `name`.gz.

    Args:
        name: path below the folder, for example "sst2/dev.tsv".
        folder: the data folder; None means `find_data()`.
    """
    root = find_data() if folder is None else Path(folder)
    if root is None:
        raise FileNotFoundError(
            f"{name} must be in the data folder, but no data folder was found; set HARMAX_DATA to its path."
        )
    for path in (root / name, root / f"{name}.gz"):
        if path.is_file():
            data = read_gzip(path, MOST_TEXT) if path.suffix == ".gz" else read_whole(path, MOST_TEXT)
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DamagedError(f"{path} must be UTF-8 text, got {error}; fetch it again.") from error
    raise FileNotFoundError(
        f"{name} or {name}.gz must be in {root}, but neither is there; set HARMAX_DATA to the data folder."
    )


def read_gzip(path: Path, most: int) -> bytes:
    """Return the unpacked bytes of a .gz file; refuse more than `most`, because a small file may unpack to many GB."""
    try:
        with gzip.open(path) as file:
            data = file.read(most + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedError(
            f"{path} must be a whole gzip file, got {error or 'half a file'}; fetch it again."
        ) from error
    if len(data) > most:
        raise DamagedError(f"{path} must unpack to at most {most:,} bytes, got more; fetch it again.")
    return data
