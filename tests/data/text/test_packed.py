"""Packed shards of other projects are checked and unpacked once."""

import gzip
import hashlib
import lzma
import os
from pathlib import Path

import numpy as np
import pytest

from harmax.data.text import GPT2, TokenShards, unpack_corpus
from harmax.errors import DamagedError
from token_shards import contents, write_shards


def pack(folder: Path, tokens: np.ndarray, name: str = "train-000.bin.xz") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    opener = lzma.open if name.endswith("xz") else gzip.open if name.endswith("gz") else open
    with opener(folder / name, "wb") as file:
        file.write(tokens.astype("<u2").tobytes())
    return folder / name


def test_packed_shards_are_unpacked_once_and_checked(tmp_path: Path) -> None:
    tokens = np.arange(3000) * 16
    tokens[::100] = GPT2.separator
    packed = [
        pack(tmp_path / "in", tokens - place * (tokens > 0), f"train-00{place}.bin.{end}")
        for place, end in enumerate(("xz", "gz"))
    ]
    pack(tmp_path / "in", tokens[:500], "val.bin")
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  in/{path.name}\n" for path in packed)
    (tmp_path / "SHA256SUMS").write_text(sums)
    manifest = unpack_corpus(tmp_path / "in", tmp_path / "out")
    assert [(s.name, s.split, s.tokens, s.source) for s in manifest.shards] == [
        ("train-000.bin", "train", 3000, "train-000.bin.xz"),
        ("train-001.bin", "train", 3000, "train-001.bin.gz"),
        ("val.bin", "val", 500, "val.bin"),
    ]
    assert manifest.shards[0].documents == 30
    assert np.array_equal(np.fromfile(tmp_path / "out/train-000.bin", "<u2"), tokens)
    TokenShards(tmp_path / "out", "val").verify()
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.bin")}
    (tmp_path / "out/train-001.bin").unlink()
    assert unpack_corpus(tmp_path / "in", tmp_path / "out") == manifest
    assert (tmp_path / "out/train-000.bin").stat().st_ino == inodes["train-000.bin"]
    (tmp_path / "SHA256SUMS").write_text(sums.replace("f", "0"))
    with pytest.raises(DamagedError, match=r"train-000.bin.xz must have the checksum in SHA256SUMS"):
        unpack_corpus(tmp_path / "in", tmp_path / "again")


def test_a_folder_of_plain_shards_gets_its_manifest_in_place(tmp_path: Path) -> None:
    write_shards(tmp_path, train=np.arange(100), val=np.arange(40))
    unpack_corpus(tmp_path, tmp_path)
    assert TokenShards(tmp_path).tokens == 100
    assert sorted(contents(tmp_path)) == ["shards.json", "train.bin", "val.bin"]


def test_bad_packed_shards(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold train"):
        unpack_corpus(tmp_path, tmp_path / "out")
    path = pack(tmp_path / "large", np.array([5, GPT2.size]))
    with pytest.raises(DamagedError, match=r"train-000.bin.xz must hold GPT-2 tokens, all below 50257, got 50257"):
        unpack_corpus(path.parent, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out/shards.json"], "nothing half-written is left"
    path = pack(tmp_path / "cut", np.arange(9999))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DamagedError, match=r"must be a whole .xz file"):
        unpack_corpus(path.parent, tmp_path / "out2")
    path = pack(tmp_path / "odd", np.arange(99), "val.bin")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError, match=r"val.bin must have 2 bytes per token, got an odd number"):
        unpack_corpus(path.parent, tmp_path / "out3")
    path = pack(tmp_path / "empty", np.arange(0), "val.bin")
    with pytest.raises(DamagedError, match=r"val.bin must hold tokens, got an empty file"):
        unpack_corpus(path.parent, tmp_path / "out4")
    pack(tmp_path / "twice", np.arange(9), "val.bin")
    pack(tmp_path / "twice", np.arange(9), "val.bin.gz")
    with pytest.raises(ValueError, match="each shard must be there once"):
        unpack_corpus(tmp_path / "twice", tmp_path / "out5")


def test_upper_case_checksums_count_and_other_lines_are_named(tmp_path: Path) -> None:
    path = pack(tmp_path / "in", np.arange(99))
    digest = hashlib.sha256(path.read_bytes()).hexdigest().upper()
    (tmp_path / "in" / "SHA256SUMS").write_text(f"{digest} *./{path.name}\n\n")
    assert unpack_corpus(tmp_path / "in", tmp_path / "out").complete
    for line in ("word", f"{digest[:-1]}  {path.name}", digest):
        (tmp_path / "in" / "SHA256SUMS").write_text(f"\n{line}\n")
        with pytest.raises(DamagedError, match=rf"in/SHA256SUMS must have .*{line[:10]}.* in line 2; .*sha256sum"):
            unpack_corpus(tmp_path / "in", tmp_path / "out2")


def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.bin")
    with pytest.raises(DamagedError, match=r"train.bin must be an ordinary file"):
        unpack_corpus(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
