"""Helpers that the verbs share: an error for bad usage, and plain JSON on standard output."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from harmax.errors import DamagedError
from harmax.files import to_json


class UsageError(Exception):
    """The command line is wrong; exit status 2."""


@contextmanager
def checking_usage() -> Iterator[None]:
    """Turn a ValueError into a UsageError: inside this context only the command line can be wrong."""
    try:
        yield
    except DamagedError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error


def check_folder(path: Path, flag: str = "--folder") -> Path:
    """Return the path of a folder, which may not exist yet; refuse a path that is a file or goes through one."""
    for part in (path, *path.parents):
        if part.exists():
            if not part.is_dir():
                raise UsageError(
                    f"`{flag}` must be a folder, got {str(path)!r}, where {str(part)!r} is a file; name another path."
                )
            break
    return path


def silence(stream: TextIO) -> None:
    """Discard what is written to a stream from now on; its reader is gone, and every write would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(value: Any) -> None:
    """Print one JSON document on one line."""
    print(to_json(value), flush=True)


def parse_seeds(text: str | None) -> list[int] | int | None:
    """Read `--seeds`: a number of seeds, or the seeds themselves separated by commas.

    >>> parse_seeds("5"), parse_seeds("3,7"), parse_seeds("3,")
    (5, [3, 7], [3])
    """
    if text is None:
        return None
    words = [word.strip() for word in text.removesuffix(",").split(",")]
    if not all(word.isdecimal() for word in words):
        raise ValueError(f"`--seeds` must be a number of seeds or a list of seeds, got {text!r}; write 5 or 3,7,9.")
    return [int(word) for word in words] if "," in text else int(text)
