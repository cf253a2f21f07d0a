"""Documents become token shards: the same bytes however they are made, and a clear error for what cannot be."""

import hashlib
import lzma
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harmax.data.folder import find_data
from harmax.data.text import GPT2, TokenShards, from_files, from_rows, load_encoding, prepare_text, unpack_corpus
from harmax.owner import FolderInUseError
from token_shards import contents, make_texts, write_shards, write_text_files, write_vocabulary


@pytest.fixture
def encoding(tmp_path: Path) -> Any:
    pytest.importorskip("tiktoken")
    return load_encoding(write_vocabulary(tmp_path / "vocabulary"))


def rows(texts: list[str]) -> Any:
    return from_rows([{"text": text} for text in texts], name="poems")


def read_texts(folder: Path, split: str, encoding: Any) -> list[str]:
    shards = TokenShards(folder, split)
    tokens = np.concatenate([np.fromfile(folder / shard.name, "<u2") for shard in shards.shards])
    return encoding.decode(tokens.tolist()).split("<|endoftext|>")


def test_shards_hold_every_document_once_in_order(tmp_path: Path, encoding: Any) -> None:
    texts = make_texts(200)
    manifest = prepare_text(
        tmp_path / "out", rows(texts), encoding=encoding, shard_tokens=2000, validation=0.2, workers=1
    )
    train, val = (read_texts(tmp_path / "out", split, encoding) for split in ("train", "val"))
    assert train.pop() == val.pop() == "", "the separator comes last"
    assert sorted(train + val) == sorted(texts)
    assert train == [text for text in texts if text in set(train)]
    assert 20 <= len(val) <= 60
    assert len(manifest.of("train")) > 3
    assert all(shard.tokens >= 2000 for shard in manifest.of("train")[:-1])
    assert sum(shard.documents for shard in manifest.shards) == 200
    for shard in manifest.shards:
        data = (tmp_path / "out" / shard.name).read_bytes()
        assert len(data) == 2 * shard.tokens
        assert hashlib.sha256(data).hexdigest() == shard.sha256
        assert data[-2:] == encoding.eot_token.to_bytes(2, "little")
    TokenShards(tmp_path / "out").verify()


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path, encoding: Any) -> None:
    texts = make_texts(400, words=600)
    for workers in (1, 2, 3):
        out = tmp_path / str(workers)
        prepare_text(out, rows(texts), encoding=encoding, shard_tokens=150_000, validation=0.1, workers=workers)
    assert len(contents(tmp_path / "1")) > 4
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")


def test_held_out_documents_do_not_depend_on_the_order(tmp_path: Path, encoding: Any) -> None:
    texts = make_texts(100)
    for name, order in (("forth", texts), ("back", texts[::-1] + texts[:50])):
        prepare_text(tmp_path / name, rows(order), encoding=encoding, validation=0.3, workers=1)
    forth, back = (set(read_texts(tmp_path / name, "val", encoding)) for name in ("forth", "back"))
    assert forth == back
    assert len(forth) > 10


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
from token_shards import make_texts
from harmax.data.text import from_rows, load_encoding, prepare_text

def rows():
    for number, text in enumerate(make_texts(300, words=600)):
        if number == 250:
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"text": text}

