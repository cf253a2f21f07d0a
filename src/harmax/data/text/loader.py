"""Batches of windows in a seeded order that can go on from anywhere, on any number of ranks."""

# B windows of a rank's part, T tokens

from collections.abc import Mapping
from typing import Any

import numpy as np

from harmax.data.text.shards import TokenShards
from harmax.errors import whole_number

ROUNDS = 6


class TokenLoader:
    """An endless iterator of (inputs, targets), each int64 of shape (batch / world, length).

    Every epoch is a permutation of all windows that depends on seed and epoch alone, and the epochs follow one another
    without a gap. Global batch b is the same whatever the world: rank r has its r-th part.

    Args:
        shards: a split of a folder of token shards.
        batch: windows of a global batch, over all ranks.
        length: tokens of an input.
        seed: of the order.
        rank, world: this process and how many there are.
    """

    def __init__(self, shards: TokenShards, batch: int, length: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self.shards = shards
        self.batch = whole_number("batch", batch, least=1)
        self.length = whole_number("length", length, least=1)
        self.seed = whole_number("seed", seed, least=0)
        self.world = whole_number("world", world, least=1)
        self.rank = whole_number("rank", rank, least=0)
        if self.rank >= self.world:
            raise ValueError(f"`rank` must lie below `world` ({world}), got {rank}; ranks count from 0.")
        if self.batch % self.world:
            raise ValueError(f"`batch` must be a multiple of `world` ({world}), got {batch}; each rank has its part.")
        self.windows = shards.count_windows(self.length)
        if not self.windows:
            longest = max(shard.tokens for shard in shards.shards) - 1
            raise ValueError(
                f"`length` must be at most {longest}, the longest shard of {shards!r} less one token, got {length}; "
                "take shorter inputs or prepare more text."
            )
        self._position = 0

    def __repr__(self) -> str:
        return (
            f"TokenLoader({self.shards!r}, batch={self.batch}, length={self.length}, seed={self.seed}, "
            f"rank={self.rank}, world={self.world}, windows={self.windows})"
        )

    @property
    def epochs_seen(self) -> float:
        """How often each token has been seen so far."""
        return self._position / self.windows

    def __iter__(self) -> "TokenLoader":
        return self

    def __next__(self) -> tuple[np.ndarray, np.ndarray]:
        part = self.batch // self.world
        first = self._position + self.rank * part
        epoch_B, place_B = np.divmod(np.arange(first, first + part), self.windows)
        window_B = permute(place_B, epoch_B, count=self.windows, seed=self.seed)
        self._position += self.batch
        tokens_BT = self.shards.read_windows(window_B, self.length)
        return tokens_BT[:, :-1], tokens_BT[:, 1:]

    def state(self) -> dict[str, Any]:
        """Return where the order stands, as plain values; the same on every rank, and for any world and batch."""
        return {
            "windows_seen": self._position,
            "seed": self.seed,
            "length": self.length,
            "shards": self.shards.fingerprint,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`, at once wherever it is."""
        own = self.state()
        if set(state) != set(own):
            raise ValueError(f"`state` must have {', '.join(own)}, got {', '.join(map(str, state))}; pass `state()`.")
        for name in ("shards", "seed", "length"):
            if state[name] != own[name]:
                raise ValueError(
                    f"`state` must be of the same {name} as the loader ({own[name]}), got {state[name]}; open what it "
                    "was made with, or start anew."
                )
        self._position = whole_number("windows_seen", state["windows_seen"], least=0)


def permute(place: np.ndarray, epoch: np.ndarray, *, count: int, seed: int) -> np.ndarray:
    """Return where each place of an epoch's order leads: a permutation of 0..count - 1 for each seed and epoch.

    A Feistel network, which permutes the numbers of 2 k bits, repeated until the result lies below `count`. It needs no
    memory and no history; numpy's own permutations would, and may change with its version.

    >>> permute(np.arange(5), np.zeros(5, int), count=5, seed=1)
    array([4, 3, 2, 0, 1])
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    seeds = np.full(len(place), seed % 2**64, np.uint64)
    key = _mix(_mix(seeds) ^ epoch.astype(np.uint64))
    result = place.astype(np.uint64)
    outside = np.arange(len(result))
    while len(outside):
        left, right = result[outside] >> half, result[outside] & mask
        for turn in range(ROUNDS):
            scrambled = _mix(right ^ _mix(key[outside] + np.uint64(turn)))
            left, right = right, left ^ (scrambled & mask)
        result[outside] = (left << half) | right
        outside = outside[result[outside] >= count]
    return result.astype(np.int64)


def _mix(x: np.ndarray) -> np.ndarray:
    """Scramble 64 bits (the finalizer of SplitMix64)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
