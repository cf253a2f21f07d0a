"""Token shards of other projects, packed or plain: checked, unpacked, and described by a manifest."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from harmax.data.checksums import SUMS, read_sums, sha256_of
from harmax.data.text.manifest import TOKEN, Manifest, Shard, ShardWriter
from harmax.data.text.sources import OPENERS, UNREADABLE
from harmax.data.text.vocabulary import GPT2
from harmax.errors import DamagedError
from harmax.files import check_ordinary
from harmax.owner import FolderOwner

PACKED = re.compile(r"((train|val)[\w-]*\.bin)(\.gz|\.xz)?")
CHUNK_BYTES = 2**22


def unpack_corpus(
    source: Path | str, out: Path | str, *, progress: Callable[[int, int], None] | None = None
) -> Manifest:
    """Unpack a folder of GPT-2 token shards: train*.bin and val*.bin, plain (as nanoGPT writes them), .gz or .xz.

    Files that are listed in SHA256SUMS, in the folder or one folder up, are compared with it first. Finished shards
    are not unpacked again. `progress` is called with the number of documents and of tokens so far.
    """
    source, out = Path(source), Path(out)
    found = [(path, match) for path in sorted(source.glob("*")) if (match := PACKED.fullmatch(path.name))]
    names = [match[1] for _, match in found]
    if not names:
        raise ValueError(
            f"a folder of packed shards must hold train*.bin or val*.bin files (or .bin.gz, .bin.xz), got none in "
            f"{str(source)!r}; name the folder that has them."
        )
    if len(set(names)) < len(names):
        raise ValueError(
            f"each shard must be there once, got {', '.join(p.name for p, _ in found)}; keep one file per shard."
        )
    for path, _ in found:
        check_ordinary(path)
    sums = _sums_of(source)
    listing = {path.name: path.stat().st_size for path, _ in found}
    with FolderOwner(out):
        return _unpack_all(found, sums, Manifest(GPT2, {"source": {"packed": listing}}).resume(out), out, progress)


def _unpack_all(
    found: list[tuple[Path, re.Match[str]]],
    sums: dict[str, str],
    manifest: Manifest,
    out: Path,
    progress: Callable[[int, int], None] | None,
) -> Manifest:
    """Unpack what is missing of a manifest's shards."""
    manifest = replace(manifest, shards=tuple(shard for shard in manifest.shards if shard.is_whole(out)))
    finished = {shard.name for shard in manifest.shards}
    for path, match in found:
        if match[1] in finished:
            continue
        if path.name in sums and sums[path.name] != sha256_of(path):
            raise DamagedError(f"{path} must have the checksum in {SUMS}, got another; copy it again.")
        manifest = manifest.add(_unpack(path, out, match[1], match[2]))
        manifest.write(out)
        if progress is not None:
            progress(sum(s.documents for s in manifest.shards), sum(s.tokens for s in manifest.shards))
    manifest = replace(manifest, complete=True)
    manifest.write(out)
    return manifest


def _unpack(path: Path, out: Path, name: str, split: str) -> Shard:
    writer = ShardWriter(out, name)
    documents = 0
    try:
        for tokens in _chunks(path):
            if tokens.max() >= GPT2.size:
                raise DamagedError(
                    f"{path} must hold GPT-2 tokens, all below {GPT2.size}, got {tokens.max()}; check that it is a "
                    "token file of this vocabulary."
                )
            writer.add(tokens)
            documents += int((tokens == GPT2.separator).sum())
        if not writer.tokens:
            raise DamagedError(f"{path} must hold tokens, got an empty file; copy it again.")
        tokens_written, sha256 = writer.tokens, writer.finish()
    finally:
        writer.discard()
    return Shard(name, split, tokens_written, documents, sha256, source=path.name)


def _chunks(path: Path) -> Iterator[np.ndarray]:
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            while data := file.read(CHUNK_BYTES):
                if len(data) % TOKEN.itemsize:
                    raise DamagedError(
                        f"{path} must have 2 bytes per token, got an odd number of bytes; copy it again."
                    )
                yield np.frombuffer(data, TOKEN)
    except UNREADABLE as error:
        raise DamagedError(f"{path} must be a whole {path.suffix} file, got {error!r}; copy it again.") from error


def _sums_of(folder: Path) -> dict[str, str]:
    """Return the checksums of a folder's files, from its own list or from the list one folder up."""
    for place, prefix in ((folder, ""), (folder.resolve().parent, f"{folder.resolve().name}/")):
        if (place / SUMS).is_file():
            sums = read_sums(place / SUMS)
            return {name.removeprefix(prefix): sha256 for name, sha256 in sums.items() if name.startswith(prefix)}
    return {}
