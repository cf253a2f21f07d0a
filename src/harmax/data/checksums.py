"""SHA-256 checksums of files, and the lists of them that `sha256sum` writes."""

import hashlib
import re
from pathlib import Path

from harmax.errors import DamagedError
from harmax.files import read_whole

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-fA-F]{64})\s+\*?(?:\./)?(\S.*)")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as lower-case hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_sums(path: Path) -> dict[str, str]:
    """Return the checksums of a list by file name, in lower case."""
    found = {}
    for number, line in enumerate(read_whole(path).decode("utf-8", "replace").splitlines(), start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise DamagedError(
                f"{path} must have a SHA-256 and a file name in every line, got {line[:80]!r} in line {number}; write "
                "the list with sha256sum."
            )
        found[match[2]] = match[1].lower()
    return found
