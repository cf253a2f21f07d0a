"""What a folder of token shards says about itself: shards.json.

<folder>/shards.json                 written atomically, again after every shard; `complete` once all are there
<folder>/train-00000.bin ...         little-endian uint16, every document followed by the separator
<folder>/val-00000.bin ...           documents held out
<folder>/.train-00000.bin.partial    a shard that is being written: never read
"""

import hashlib
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harmax.data.text.vocabulary import Vocabulary
from harmax.errors import DamagedError
from harmax.files import read_json, to_json, write_json

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
    """The first and the last place that its documents came from."""
    until: int = 0
    """How many documents of the source had been read when it was full: where to go on after an interrupt."""
    read: str = ""
    """Digest of those documents: whether it is still the same source."""

    def is_whole(self, folder: Path) -> bool:
        """Whether the file is there and as long as it should be."""
        path = folder / self.name
        return path.is_file() and path.stat().st_size == self.tokens * TOKEN.itemsize


@dataclass(frozen=True)
class Manifest:
    """The shards of a folder, their vocabulary, and the settings that made them."""

    vocabulary: Vocabulary
    settings: dict[str, Any]
    shards: tuple[Shard, ...] = ()
    complete: bool = False

    @property
    def key(self) -> str:
        """Digest of everything that decides the tokens."""
        fields = {"format": FORMAT, "vocabulary": asdict(self.vocabulary), "settings": self.settings}
        return hashlib.sha256(to_json(fields).encode()).hexdigest()[:12]

    def of(self, split: str) -> list[Shard]:
        """Return the shards of one split, in order."""
        return [shard for shard in self.shards if shard.split == split]

    def to_dict(self) -> dict[str, Any]:
        """Return what shards.json holds."""
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
        """Return a manifest with one shard more; their order does not depend on which was ready first."""
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
                "`harmax data text`, from packed or plain .bin files too (--packed)."
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
            raise DamagedError(f"{path} must be a list of token shards, got {error!r}; prepare them again.") from error

    def resume(self, folder: Path) -> "Manifest":
        """Return the folder's own manifest, where the same settings made it; else start one there."""
        if not (folder / MANIFEST).is_file():
            self.write(folder)
            return self
        found = Manifest.read(folder)
        if found.key != self.key:
            raise ValueError(
                f"the folder must be new, or made from the same source with the same settings, got {str(folder)!r}, "
                f"made with {to_json(found.settings)} and not {to_json(self.settings)}; name another folder, or "
                "delete this one."
            )
        return found


class ShardWriter:
    """A shard that grows beside its place and takes it when it is finished."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        # One fixed name: after a crash the next attempt writes over it, and nothing is left lying about.
        self._partial = folder / f".{name}.partial"
        self._file = self._partial.open("wb")
        self._hasher = hashlib.sha256()
        self.tokens = 0

    def add(self, tokens: np.ndarray) -> None:
        """Append tokens."""
        data = tokens.astype(TOKEN, copy=False).tobytes()
        self._file.write(data)
        self._hasher.update(data)
        self.tokens += len(tokens)

    def finish(self) -> str:
        """Put the file in its place and return its sha256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self._path)
        return self._hasher.hexdigest()

    def discard(self) -> None:
        """Forget what was written; harmless after `finish`."""
        self._file.close()
        self._partial.unlink(missing_ok=True)
