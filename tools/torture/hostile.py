"""Hostile files: a valid file of every kind is changed at random and read, with little memory, time and no processes.

A reader may return, or raise an error of one of `CLEAR` that names the file or its folder. It may not crash, hang, take
more than `MOST_MEMORY`, start a process, open a connection or unpickle.
"""

import contextlib
import gzip
import os
import pickle
import random
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harmax.cli.usage import UsageError
from torture import children
from torture.readers import READERS

MOST_MEMORY = 3 * 2**30
"""Bytes beyond what the program holds before it reads."""
MOST_SECONDS = 60
"""Processor time. One that waits without end is ended by `children`."""
CLEAR = (ValueError, OSError, UsageError)
FORBIDDEN = (
    "subprocess.Popen",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.system",
    "socket.connect",
    "pickle.find_class",
)
WORDS = (
    b"null",
    b"-1",
    b"1e999",
    b"NaN",
    b"[]",
    b"{}",
    b'""',
    b"99999999999999999999",
    b"true",
    b'"../../x"',
    b"\xff\xfe",
)
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"


class Forbidden(BaseException):
    """A reader did what no reader may do."""


def mutate(path: Path, chosen: random.Random) -> None:
    """Change a file at random, or put something else in its place."""
    data = bytearray(path.read_bytes())
    if chosen.random() < 0.12:
        _replace(path, chosen)
        return
    for _ in range(chosen.choice((1, 1, 2, 5, 20))):
        place = chosen.randrange(len(data) + 1)
        length = min(len(data) - place, chosen.choice((1, 2, 4, 8, 64, len(data))))
        match chosen.randrange(7):
            case 0 if data:
                data[min(place, len(data) - 1)] ^= 1 << chosen.randrange(8)
            case 1:
                del data[place : place + length]
            case 2:
                data[place:place] = chosen.randbytes(length)
            case 3:
                data[place : place + length] = data[:length]
            case 4:
                data[place : place + length] = bytes([chosen.choice((0, 255))]) * length
            case 5:
                _replace_word(data, chosen)
            case _:
                data[place:place] = chosen.choice(WORDS)
    path.write_bytes(data)


def _replace_word(data: bytearray, chosen: random.Random) -> None:
    """Replace a number or a quoted word, as JSON and tables have them."""
    found = list(re.finditer(rb'"[^"]*"|-?\d+(\.\d+)?', data))
    if found:
        one = chosen.choice(found)
        data[one.start() : one.end()] = chosen.choice(WORDS)


def _replace(path: Path, chosen: random.Random) -> None:
    """Put something else in the place of a file."""
    path.unlink()
    match chosen.randrange(11):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to("/dev/zero")
        case 3:
            path.symlink_to(path)
        case 4:
            path.write_bytes(b"")
        case 5:
            path.write_bytes(gzip.compress(bytes(2**26), 1))
        case 6:
            path.write_bytes(EPS)
        case 7:
            path.write_bytes(pickle.dumps(Forbidden))
        case 8:
            path.symlink_to(path.parent)
        case 9:
            path.touch()
            os.truncate(path, 100 * 2**30)  # which occupies nothing on the disk
        case _:
            path.write_bytes(b"[" * 100_000)


_corpora: dict[str, Path] = {}


def corpus(name: str) -> Path:
    """Return the folder with valid files for a reader, which is made once per process."""
    if name not in _corpora:
        folder = Path(tempfile.mkdtemp(prefix="torture-corpus-")) / "valid"
        folder.mkdir()
        READERS[name].make(folder)
        ended = children.run(lambda: guarded(name, folder), folder.with_name("said"))
        assert not ended.words, f"{name} does not read a valid file: {ended.words}"
        _corpora[name] = folder
    return _corpora[name]


def guarded(name: str, folder: Path) -> None:
    """Read a folder in this process, which is watched and limited and ends afterwards."""
    status = Path("/proc/self/status").read_text()
    held = int(re.search(r"VmSize:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_AS, (held + MOST_MEMORY, held + MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event in FORBIDDEN:
            raise Forbidden(f"{event} {arguments}")

    sys.addaudithook(look)
    READERS[name].read(folder)


def complaint(error: Exception, folder: Path) -> str | None:
    """Return what is wrong with an error, or None if it is a clear one."""
    names = {folder.name, *(path.name for path in folder.rglob("*"))}
    if isinstance(error, CLEAR) and any(name in str(error) for name in names):
        return None
    return f"{type(error).__name__}: {error}"


def reading(name: str, folder: Path) -> Callable[[], None]:
    """Return the work of a process that reads a folder, and fails where an error is not clear."""

    def work() -> None:
        try:
            guarded(name, folder)
        except Exception as error:
            if complaint(error, folder):
                raise

    return work


def case(seed: int, only: str | None = None) -> str | None:
    """Change one file of one reader, and read."""
    chosen = random.Random(seed)
    name = only or chosen.choice(list(READERS))
    valid = corpus(name)
    folder = valid.with_name("hostile")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(valid, folder)
    try:
        path = chosen.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"))
        mutate(path, chosen)
        ended = children.run(reading(name, folder), valid.with_name("said"))
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
    where = f"{name}, {path.relative_to(folder)}"
    if ended.killed:
        return f"{where}: it was killed"
    return f"{where}: {_short(ended.words)}" if ended.words else None


def _short(words: str) -> str:
    """Return the last line of a traceback, and where in harmax it arose."""
    lines = words.strip().splitlines()
    places = [line.strip() for line in lines if line.strip().startswith("File ") and "harmax" in line]
    place = re.sub(r'File ".*/(harmax\w*/.*)"', r"\1", places[-1]) if places else ""
    return f"{lines[-1][:300]} ({place})"


def clear() -> None:
    """Delete the valid files."""
    while _corpora:
        shutil.rmtree(_corpora.popitem()[1].parent, ignore_errors=True)