source = from_rows(rows(), name="poems")
prepare_text(sys.argv[1], source, encoding=load_encoding(sys.argv[2]), shard_tokens=80_000, validation=0.1, workers=1)
"""


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(tmp_path: Path, encoding: Any) -> None:
    out = tmp_path / "out"
    arguments = [out, tmp_path / "vocabulary", Path(__file__).parents[2]]
    killed = subprocess.run([sys.executable, "-c", KILLED, *map(str, arguments)])
    assert killed.returncode == -signal.SIGKILL
    finished = {path.name: path.stat().st_ino for path in out.glob("*.bin")}
    assert "train-00000.bin" in finished
    assert list(out.glob(".*.partial"))
    with pytest.raises(ValueError, match=r"must be finished.*out.*`harmax data text`"):
        TokenShards(out)
    texts = make_texts(300, words=600)
    settings = {"encoding": encoding, "shard_tokens": 80_000, "validation": 0.1, "workers": 1}
    prepare_text(out, rows(texts), **settings)
    prepare_text(tmp_path / "whole", rows(texts), **settings)
    assert contents(out) == contents(tmp_path / "whole")
    assert all((out / name).stat().st_ino == inode for name, inode in finished.items()), "finished shards stay"


def test_two_processes_never_write_to_one_folder(tmp_path: Path, encoding: Any) -> None:
    settings = {"encoding": encoding, "validation": 0.0, "workers": 1}
    out, texts = tmp_path / "out", make_texts(20)

    def second(documents: int, tokens: int) -> None:
        with pytest.raises(FolderInUseError, match=f"out is in use by process {os.getpid()}"):
            prepare_text(out, rows(texts), **settings)
        with pytest.raises(FolderInUseError, match=f"out is in use by process {os.getpid()}"):
            unpack_corpus(packed, out)

    packed = tmp_path / "packed"
    write_shards(packed, train=np.arange(100))
    prepare_text(out, rows(texts), progress=second, **settings)
    prepare_text(tmp_path / "alone", rows(texts), **settings)
    assert contents(out) == contents(tmp_path / "alone")


def test_a_lost_shard_is_made_again_and_only_from_the_same_texts(tmp_path: Path, encoding: Any) -> None:
    texts, out = make_texts(60), tmp_path / "out"
    settings = {"encoding": encoding, "shard_tokens": 500, "validation": 0.0, "workers": 1}
    prepare_text(out, rows(texts), **settings)
    before = contents(out)
    (out / sorted(before)[-1]).unlink()
    with pytest.raises(ValueError, match=r"source must be the one .*got another text"):
        prepare_text(out, rows(["changed", *texts[1:]]), **settings)
    with pytest.raises(ValueError, match="got only 10 documents"):
        prepare_text(out, rows(texts[:10]), **settings)
    prepare_text(out, rows(texts), **settings)
    assert contents(out) == before


def test_a_finished_folder_is_left_alone_and_other_settings_are_refused(tmp_path: Path, encoding: Any) -> None:
    settings = {"encoding": encoding, "validation": 0.0, "workers": 1}
    first = prepare_text(tmp_path / "out", rows(["a", "b"]), **settings)
    before = contents(tmp_path / "out")
    assert prepare_text(tmp_path / "out", rows([]), **settings) == first
    with pytest.raises(ValueError, match=r"same settings, got .*name another folder, or delete this one"):
        prepare_text(tmp_path / "out", rows(["a", "b"]), **{**settings, "shard_tokens": 7})
    other = load_encoding(write_vocabulary(tmp_path / "other", ["t h"]))
    with pytest.raises(ValueError, match="same settings"):
        prepare_text(tmp_path / "out", rows(["a", "b"]), **{**settings, "encoding": other})
    assert contents(tmp_path / "out") == before


def test_what_looks_special_in_a_document_is_plain_text(tmp_path: Path, encoding: Any) -> None:
    write_text_files(tmp_path / "texts")
    manifest = prepare_text(
        tmp_path / "out", from_files([tmp_path / "texts"]), encoding=encoding, validation=0.0, workers=1
    )
    (shard,) = manifest.shards
    tokens = np.fromfile(tmp_path / "out" / shard.name, "<u2")
    assert (tokens == encoding.eot_token).sum() == shard.documents == 8
    assert shard.source == "a.txt to e.jsonl.xz"
    assert str(tmp_path) not in (tmp_path / "out/shards.json").read_text()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"validation": 1.0}, ValueError, "`validation` must be .*below 1, got 1.0"),
        ({"validation": -0.1}, ValueError, "`validation` must"),
        ({"workers": 0}, ValueError, "`workers` must be a whole number .*got 0"),
        ({"shard_tokens": 1.5}, TypeError, "`shard_tokens` must be a whole number"),
    ],
)
def test_bad_settings(
    tmp_path: Path, encoding: Any, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prepare_text(tmp_path / "out", rows(["a"]), encoding=encoding, **settings)
    assert not (tmp_path / "out").exists()


def test_no_document_to_train_on_is_an_error(tmp_path: Path, encoding: Any) -> None:
    with pytest.raises(ValueError, match="source must leave a document to train on, got none"):
        prepare_text(tmp_path, rows(["", ""]), encoding=encoding, workers=1)


def test_gpt2_tokens_are_those_of_the_corpus(tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    data = find_data()
    if data is None or not (data / "gpt2_bpe").is_dir() or not (data / "corpus").is_dir():
        pytest.skip("needs the data folder: HARMAX_DATA")
    encoding = load_encoding(data / "gpt2_bpe")
    with lzma.open(data / "corpus/val.bin.xz") as file:
        theirs = np.frombuffer(file.read(200_000), "<u2")
    theirs = theirs[: np.flatnonzero(theirs == GPT2.separator)[-1] + 1]
    texts = encoding.decode(theirs.tolist()).split("<|endoftext|>")[:-1]
    manifest = prepare_text(tmp_path, rows(texts), encoding=encoding, validation=0.0, workers=1)
    assert manifest.vocabulary == GPT2
    assert np.array_equal(np.fromfile(tmp_path / "train-00000.bin", "<u2"), theirs)


FULL = """
import resource, sys
sys.path.insert(0, sys.argv[3])
from token_shards import make_texts
from harmax.data.text import from_rows, load_encoding, prepare_text
source = from_rows([{"text": text} for text in make_texts(300, words=600)], name="poems")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
prepare_text(sys.argv[1], source, encoding=load_encoding(sys.argv[2]), validation=0.0, workers=1)
"""


def test_a_full_disk_is_reported_with_the_path(tmp_path: Path, encoding: Any) -> None:
    out = tmp_path / "out"
    arguments = [out, tmp_path / "vocabulary", Path(__file__).parents[2]]
    done = subprocess.run([sys.executable, "-c", FULL, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"File too large: '{out / '.train-00000.bin.partial'}'" in done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["shards.json"]
