"""Windows of token shards: every one once an epoch, the same order on any number of ranks and after a restart."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harmax.data.text import TokenLoader, TokenShards, unpack_corpus
from harmax.data.text.loader import permute
from harmax.errors import DamagedError
from token_shards import write_shards

LENGTH = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # Every token is another one, so that a window says where it comes from.
    write_shards(tmp_path, train_0=np.arange(331), train_1=np.arange(1000, 1170), val=np.arange(7))
    unpack_corpus(tmp_path, tmp_path)
    return tmp_path


@pytest.fixture
def shards(folder: Path) -> TokenShards:
    return TokenShards(folder, "train")


def take(loader: TokenLoader, steps: int) -> list[np.ndarray]:
    return [next(loader)[0] for _ in range(steps)]


def test_windows_are_those_of_the_files_and_targets_come_one_later(shards: TokenShards) -> None:
    assert shards.tokens == 501
    assert shards.count_windows(LENGTH) == 41 + 21
    windows = shards.read_windows(np.array([0, 1, 40, 41, 61]), LENGTH)
    assert windows[:, 0].tolist() == [0, 8, 320, 1000, 1160]
    assert (np.diff(windows) == 1).all()
    inputs, targets = next(TokenLoader(shards, 6, LENGTH, seed=0))
    assert inputs.shape == targets.shape == (6, LENGTH)
    assert inputs.dtype == targets.dtype == np.int64
    assert np.array_equal(targets, inputs + 1)


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
    with pytest.raises(ValueError, match="`state` must be of the same shards as the loader"):
        TokenLoader(TokenShards(other), 4, LENGTH, seed=1).load(state)
    with pytest.raises(ValueError, match=r"of the same seed as the loader \(2\), got 1"):
        TokenLoader(shards, 4, LENGTH, seed=2).load(state)
    with pytest.raises(ValueError, match="of the same length"):
        TokenLoader(shards, 4, 7, seed=1).load(state)
    with pytest.raises(ValueError, match="`state` must have windows_seen, seed, length, shards, got step"):
        loader.load({"step": 3})
    TokenLoader(shards, 2, LENGTH, seed=1).load(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "`batch` must be a whole number from 1 on"),
        ({"batch": 6, "world": 4}, r"`batch` must be a multiple of `world` \(4\), got 6"),
        ({"rank": 2, "world": 2}, r"`rank` must lie below `world` \(2\), got 2"),
        ({"length": 331}, "`length` must be at most 330"),
        ({"seed": -1}, "`seed` must be a whole number from 0 on"),
    ],
)
def test_bad_loaders(shards: TokenShards, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenLoader(shards, **{"batch": 4, "length": LENGTH, "seed": 0, **arguments})


def test_damaged_and_foreign_shards_are_named(folder: Path) -> None:
    path = folder / "train-1.bin"
    whole = path.read_bytes()
    for data, message in (
        (whole[:-1], r"train-1.bin must hold 170 tokens of 2 bytes, got an odd number of bytes"),
        (whole[:-20], r"train-1.bin must hold 170 tokens of 2 bytes, got 160 tokens: a truncated or foreign file"),
        (b"\xff" * len(whole), r"train-1.bin must hold tokens below 50257.*\(gpt2\), got 65535"),
    ):
        path.write_bytes(data)
        with pytest.raises(DamagedError, match=message):
            TokenShards(folder)
    path.write_bytes(whole[2:] + whole[:2])
    shards = TokenShards(folder)
    with pytest.raises(DamagedError, match=r"train-1.bin must have the sha256 that shards.json lists"):
        shards.verify()
    path.unlink()
    with pytest.raises(DamagedError, match=r"train-1.bin must be there"):
        TokenShards(folder)
    path.write_bytes(whole)
    TokenShards(folder).verify()
    (folder / "extra.bin").write_bytes(whole)
    with pytest.raises(DamagedError, match=r"extra.bin must be listed in shards.json, got a foreign file"):
        TokenShards(folder)


def test_a_token_that_the_sample_missed_never_reaches_a_model(tmp_path: Path) -> None:
    write_shards(tmp_path, train=np.zeros(400_000))
    unpack_corpus(tmp_path, tmp_path)
    tokens = np.memmap(tmp_path / "train.bin", "<u2", mode="r+")
    tokens[3001] = 60_000  # between two places that opening looks at
    tokens.flush()
    shards = TokenShards(tmp_path)
    assert shards.read_windows(np.array([0]), 1000).max() == 0
    for touch in (lambda: shards.read_windows(np.array([0, 3]), 1000), shards.verify):
        with pytest.raises(DamagedError, match=r"train.bin must hold tokens below 50257.*got 60000"):
            touch()


def test_a_folder_without_shards(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"must hold shards.json, got .*harmax data text"):
        TokenShards(tmp_path / "nothing")
    with pytest.raises(ValueError, match="did you mean 'train'"):
        TokenShards(folder, "trian")
    (folder / "shards.json").write_text('{"format": 9}')
    with pytest.raises(DamagedError, match=r"shards.json must be a list of token shards, got .*format 9 instead of 1"):
        TokenShards(folder)
    (folder / "shards.json").write_text("{")
    with pytest.raises(DamagedError, match=r"shards.json cannot be read"):
        TokenShards(folder)


def test_a_split_that_is_not_there(tmp_path: Path) -> None:
    write_shards(tmp_path, train=np.arange(9))
    unpack_corpus(tmp_path, tmp_path)
    with pytest.raises(ValueError, match=r"must have a val shard, got none; .*--validation"):
        TokenShards(tmp_path, "val")
