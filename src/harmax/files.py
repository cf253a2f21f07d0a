"""Plain files: standard JSON also for non-finite numbers, and writes that leave a whole file or none.

A write counts when it returns: file and folder are then on the disk, and outlast a loss of power.
"""

import errno
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from harmax.errors import DamagedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# JSON cannot write these three numbers. As strings they stay apart, and the file stays standard.
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
ABANDONED_SECONDS = 3600.0
"""A temporary file that nobody has written to for so long belongs to a process that was killed. Where files can be
locked this is known at once: a lock ends with its process."""
MOST_BYTES = 2**28
"""Largest file that is read as a whole, unless its reader says otherwise. A file may be larger than what it occupies on
the disk."""
UNSYNCABLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
"""What file systems say that cannot bring a folder to the disk."""


def to_json(value: Any) -> str:
    """Return plain values as standard JSON on one line; non-finite numbers become strings.

    >>> to_json({"loss": float("nan"), "epochs": (1, 2)})
    '{"loss": "NaN", "epochs": [1, 2]}'
    """
    return json.dumps(_encode(value), allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Return the values of a text that `to_json` wrote, including non-finite numbers.

    >>> from_json(to_json([1.5, float("-inf")]))
    [1.5, -inf]
    """
    return _decode(json.loads(text))


def _encode(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, np.generic):
        return _encode(value.item())
    if isinstance(value, str) and value in NON_FINITE:
        raise ValueError(f"a string must not be one of {sorted(NON_FINITE)}, got {value!r}; store the number itself.")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new content, never a part of it.

    Temporary files that killed processes left behind for the same path are removed.
    """
    make_folder(path.parent)
    handle, temporary = _own_temporary(path)
    try:
        with naming(path), os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp's private mode would hide shared results from colleagues
            os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    _sweep(path.parent, f".{path.name}.")


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, so that they outlast a loss of power."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk: those of new, renamed and deleted files."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # one that may be written and not be listed, or a system that opens no folders
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNSYNCABLE:
            raise
    finally:
        os.close(handle)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to a system error without one: "No space left on device" alone does not say where."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def sync_tree(folder: Path) -> None:
    """Bring every file of a folder to the disk, whoever wrote it."""
    for place, _, names in os.walk(folder):
        for name in names:
            handle = os.open(os.path.join(place, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_folder(Path(place))


def _own_temporary(path: Path) -> tuple[int, str]:
    """Make a temporary file beside a path, locked as long as this process holds it open."""
    while True:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
        _locked(handle, wait=True)  # for a sweep that has just locked it
        if os.fstat(handle).st_nlink:
            return handle, temporary
        os.close(handle)  # a sweep took it for abandoned before it was locked


def _locked(handle: int, *, wait: bool = False) -> bool:
    """Lock a file that no other process has locked, and say whether that went well; the lock ends with its process."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # somebody writes it, or the file system has no locks
        return False
    return True


def sweep_tree(folder: Path) -> None:
    """Remove abandoned temporary files of `write_atomically` from a folder in which only harmax writes."""
    for place, _, _ in os.walk(folder):
        _sweep(Path(place), ".")


def _sweep(folder: Path, start: str) -> None:
    """Remove abandoned temporary files of `write_atomically` whose names start so."""
    limit = time.time() - ABANDONED_SECONDS
    for name in os.listdir(folder):
        if name.startswith(start) and name.endswith(".partial"):
            with suppress(OSError):  # another process may have removed it
                handle = os.open(folder / name, os.O_RDONLY)
                try:
                    if _locked(handle) or os.fstat(handle).st_mtime < limit:
                        os.unlink(folder / name)
                finally:
                    os.close(handle)


def check_ordinary(path: Path) -> Path:
    """Return the path of an ordinary file; refuse a pipe or a device, which could block for ever."""
    if not path.is_file():
        raise DamagedError(
            f"{path} must be an ordinary file, got a folder, a pipe, a device or a broken link; remove or replace it."
        )
    return path


def read_whole(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of an ordinary file; refuse one that could block for ever or fill the memory."""
    size = path.stat().st_size  # which says so if there is none
    if check_ordinary(path) and size > most:
        raise DamagedError(f"{path} must have at most {most:,} bytes, got {size:,}; remove or replace it.")
    return path.read_bytes()


def write_json(path: Path, value: Any) -> None:
    """Write plain values atomically as indented, standard JSON."""
    text = json.dumps(_encode(value), allow_nan=False, indent=1)
    write_atomically(path, (text + "\n").encode())


def read_json(path: Path) -> Any:
    """Return the values of a JSON file; raise DamagedError with path and reason if it cannot be read."""
    try:
        return from_json(read_whole(path))
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except DamagedError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path} cannot be read ({error})") from None


def digest(data: bytes) -> str:
    """Return the length and the checksum of a file, as one string to store and to compare."""
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"
