"""Token shards as one long, memory-mapped sequence that is read in windows."""

# B windows, T tokens per input (a window has T + 1 tokens, because input and target overlap)

import hashlib
from pathlib import Path

import numpy as np

from harmax.data.text.manifest import SPLITS, TOKEN, Manifest, Shard
from harmax.errors import DamagedError, unknown, whole_number

SAMPLES, SAMPLE_TOKENS = 64, 1024  # of every shard, when it is opened
CHUNK_TOKENS = 2**22


class TokenShards:
    """One split of a folder made by `harmax data text`.

    Opening compares sizes with shards.json and checks a sample of the tokens. `verify` reads all tokens.

    Attributes:
        vocabulary: the `Vocabulary`. A model needs at least `vocabulary.size` classes.
        tokens: number of tokens in all shards.
        fingerprint: digest of the shards' checksums. Equal fingerprints mean equal tokens.
    """

    def __init__(self, folder: Path | str, split: str = "train") -> None:
        if split not in SPLITS:
            raise ValueError(unknown("split", split, SPLITS))
        self.folder, self.split = Path(folder), split
        manifest = Manifest.read(self.folder)
        if not manifest.complete:
            raise ValueError(
                f"a folder of token shards must be finished, but the preparation of {str(self.folder)!r} was "
                "interrupted; run the same `harmax data text` again to continue it."
            )
        listed = {shard.name for shard in manifest.shards}
        for path in sorted(self.folder.glob("*.bin")):
            if path.name not in listed:
                raise DamagedError(f"{path} must be listed in shards.json, but it is not; move the file away.")
        self.vocabulary = manifest.vocabulary
        self.shards = manifest.of(split)
        if not self.shards:
            raise ValueError(
                f"{str(self.folder)!r} must have a {split} shard, got none; prepare it again with a larger "
                "`--validation` or more documents."
            )
        self._arrays = [self._open(shard) for shard in self.shards]
        self.tokens = sum(shard.tokens for shard in self.shards)
        words = [f"{shard.tokens} {shard.sha256}" for shard in self.shards]
        self.fingerprint = hashlib.sha256(" ".join((self.vocabulary.sha256, *words)).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"TokenShards({str(self.folder)!r}, {self.split!r}, shards={len(self.shards)}, tokens={self.tokens})"

    def count_windows(self, length: int) -> int:
        """Return the number of windows with `length` inputs. No window spans two shards.

        Neighboring windows share one token: the last target of one is the first input of the next. So every token is
        predicted once.
        """
        return int(self._last_windows(whole_number("length", length, least=1))[-1])

    def read_windows(self, windows: np.ndarray, length: int) -> np.ndarray:
        """Return windows by their numbers over all shards, as int64 of shape (B, T + 1)."""
        last = self._last_windows(length)
        tokens_BT = np.empty((len(windows), length + 1), np.int64)
        places = np.searchsorted(last, windows, side="right")
        for row, (window, place) in enumerate(zip(windows.tolist(), places.tolist(), strict=True)):
            start = (window - (int(last[place - 1]) if place else 0)) * length
            tokens_BT[row] = self._arrays[place][start : start + length + 1]
        # On a GPU, a token outside the vocabulary would give an unreadable error.
        if len(windows) and tokens_BT.max() >= self.vocabulary.size:
            row = int(tokens_BT.max(1).argmax())
            self._check_tokens(self.shards[places[row]], tokens_BT[row])
        return tokens_BT

    def verify(self) -> None:
        """Read every shard and compare it with its checksum and with the vocabulary."""
        for shard, array in zip(self.shards, self._arrays, strict=True):
            hasher = hashlib.sha256()
            for start in range(0, len(array), CHUNK_TOKENS):
                chunk = array[start : start + CHUNK_TOKENS]
                self._check_tokens(shard, chunk)
                hasher.update(chunk.tobytes())
            if hasher.hexdigest() != shard.sha256:
                raise DamagedError(
                    f"{self.folder / shard.name} must have the sha256 in shards.json, got another; prepare or copy it "
                    "again."
                )

    def _open(self, shard: Shard) -> np.ndarray:
        path = self.folder / shard.name
        if not path.is_file():
            raise DamagedError(f"{path} is listed in shards.json but missing; copy it again.")
        size = path.stat().st_size
        if size != shard.tokens * TOKEN.itemsize:
            kind = "an odd number of bytes" if size % TOKEN.itemsize else f"{size // TOKEN.itemsize} tokens"
            raise DamagedError(
                f"{path} must hold {shard.tokens} tokens of 2 bytes, got {kind}; copy it again, or delete it and "
                "prepare it again."
            )
        array = np.memmap(path, TOKEN, mode="r")
        for start in np.unique(np.linspace(0, max(0, len(array) - SAMPLE_TOKENS), SAMPLES).astype(np.int64)):
            self._check_tokens(shard, array[start : start + SAMPLE_TOKENS])
        return array

    def _check_tokens(self, shard: Shard, tokens: np.ndarray) -> None:
        if tokens.max() >= self.vocabulary.size:
            raise DamagedError(
                f"{self.folder / shard.name} must hold tokens below {self.vocabulary.size}, the size of its vocabulary "
                f"({self.vocabulary.name}), got {tokens.max()}; the file is damaged, so prepare it again."
            )

    def _last_windows(self, length: int) -> np.ndarray:
        return np.cumsum([(shard.tokens - 1) // length for shard in self.shards])
