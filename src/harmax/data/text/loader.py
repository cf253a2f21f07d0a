"""Batches of windows in a seeded order that can be resumed at any point, on any number of ranks."""

# B windows per rank and batch, T tokens

from collections.abc import Mapping
from typing import Any

import numpy as np

from harmax.data.text.shards import TokenShards
from harmax.errors import whole_number

ROUNDS = 6


class TokenLoader:
    """An endless iterator of (inputs, targets), each int64 of shape (batch / world, length).

    Every epoch is a permutation of all windows that depends only on seed and epoch. Epochs follow one another without
    a gap. A global batch does not depend on the number of ranks: rank r gets its r-th part.

    Args:
        shards: one split of a folder of token shards.
        batch: windows per global batch, over all ranks.
        length: tokens per input.
        seed: seed of the order.
        rank, world: the number of this process, and the number of processes.
    """

    def __init__(self, shards: TokenShards, batch: int, length: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self.shards = shards
        self.batch = whole_number("batch", batch, least=1)
        self.length = whole_number("length", length, least=1)
        self.seed = whole_number("seed", seed, least=0)
        self.world = whole_number("world", world, least=1)
        self.rank = whole_number("rank", rank, least=0)
        if self.rank >= self.world:
            raise ValueError(f"`rank` must be below `world` ({world}), got {rank}; ranks count from 0.")
        if self.batch % self.world:
            raise ValueError(
                f"`batch` must be a multiple of `world` ({world}), got {batch}; every rank takes an equal part."
            )
        self.windows = shards.count_windows(self.length)
        if not self.windows:
            longest = max(shard.tokens for shard in shards.shards) - 1
            raise ValueError(
                f"`length` must be at most {longest}, one token less than the longest shard of {shards!r}, got "
                f"{length}; use shorter inputs or prepare more text."
            )
        self._position = 0

    def __repr__(self) -> str:
        return (
            f"TokenLoader({self.shards!r}, batch={self.batch}, length={self.length}, seed={self.seed}, "
            f"rank={self.rank}, world={self.world}, windows={self.windows})"
        )

    @property
    def epochs_seen(self) -> float:
        """Number of epochs so far, as a fraction."""
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
        """Return the position in the order as plain values. It is the same on every rank, for any world and batch."""
        return {
            "windows_seen": self._position,
            "seed": self.seed,
            "length": self.length,
            "shards": self.shards.fingerprint,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`. This takes no time, however far it is."""
        own = self.state()
        if set(state) != set(own):
            raise ValueError(
                f"`state` must have the keys {', '.join(own)}, got {', '.join(map(str, state))}; pass a result of "
                "state()."
            )
        for name in ("shards", "seed", "length"):
            if state[name] != own[name]:
                raise ValueError(
                    f"`state` must have the same {name} as the loader ({own[name]}), got {state[name]}; build the "
                    "loader as before, or start from the beginning."
                )
        self._position = whole_number("windows_seen", state["windows_seen"], least=0)


def permute(place: np.ndarray, epoch: np.ndarray, *, count: int, seed: int) -> np.ndarray:
    """Return the window at each place of an epoch's order: a permutation of 0 .. count - 1 per seed and epoch.

    A Feistel network permutes the numbers of 2 k bits. It is repeated until the result is below `count`. Unlike the
    permutations of numpy, it needs no memory and no history, and does not change with a version.

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
