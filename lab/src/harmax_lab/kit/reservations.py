"""Which process computes which cells of a run, so that processes that share a run never compute the same one.

    <run folder>/.shared/
        turn                    a lock: one process at a time looks and writes
        cells.json              which process has reserved which cells
        <process>/.lock         held while the process lives, so a kill ends its reservations

A file system without locks gives no protection.
"""

import os
import shutil
import uuid
from collections.abc import Collection
from pathlib import Path

from harmax.errors import DamagedError
from harmax.files import read_json, write_json
from harmax.owner import FolderOwner, holder, taking_turns


class Reservations:
    """The reservations of one process in one run folder. Use it as a context manager, which gives all of them back.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run, Reservations(Path(run)) as ours, Reservations(Path(run)) as others:
    ...     print(ours.take(["a", "b"]), others.take(["b", "c"]), others.held_by_others(["a", "c"]).keys())
    ['a', 'b'] ['c'] dict_keys(['a'])
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / ".shared"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        with taking_turns(self._folder / "turn"):
            self._alive = FolderOwner(self._folder / self._name)

    def __enter__(self) -> "Reservations":
        return self

    def __exit__(self, *error: object) -> None:
        with taking_turns(self._folder / "turn"):
            left = {cell: name for cell, name in self._living().items() if name != self._name}
            write_json(self._folder / "cells.json", left)
            self._alive.release()

    def take(self, cells: Collection[str]) -> list[str]:
        """Reserve those of some cells that no other process has reserved, and return them."""
        with taking_turns(self._folder / "turn"):
            reserved = self._living()
            free = [cell for cell in cells if reserved.get(cell, self._name) == self._name]
            write_json(self._folder / "cells.json", reserved | dict.fromkeys(free, self._name))
        return free

    def held_by_others(self, cells: Collection[str]) -> dict[str, str]:
        """Return which of some cells other processes have reserved, and which process."""
        with taking_turns(self._folder / "turn"):
            reserved = self._living()
            names = {name: holder(self._folder / name) or "" for name in {*reserved.values()} - {self._name}}
        return {cell: names[reserved[cell]] for cell in cells if reserved.get(cell, self._name) != self._name}

    def _living(self) -> dict[str, str]:
        """Return the reservations of processes that live, and forget those of the others."""
        reserved = self._read()
        folders = [path.name for path in self._folder.iterdir() if path.is_dir()]
        dead = {name for name in {*folders, *reserved.values()} if holder(self._folder / name) is None}
        for name in dead:
            shutil.rmtree(self._folder / name, ignore_errors=True)
        return {cell: name for cell, name in reserved.items() if name not in dead}

    def _read(self) -> dict[str, str]:
        path = self._folder / "cells.json"
        try:
            found = read_json(path) if path.exists() else {}
        except DamagedError as error:
            raise DamagedError(f"{error}; delete it once no other process uses this run.") from None
        return {str(cell): str(name) for cell, name in found.items()}
