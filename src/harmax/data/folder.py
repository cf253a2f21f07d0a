"""The data folder: where it is, and its text files, packed or not, with one line that says what is wrong with one."""

import gzip
import os
import zlib
from pathlib import Path

from harmax.errors import DamagedError


def find_data() -> Path | None:
    """Return the data folder: HARMAX_DATA where it is set, which must be one, else ../shared/data where that exists."""
    named = os.environ.get("HARMAX_DATA")
    if named and not Path(named).is_dir():
        raise ValueError(f"`HARMAX_DATA` must name a folder, got {named!r}; correct it, make that folder, or unset it.")
    candidate = Path(named) if named else Path("../shared/data")
    return candidate if candidate.is_dir() else None


def read_text(name: str, folder: str | os.PathLike[str] | None = None) -> str:
    """Return the text of a file of the data folder; `name` may lie there as it is or packed, as `name`.gz.

    Args:
        name: below the folder, for example "sst2/dev.tsv".
        folder: the data folder; None: the one that `find_data` finds.
    """
    root = find_data() if folder is None else Path(folder)
    if root is None:
        raise FileNotFoundError(f"{name} must lie in the data folder, and there is none; set HARMAX_DATA to it.")
    for path in (root / name, root / f"{name}.gz"):
        if path.is_file():
            try:
                data = path.read_bytes()
                return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
            except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
                raise DamagedError(
                    f"{path} must be whole and UTF-8 text, got {error or 'half a file'}; fetch it again."
                ) from error
    raise FileNotFoundError(f"{name} or {name}.gz must lie in {root}, got neither; set HARMAX_DATA to the data folder.")
