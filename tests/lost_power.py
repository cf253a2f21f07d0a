"""What a disk still holds after a loss of power: nothing but what was synced.

A file has the content that it had when it was last synced, a folder the names. POSIX promises no more.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType


class Disk:
    """Notes, while it is entered, what `os.fsync` brings to the disk.

    Args:
        root: a folder that has been on the disk before, and is all that is looked at.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {root.stat().st_ino: {}}
        self._kept_open: list[int] = []  # so that no other file gets the number of a deleted one
        self._fsync: Callable[[int], None] = os.fsync

    def __enter__(self) -> "Disk":
        os.fsync = self._note  # type: ignore[assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.fsync = self._fsync  # type: ignore[assignment]
        for handle in self._kept_open:
            os.close(handle)

    def _note(self, handle: int) -> None:
        handle = handle if isinstance(handle, int) else handle.fileno()
        self._fsync(handle)
        found = os.fstat(handle)
        self._kept_open.append(os.dup(handle))
        if stat.S_ISDIR(found.st_mode):
            names = {name: os.lstat(name, dir_fd=handle).st_ino for name in os.listdir(handle)}
            folders = {
                number
                for name, number in names.items()
                if stat.S_ISDIR(os.lstat(name, dir_fd=handle).st_mode) and number not in self._names
            }
            self._names.update({number: {} for number in folders})
            self._names[found.st_ino] = names
        else:
            self._contents[found.st_ino] = Path(f"/proc/self/fd/{handle}").read_bytes()

    def restore(self, target: Path) -> Path:
        """Write what the disk holds to another folder, and return it."""
        self._restore(self.root.stat().st_ino, target)
        return target

    def _restore(self, folder: int, target: Path) -> None:
        target.mkdir()
        for name, number in self._names[folder].items():
            if number in self._names:
                self._restore(number, target / name)
            else:
                (target / name).write_bytes(self._contents.get(number, b""))
