"""From documents to token shards, in parallel. The bytes do not depend on the number of workers or on interruptions."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harmax.data.text.manifest import SPLITS, Manifest, Shard, ShardWriter
from harmax.data.text.processes import encode_in_order
from harmax.data.text.sources import TextSource
from harmax.data.text.vocabulary import describe, load_encoding
from harmax.environment import cores
from harmax.errors import whole_number
from harmax.owner import FolderOwner

if TYPE_CHECKING:
    from tiktoken import Encoding


def prepare_text(
    out: Path | str,
    source: TextSource,
    *,
    encoding: "Encoding | None" = None,
    shard_tokens: int = 100_000_000,
    validation: float = 0.01,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Write documents as shards of little-endian uint16 tokens, with the separator after each document.

    A shard ends at the end of a document. A digest of its text decides whether a document is held out. So the choice
    does not depend on order or workers, and copies of a text are in the same split. After an interruption the same
    call continues after the last finished shard: earlier documents are read and compared, but not encoded again.

    Args:
        out: the folder to make.
        source: the result of `from_files`, `from_rows` or `from_dataset`.
        encoding: the result of `load_encoding`; None means GPT-2's.
        shard_tokens: a shard is closed after the document that reaches this number of tokens.
        validation: share of the documents to hold out, at least 0 and below 1.
        workers: number of processes that encode; None means one per core.
        progress: called with the number of documents read and of tokens written.
    """
    out = Path(out)
    shard_tokens = whole_number("shard_tokens", shard_tokens, least=1)
    workers = cores() if workers is None else whole_number("workers", workers, least=1)
    if not 0 <= validation < 1:
        raise ValueError(
            f"`validation` must be at least 0 and below 1, got {validation}; it is a share of the documents."
        )
    encoding = encoding or load_encoding()
    settings = {"source": source.description, "shard_tokens": shard_tokens, "validation": float(validation)}
    with FolderOwner(out):
        return _prepare(out, Manifest(describe(encoding), settings), source, encoding, validation, workers, progress)


def _prepare(
    out: Path,
    wanted: Manifest,
    source: TextSource,
    encoding: "Encoding",
    validation: float,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> Manifest:
    """Make what is missing of the wanted shards."""
    manifest = wanted.resume(out)
    kept = {split: list(takewhile(lambda shard: shard.is_whole(out), manifest.of(split))) for split in SPLITS}
    if manifest.complete and sum(map(len, kept.values())) == len(manifest.shards):
        return manifest
    manifest = replace(manifest, shards=tuple(shard for split in SPLITS for shard in kept[split]), complete=False)
    documents = _unfinished(source, validation, kept)
    with closing(encode_in_order(encoding, documents, workers=workers)) as encoded:
        manifest = _write(out, manifest, encoded, manifest.settings["shard_tokens"], progress)
    if not manifest.of("train"):
        raise ValueError(
            f"the source must leave a document to train on, got none with a share of {validation:g} held out; add "
            "texts or lower the share."
        )
    manifest = replace(manifest, complete=True)
    manifest.write(out)
    return manifest


def _write(
    out: Path,
    manifest: Manifest,
    encoded: Iterable[tuple["_Document", np.ndarray]],
    shard_tokens: int,
    progress: Callable[[int, int], None] | None,
) -> Manifest:
    """Add documents to the shards of a manifest, and return the manifest with the new shards."""
    growing = {split: _Growing(out, split, manifest.of(split)) for split in SPLITS}
    try:
        written = sum(shard.tokens for shard in manifest.shards)
        for document, tokens in encoded:
            split = growing[document.split]
            split.add(document, tokens)
            written += len(tokens)
            if split.tokens >= shard_tokens:
                manifest = manifest.add(split.finish())
                manifest.write(out)
            if progress is not None:
                progress(document.number, written)
        for split in growing.values():
            if split.tokens:
                manifest = manifest.add(split.finish())
    finally:
        for split in growing.values():
            split.discard()
    return manifest


@dataclass(frozen=True)
class _Document:
    number: int
    """Position in the source, counted from 1."""
    split: str
    place: str
    text: str
    read: str
    """Digest of all documents up to and including this one."""


def _unfinished(source: TextSource, validation: float, kept: dict[str, list[Shard]]) -> Iterator[_Document]:
    """Read all documents, and yield those that are in no shard yet."""
    last = {split: shards[-1] for split, shards in kept.items() if shards}
    position = {split: last[split].until if split in last else 0 for split in SPLITS}
    expected = {shard.until: shard.read for shard in last.values()}
    read = b""
    number = 0
    for place, text in source.documents:
        if not text:
            continue
        number += 1
        # surrogatepass: JSON may contain half a character, which tiktoken accepts
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        read = hashlib.sha256(read + digest).digest()
        if expected.pop(number, read.hex()) != read.hex():
            raise ValueError(_changed(f"another text before document {number + 1}"))
        held_out = int.from_bytes(digest[:8], "little") < validation * 2**64
        split = SPLITS[held_out]
        if number > position[split]:
            yield _Document(number, split, place, text, read.hex())
    if expected:
        raise ValueError(_changed(f"only {number} documents"))


def _changed(what: str) -> str:
    return (
        f"the source must be the one that the finished shards were made from, got {what}; use that source, or name "
        "another folder."
    )


class _Growing:
    """The shard of a split that is being filled."""

    def __init__(self, folder: Path, split: str, finished: list[Shard]) -> None:
        self._folder, self._split, self._number = folder, split, len(finished)
        self._writer: ShardWriter | None = None
        self._documents = 0

    @property
    def tokens(self) -> int:
        return 0 if self._writer is None else self._writer.tokens

    def add(self, document: _Document, tokens: np.ndarray) -> None:
        if self._writer is None:
            self._name = f"{self._split}-{self._number:05d}.bin"
            self._writer = ShardWriter(self._folder, self._name)
            self._first, self._documents = document, 0
        self._writer.add(tokens)
        self._last = document
        self._documents += 1

    def finish(self) -> Shard:
        assert self._writer is not None
        tokens, sha256 = self._writer.tokens, self._writer.finish()
        self._writer = None
        self._number += 1
        places = dict.fromkeys((self._first.place, self._last.place))
        return Shard(
            name=self._name,
            split=self._split,
            tokens=tokens,
            documents=self._documents,
            sha256=sha256,
            source=" to ".join(places),
            until=self._last.number,
            read=self._last.read,
        )

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()
