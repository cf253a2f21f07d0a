"""Token shards: windows of the files, and errors that name the damaged file."""

from pathlib import Path

import numpy as np
import pytest

from harmax.data.text import TokenLoader, TokenShards, unpack_corpus
from harmax.errors import DamagedError
from token_shards import write_shards

LENGTH = 8


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


def test_damaged_and_foreign_shards_are_named(folder: Path) -> None:
    path = folder / "train-1.bin"
    whole = path.read_bytes()
    for data, message in (
        (whole[:-1], r"train-1.bin must hold 170 tokens of 2 bytes, got an odd number of bytes"),
        (whole[:-20], r"train-1.bin must hold 170 tokens of 2 bytes, got 160 tokens"),
        (b"\xff" * len(whole), r"train-1.bin must hold tokens below 50257.*\(gpt2\), got 65535"),
    ):
        path.write_bytes(data)
        with pytest.raises(DamagedError, match=message):
            TokenShards(folder)
    path.write_bytes(whole[2:] + whole[:2])
    shards = TokenShards(folder)
    with pytest.raises(DamagedError, match=r"train-1.bin must have the sha256 in shards.json"):
        shards.verify()
    path.unlink()
    with pytest.raises(DamagedError, match=r"train-1.bin is listed in shards.json but missing"):
        TokenShards(folder)
    path.write_bytes(whole)
    TokenShards(folder).verify()
    (folder / "extra.bin").write_bytes(whole)
    with pytest.raises(DamagedError, match=r"extra.bin must be listed in shards.json"):
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
    with pytest.raises(DamagedError, match=r"shards.json must describe token shards, got .*format 9 instead of 1"):
        TokenShards(folder)
    (folder / "shards.json").write_text("{")
    with pytest.raises(DamagedError, match=r"shards.json cannot be read"):
        TokenShards(folder)


def test_a_split_that_is_not_there(tmp_path: Path) -> None:
    write_shards(tmp_path, train=np.arange(9))
    unpack_corpus(tmp_path, tmp_path)
    with pytest.raises(ValueError, match=r"must have a val shard, got none; .*--validation"):
        TokenShards(tmp_path, "val")
