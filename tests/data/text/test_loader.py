"""Windows in a seeded order: each once per epoch, the same on any number of ranks and after a restart."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harmax.data.text import TokenLoader, TokenShards, unpack_corpus
from harmax.data.text.loader import permute
from token_shards import write_shards

LENGTH = 8


def take(loader: TokenLoader, steps: int) -> list[np.ndarray]:
    return [next(loader)[0] for _ in range(steps)]


def test_every_window_comes_once_an_epoch_in_another_order(shards: TokenShards) -> None:
    loader = TokenLoader(shards, 2, LENGTH, seed=3)
    epochs = [np.concatenate(take(loader, 31))[:, 0] for _ in range(3)]
    everything = shards.read_windows(np.arange(62), LENGTH)[:, 0]
    for epoch in epochs:
        assert sorted(epoch) == sorted(everything)
        assert not np.array_equal(epoch, everything)
    assert not np.array_equal(epochs[0], epochs[1])
    assert loader.epochs_seen == 3


def test_batches_go_on_over_the_end_of_an_epoch(shards: TokenShards) -> None:
    loader = TokenLoader(shards, 5, LENGTH, seed=3)
    first = np.concatenate(take(loader, 62))[:, 0]
    assert all(count == 5 for count in np.unique(first, return_counts=True)[1])


@pytest.mark.parametrize("world", [2, 4])
def test_the_global_batches_are_the_same_for_any_world(shards: TokenShards, world: int) -> None:
    alone = take(TokenLoader(shards, 8, LENGTH, seed=1), 20)
    ranks = [take(TokenLoader(shards, 8, LENGTH, seed=1, rank=rank, world=world), 20) for rank in range(world)]
    for step, batch in enumerate(alone):
        assert np.array_equal(np.concatenate([rank[step] for rank in ranks]), batch)


@pytest.mark.parametrize("steps", [1, 6, 23])
def test_going_on_from_a_state_equals_no_interrupt(shards: TokenShards, folder: Path, steps: int) -> None:
    whole = take(TokenLoader(shards, 8, LENGTH, seed=1), steps + 12)
    loader = TokenLoader(shards, 8, LENGTH, seed=1)
    take(loader, steps)
    state = json.loads(json.dumps(loader.state()))
    halves = []
    for rank in range(2):
        later = TokenLoader(TokenShards(folder), 8, LENGTH, seed=1, rank=rank, world=2)
        later.load(state)
        assert later.epochs_seen == 8 * steps / 62
        halves.append(take(later, 12))
    for step in range(12):
        assert np.array_equal(np.concatenate([half[step] for half in halves]), whole[steps + step])


def test_far_away_is_as_near_as_the_next_step(shards: TokenShards) -> None:
    loader = TokenLoader(shards, 2, LENGTH, seed=1)
    loader.load({**loader.state(), "windows_seen": 62 * 10**12})
    epoch = np.concatenate(take(loader, 31))[:, 0]
    assert len(set(epoch.tolist())) == 62
    assert loader.epochs_seen == 10**12 + 1


def test_seeds_differ(shards: TokenShards) -> None:
    orders = [np.concatenate(take(TokenLoader(shards, 2, LENGTH, seed), 31))[:, 0].tolist() for seed in range(6)]
    assert len(set(map(tuple, orders))) == 6


@given(count=st.integers(1, 600), seed=st.integers(0, 2**70), epoch=st.integers(0, 2**40))
def test_an_epoch_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    order = permute(np.arange(count), np.full(count, epoch), count=count, seed=seed)
    assert sorted(order) == list(range(count))


def test_orders_look_random() -> None:
    count = 50_000
    places = np.arange(count)
    first, second = (permute(places, np.full(count, epoch), count=count, seed=7) for epoch in (0, 1))
    # A random permutation's correlations have a standard deviation of 0.0045.
    for one, other in ((first, places), (second, places), (first, second), (first[1:], first[:-1])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.02
    firsts = [int(permute(np.array([0]), np.array([epoch]), count=10, seed=7)[0]) for epoch in range(2000)]
    counts = np.bincount(firsts, minlength=10)
    assert ((counts > 140) & (counts < 260)).all(), "each window is as likely to come first"


def test_a_state_of_other_shards_is_refused(shards: TokenShards, tmp_path: Path) -> None:
    loader = TokenLoader(shards, 4, LENGTH, seed=1)
    state = loader.state()
    other = write_shards(tmp_path / "other", train_0=np.arange(331), train_1=np.arange(1001, 1171))
    unpack_corpus(other, other)
    with pytest.raises(ValueError, match="`state` must have the same shards"):
        TokenLoader(TokenShards(other), 4, LENGTH, seed=1).load(state)
    with pytest.raises(ValueError, match=r"`state` must have the same seed as the loader \(2\), got 1"):
        TokenLoader(shards, 4, LENGTH, seed=2).load(state)
    with pytest.raises(ValueError, match="`state` must have the same length"):
        TokenLoader(shards, 4, 7, seed=1).load(state)
    with pytest.raises(ValueError, match="`state` must have the keys windows_seen, seed, length, shards, got step"):
        loader.load({"step": 3})
    TokenLoader(shards, 2, LENGTH, seed=1).load(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "`batch` must be a whole number .*got 0"),
        ({"batch": 6, "world": 4}, r"`batch` must be a multiple of `world` \(4\), got 6"),
        ({"rank": 2, "world": 2}, r"`rank` must be below `world` \(2\), got 2"),
        ({"length": 331}, "`length` must be at most 330"),
        ({"seed": -1}, "`seed` must be a whole number .*got -1"),
    ],
)
def test_bad_loaders(shards: TokenShards, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenLoader(shards, **{"batch": 4, "length": LENGTH, "seed": 0, **arguments})
