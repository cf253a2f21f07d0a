"""One owner per output folder: a second process that would write there is told who holds it.

The lock is the kernel's (flock), so it ends with its process, however that process ends. The file OUTPUT/.lock only
says who holds it; after a kill it stays behind and means nothing. A file system without locks gives no protection.
"""

import errno
import fcntl
import os
import socket
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harmax.files import make_folder

LOCK = ".lock"
NOT_SUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)

# A forked child, such as a process that decodes pictures, would share the lock and keep it after its parent was killed.
_held: set[int] = set()


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


class FolderInUseError(OSError):
    """Another process writes to this output folder."""


class FolderOwner:
    """Holds an output folder until `release`; makes the folder where there is none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     owner = FolderOwner(Path(folder) / "run")
    ...     try:
    ...         FolderOwner(Path(folder) / "run")
    ...     except FolderInUseError as error:
    ...         print(f"process {os.getpid()} on" in str(error))
    ...     owner.release()
    True
    """

    def __init__(self, folder: Path) -> None:
        made = not folder.exists()
        make_folder(folder)
        handle = _lock(folder / LOCK)
        os.ftruncate(handle, 0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}, since {since}\n".encode())
        _held.add(handle)
        self.release = weakref.finalize(self, _release, handle, folder, made, os.getpid())
        """Give the folder back; harmless when it was given back before."""

    def __enter__(self) -> "FolderOwner":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def holder(folder: Path) -> str | None:
    """Return which process holds a folder, or None if none does."""
    try:
        handle = _open(folder / LOCK)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _named(handle)
    except OSError as error:
        if error.errno in NOT_SUPPORTED:
            return None
        raise
    finally:
        os.close(handle)


@contextmanager
def taking_turns(path: Path) -> Iterator[None]:
    """Let one process after the other through, by a lock on this file, which is made if there is none."""
    handle = _lock(path, wait=True)
    _held.add(handle)
    try:
        yield
    finally:
        _held.discard(handle)
        os.close(handle)


def _named(handle: int) -> str:
    return os.pread(handle, 1000, 0).decode(errors="replace").strip() or "another process"


def _open(path: Path, flags: int = 0) -> int:
    """Open the file of a lock. A link is refused, because the file that it leads to would be emptied."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise _not_ordinary(path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _not_ordinary(path)
    return handle


def _not_ordinary(path: Path) -> OSError:
    return OSError(f"{path} must be an ordinary file, got a link, a folder, a pipe or a device; delete it.")


def _lock(path: Path, *, wait: bool = False) -> int:
    while True:
        handle = _open(path, os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # The holder before may have deleted the file meanwhile; then its name is free, or another's.
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BlockingIOError:
            name = _named(handle)
            os.close(handle)
            raise FolderInUseError(
                f"{path.parent} is in use by {name}; wait until it ends, stop it, or name another output folder."
            ) from None
        except FileNotFoundError:  # deleted between two looks
            pass
        except OSError as error:
            if error.errno in NOT_SUPPORTED:
                return handle
            os.close(handle)
            raise
        os.close(handle)


def _release(handle: int, folder: Path, made: bool, owner: int) -> None:
    if os.getpid() != owner:
        return
    with suppress(OSError):  # of a folder that was deleted or became read-only; the file alone means nothing
        (folder / LOCK).unlink(missing_ok=True)  # before the lock goes, so that nobody else's file is deleted
    _held.discard(handle)
    os.close(handle)
    with suppress(OSError):
        if made and not any(folder.iterdir()):
            folder.rmdir()
