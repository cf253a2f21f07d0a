"""Texts become token shards: the same bytes however they are made, and a clear error for what cannot be."""

import gzip
import hashlib
import json
import lzma
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harmax.data.folder import find_data
from harmax.data.text import (
    GPT2,
    TokenShards,
    from_dataset,
    from_files,
    from_rows,
    load_encoding,
    prepare_text,
    unpack_corpus,
)
from harmax.data.text.processes import encode_in_order
from harmax.errors import DamagedError, MissingExtraError
from token_shards import DyingEncoding, contents, make_texts, write_shards, write_vocabulary


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
    arguments = [out, tmp_path / "vocabulary", Path(__file__).parents[1]]
    killed = subprocess.run([sys.executable, "-c", KILLED, *map(str, arguments)])
    assert killed.returncode == -signal.SIGKILL
    finished = {path.name: path.stat().st_ino for path in out.glob("*.bin")}
    assert "train-00000.bin" in finished
    assert list(out.glob(".*.partial"))
    with pytest.raises(ValueError, match=r"must be finished, got .* run the same `harmax data text` again"):
        TokenShards(out)
    texts = make_texts(300, words=600)
    settings = {"encoding": encoding, "shard_tokens": 80_000, "validation": 0.1, "workers": 1}
    prepare_text(out, rows(texts), **settings)
    prepare_text(tmp_path / "whole", rows(texts), **settings)
    assert contents(out) == contents(tmp_path / "whole")
    assert all((out / name).stat().st_ino == inode for name, inode in finished.items()), "finished shards stay"


def test_a_lost_shard_is_made_again_and_only_from_the_same_texts(tmp_path: Path, encoding: Any) -> None:
    texts, out = make_texts(60), tmp_path / "out"
    settings = {"encoding": encoding, "shard_tokens": 500, "validation": 0.0, "workers": 1}
    prepare_text(out, rows(texts), **settings)
    before = contents(out)
    (out / sorted(before)[-1]).unlink()
    with pytest.raises(ValueError, match="must be the one that the finished shards were made from, got another text"):
        prepare_text(out, rows(["changed", *texts[1:]]), **settings)
    with pytest.raises(ValueError, match="got only 10 documents"):
        prepare_text(out, rows(texts[:10]), **settings)
    prepare_text(out, rows(texts), **settings)
    assert contents(out) == before


def test_a_process_that_dies_is_an_error() -> None:
    items = [SimpleNamespace(text=text) for text in make_texts(4)]
    with pytest.raises(RuntimeError, match="a tokenizing process must answer, got its end with status 9"):
        list(encode_in_order(DyingEncoding(), items, workers=2))


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


