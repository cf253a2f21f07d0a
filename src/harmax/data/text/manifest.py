"""The description of a folder of token shards, shards.json.

<folder>/shards.json                 written atomically after every shard; `complete` when all shards are there
<folder>/train-00000.bin ...         little-endian uint16, every document followed by the separator
<folder>/val-00000.bin ...           held-out documents
<folder>/.train-00000.bin.partial    a shard that is being written; it is never read
"""

import hashlib
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harmax.data.text.vocabulary import Vocabulary
from harmax.errors import DamagedError
from harmax.files import naming, read_json, to_json, write_json

MANIFEST = "shards.json"
FORMAT = 1
SPLITS = ("train", "val")
TOKEN = np.dtype("<u2")


@dataclass(frozen=True)
class Shard:
    """One file of tokens."""

    name: str
    split: str
    """train or val."""
    tokens: int
    documents: int
    sha256: str
    source: str
    """Names of the first and the last file or dataset that its documents came from."""
    until: int = 0
    """Number of source documents read when the shard was full. After an interruption, work continues there."""
    read: str = ""
    """Digest of those documents, to recognize a changed source."""

    def is_whole(self, folder: Path) -> bool:
        """Return whether the file is there with the right length."""
        path = folder / self.name
        return path.is_file() and path.stat().st_size == self.tokens * TOKEN.itemsize


@dataclass(frozen=True)
class Manifest:
    """The shards of a folder, their vocabulary, and the settings that they were made with."""

    vocabulary: Vocabulary
    settings: dict[str, Any]
    shards: tuple[Shard, ...] = ()
    complete: bool = False

    @property
    def key(self) -> str:
        """Digest of everything that the tokens depend on."""
        fields = {"format": FORMAT, "vocabulary": asdict(self.vocabulary), "settings": self.settings}
        return hashlib.sha256(to_json(fields).encode()).hexdigest()[:12]

    def of(self, split: str) -> list[Shard]:
        """Return the shards of one split, in order."""
        return [shard for shard in self.shards if shard.split == split]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of shards.json."""
        return {
            "format": FORMAT,
            "complete": self.complete,
            "key": self.key,
            "vocabulary": asdict(self.vocabulary),
            "settings": self.settings,
            "shards": [asdict(shard) for shard in self.shards],
        }

    def write(self, folder: Path) -> None:
        """Write shards.json."""
        write_json(folder / MANIFEST, self.to_dict())

    def add(self, shard: Shard) -> "Manifest":
        """Return a manifest with one more shard. The order does not depend on which shard was ready first."""
        order = {split: place for place, split in enumerate(SPLITS)}
        shards = sorted((*self.shards, shard), key=lambda shard: (order[shard.split], shard.name))
        return replace(self, shards=tuple(shards))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read shards.json."""
        path = folder / MANIFEST
        if not path.is_file():
            raise ValueError(
                f"a folder of token shards must hold {MANIFEST}, got {str(folder)!r} without it; make one with "
                "`harmax data text` (for existing .bin files with --packed)."
            )
        fields = read_json(path)
        try:
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']} instead of {FORMAT}")
            shards = tuple(Shard(**shard) for shard in fields["shards"])
            unknown = {shard.split for shard in shards}.difference(SPLITS)
            if unknown:
                raise ValueError(f"splits {sorted(unknown)}")
            return cls(Vocabulary(**fields["vocabulary"]), fields["settings"], shards, fields["complete"])
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"{path} must describe token shards, got {error!r}; prepare them again.") from error

    def resume(self, folder: Path) -> "Manifest":
        """Return the manifest of a folder, which must have the same settings; write this one to a new folder."""
        if not (folder / MANIFEST).is_file():
            self.write(folder)
            return self
        found = Manifest.read(folder)
        if found.key != self.key:
            raise ValueError(
                f"the folder must be new, or made from the same source with the same settings, got {str(folder)!r}, "
                f"made with {to_json(found.settings)} instead of {to_json(self.settings)}; name another folder, or "
                "delete this one."
            )
        return found


class ShardWriter:
    """Writes a shard to a temporary file, and moves it to its name when it is finished."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        # The name is fixed, so that the next attempt after a crash overwrites the file.
        self._partial = folder / f".{name}.partial"
        self._file = self._partial.open("wb")
        self._hasher = hashlib.sha256()
        self.tokens = 0

    def add(self, tokens: np.ndarray) -> None:
        """Append tokens."""
        data = tokens.astype(TOKEN, copy=False).tobytes()
        with naming(self._partial):
            self._file.write(data)
        self._hasher.update(data)
        self.tokens += len(tokens)

    def finish(self) -> str:
        """Move the file to its name and return its sha256."""
        with naming(self._partial):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._partial, self._path)
        return self._hasher.hexdigest()

    def discard(self) -> None:
        """Remove the unfinished file; after `finish` this does nothing."""
        try:
            self._file.close()
        except OSError:  # the buffer does not fit on a full disk either, and the first error says so already
            pass
        finally:
            self._partial.unlink(missing_ok=True)
