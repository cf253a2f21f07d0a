"""From documents to token shards: in parallel, the same bytes for any number of workers, on from where it stopped."""

import hashlib
from collections.abc import Callable, Iterator
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
    """Write a source's documents as shards of little-endian uint16 tokens, each document followed by the separator.

    Shards end on a document's end. Which documents are held out is decided by a digest of their text, so that neither
    order nor workers matter and copies of a text stay on one side. After an interrupt the same call goes on behind the
    last finished shard: the documents before it are read again and compared, not encoded again.

    Args:
        out: the folder to make.
        source: `from_files`, `from_rows` or `from_dataset`.
        encoding: from `load_encoding`; GPT-2's if left out.
        shard_tokens: a shard is closed by the document that reaches this many.
        validation: share of the documents to hold out, from 0 to below 1.
        workers: processes that encode; one for each core if left out.
        progress: called with documents read and tokens written.
    """
    out = Path(out)
    shard_tokens = whole_number("shard_tokens", shard_tokens, least=1)
    workers = cores() if workers is None else whole_number("workers", workers, least=1)
    if not 0 <= validation < 1:
        raise ValueError(f"`validation` must lie in 0..1 and be less than 1, got {validation}; it is a share.")
    encoding = encoding or load_encoding()
    settings = {"source": source.description, "shard_tokens": shard_tokens, "validation": float(validation)}
    manifest = Manifest(describe(encoding), settings).resume(out)
    kept = {split: list(takewhile(lambda shard: shard.is_whole(out), manifest.of(split))) for split in SPLITS}
    if manifest.complete and sum(map(len, kept.values())) == len(manifest.shards):
        return manifest
    manifest = replace(manifest, shards=tuple(shard for split in SPLITS for shard in kept[split]), complete=False)
    growing = {split: _Growing(out, split, kept[split]) for split in SPLITS}
    documents = _unfinished(source, validation, kept)
    try:
        with closing(encode_in_order(encoding, documents, workers=workers)) as encoded:
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
    if not manifest.of("train"):
        raise ValueError(
            f"the source must leave a document to train on, got none with {validation:g} of them held out; add texts "
            "or lower the share."
        )
    manifest = replace(manifest, complete=True)
    manifest.write(out)
    return manifest


@dataclass(frozen=True)
class _Document:
    number: int
    """From 1 on, in the source."""
    split: str
    place: str
    text: str
    read: str
    """Digest of every document up to and with this one."""


def _unfinished(source: TextSource, validation: float, kept: dict[str, list[Shard]]) -> Iterator[_Document]:
    """Read everything, and yield what is in no shard yet."""
    last = {split: shards[-1] for split, shards in kept.items() if shards}
    position = {split: last[split].until if split in last else 0 for split in SPLITS}
    expected = {shard.until: shard.read for shard in last.values()}
    read = b""
    number = 0
    for place, text in source.documents:
        if not text:
            continue
        number += 1
        # surrogatepass: JSON may hold half a character, and tiktoken deals with it
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
        f"the source must be the one that the finished shards were made from, got {what}; take that one, or another "
        "folder."
    )


class _Growing:
    """The shard of a split that is being filled, and the numbers of those before it."""

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
