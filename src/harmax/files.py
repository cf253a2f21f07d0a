"""Plain files: standard JSON whatever the numbers, and writes that are whole or not there."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harmax.errors import DamagedError

# JSON has no word for these three; strings keep the file standard and the difference between them.
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any) -> str:
    """Write plain values as standard JSON on one line; non-finite numbers become strings.

    >>> to_json({"loss": float("nan"), "epochs": (1, 2)})
    '{"loss": "NaN", "epochs": [1, 2]}'
    """
    return json.dumps(_encode(value), allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Read what `to_json` wrote, non-finite numbers included.

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
        raise ValueError(f"a text must not be one of {sorted(NON_FINITE)}, got {value!r}; store the number itself.")
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
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's private mode would hide shared results from colleagues
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write plain values atomically as readable, standard JSON."""
    text = json.dumps(_encode(value), allow_nan=False, indent=1)
    write_atomically(path, (text + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file; raise DamagedError, with the reason, where that cannot be done."""
    try:
        return from_json(path.read_bytes())
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path.name} cannot be read ({error})") from None


def digest(data: bytes) -> str:
    """Return the length and checksum that `done` keeps of each file."""
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"