def write_files(folder: Path) -> list[str]:
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_bytes("\ufeffOne.\r\nTwo.\n".encode())
    (folder / "b/many.txt").write_text("first\n<|endoftext|>\nsecond <|endoftext|><|endoftext|>third\n")
    lines = [json.dumps({"text": text, "id": 3}) for text in ("x", "", "y\n<|endoftext|>")]
    (folder / "b/c.jsonl").write_text("\n".join([*lines, "", ""]))
    with gzip.open(folder / "d.txt.gz", "wt", encoding="utf-8") as file:
        file.write("Zürich")
    with lzma.open(folder / "e.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write('{"text": "half a character: \\ud83d"}\n')
    (folder / "f.pdf").write_bytes(b"not a text")
    return [
        "One.\nTwo.\n",
        "x",
        "",
        "y\n<|endoftext|>",
        "first",
        "second ",
        "",
        "third",
        "Zürich",
        "half a character: \ud83d",
    ]


def test_files_are_read_by_their_kind_in_the_order_of_their_names(tmp_path: Path) -> None:
    texts = write_files(tmp_path)
    source = from_files([tmp_path])
    assert [text for _, text in source.documents] == texts
    assert source.description["files"] == 5
    places = [place for place, _ in from_files([tmp_path / "d.txt.gz", tmp_path / "b"]).documents]
    assert list(dict.fromkeys(places)) == ["d.txt.gz", "c.jsonl", "many.txt"]


def test_what_looks_special_in_a_document_is_plain_text(tmp_path: Path, encoding: Any) -> None:
    write_files(tmp_path / "texts")
    manifest = prepare_text(
        tmp_path / "out", from_files([tmp_path / "texts"]), encoding=encoding, validation=0.0, workers=1
    )
    (shard,) = manifest.shards
    tokens = np.fromfile(tmp_path / "out" / shard.name, "<u2")
    assert (tokens == encoding.eot_token).sum() == shard.documents == 8
    assert shard.source == "a.txt to e.jsonl.xz"
    assert str(tmp_path) not in (tmp_path / "out/shards.json").read_text()


@pytest.mark.parametrize(
    ("name", "data", "error", "message"),
    [
        ("a.txt", b"caf\xe9", DamagedError, r"a.txt must be UTF-8"),
        ("a.txt.gz", gzip.compress(b"quite plain", mtime=0)[:-9], DamagedError, r"a.txt.gz must be a whole .gz file"),
        ("a.txt.xz", b"plain", DamagedError, r"a.txt.xz must be a whole .xz file"),
        ("a.jsonl", b'{"text": "x"}\n{"te', DamagedError, r"line 2 of .*a.jsonl must be a JSON object"),
        (
            "a.jsonl",
            b'{"content": "x"}',
            ValueError,
            r"line 1 of .* must have a text in `text`, got content; .*--field",
        ),
        ("a.jsonl", b"[1]", ValueError, r"must have a text in `text`, got list"),
        ("a.doc", b"x", ValueError, r"a text file must end in .txt or .jsonl"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, data: bytes, error: type[Exception], message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(error, match=message):
        list(from_files([tmp_path / name]).documents)


def test_bad_places(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be files or folders that exist"):
        from_files([tmp_path / "nothing.txt"])
    with pytest.raises(ValueError, match=r"a folder of texts must hold .txt or .jsonl"):
        from_files([tmp_path])
    with pytest.raises(ValueError, match="must name a file or a folder"):
        from_files([])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"validation": 1.0}, ValueError, "`validation` must lie in 0..1 and be less than 1, got 1.0"),
        ({"validation": -0.1}, ValueError, "`validation` must"),
        ({"workers": 0}, ValueError, "`workers` must be a whole number from 1 on"),
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
    with pytest.raises(ValueError, match="must leave a document to train on, got none"):
        prepare_text(tmp_path, rows(["", ""]), encoding=encoding, workers=1)


def test_without_datasets_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r'`datasets` must be installed.*pip install "harmax\[text\]"'):
        from_dataset("Skylion007/openwebtext")


def test_without_tiktoken_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(MissingExtraError, match=r'`tiktoken` must be installed.*pip install "harmax\[text\]"'):
        load_encoding(tmp_path)


def test_bad_vocabularies(tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    folder = write_vocabulary(tmp_path)
    assert load_encoding(folder).n_vocab == 266
    write_vocabulary(tmp_path / "other", ["t h"])
    (tmp_path / "other/vocab.bpe").replace(folder / "vocab.bpe")
    with pytest.raises(ValueError, match="must be the merges and the numbers of one byte-level vocabulary"):
        load_encoding(folder)
    (folder / "encoder.json").write_text("{")
    with pytest.raises(ValueError, match="must be the merges and the numbers"):
        load_encoding(folder)
    (folder / "encoder.json").unlink()
    with pytest.raises(ValueError, match=r"must hold vocab.bpe and encoder.json, got .* without encoder.json"):
        load_encoding(folder)


def test_without_network_and_folder_the_error_says_what_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tiktoken")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for scheme in ("http_proxy", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(scheme, "http://127.0.0.1:9")  # nobody listens there
    code = "from harmax.data.text import load_encoding; load_encoding()"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert failed.returncode == 1
    assert "a vocabulary folder must be given where GPT-2's cannot be downloaded" in failed.stderr


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
    with pytest.raises(DamagedError, match=r"train-000.bin.xz must be the file that SHA256SUMS lists"):
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
    with pytest.raises(DamagedError, match=r"val.bin must be of 2 bytes a token"):
        unpack_corpus(path.parent, tmp_path / "out3")
    path = pack(tmp_path / "empty", np.arange(0), "val.bin")
    with pytest.raises(DamagedError, match=r"val.bin must hold tokens, got an empty file"):
        unpack_corpus(path.parent, tmp_path / "out4")
    pack(tmp_path / "twice", np.arange(9), "val.bin")
    pack(tmp_path / "twice", np.arange(9), "val.bin.gz")
    with pytest.raises(ValueError, match="each shard must be there once"):
        unpack_corpus(tmp_path / "twice", tmp_path / "out5")
