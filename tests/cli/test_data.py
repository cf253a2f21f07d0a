"""`harmax data text` from a user's side."""

import json
from pathlib import Path

import numpy as np
import pytest

from harmax.cli.main import main
from harmax.data.text import TokenShards
from token_shards import contents, make_texts, write_shards, write_vocabulary

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    pytest.importorskip("tiktoken")
    write_vocabulary(tmp_path / "vocabulary")
    (tmp_path / "texts").mkdir()
    rows = [json.dumps({"body": text}) for text in make_texts(80)]
    (tmp_path / "texts/a.jsonl").write_text("\n".join(rows))
    return tmp_path


def prepare(folder: Path, *more: str) -> int:
    words = ["--input", str(folder / "texts"), "--field", "body", "--vocabulary", str(folder / "vocabulary")]
    return main(["data", "text", str(folder / "out"), *words, "--workers", "1", *more])


def test_files_become_shards(texts: Path, capsys: Capture) -> None:
    assert prepare(texts, "--validation", "0.2", "--shard-tokens", "1000") == 0
    lines = capsys.readouterr().out.splitlines()
    train, val = TokenShards(texts / "out"), TokenShards(texts / "out", "val")
    assert lines[0].startswith(f"train  {train.tokens:,} tokens in ")
    assert lines[0].endswith(f"{len(train.shards)} shards")
    assert lines[1].startswith(f"val    {val.tokens:,} tokens in ")
    assert lines[2] == str(texts / "out")
    before = contents(texts / "out")
    assert prepare(texts, "--validation", "0.2", "--shard-tokens", "1000") == 0
    assert capsys.readouterr().out.splitlines() == lines
    assert contents(texts / "out") == before


def test_json_is_the_manifest(texts: Path, capsys: Capture) -> None:
    assert prepare(texts, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("folder") == str(texts / "out")
    assert printed == json.loads((texts / "out/shards.json").read_text())
    assert printed["vocabulary"]["name"] == "custom"
    assert printed["complete"] is True


def test_the_data_folders_vocabulary_is_found(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (texts / "vocabulary").rename(texts / "gpt2_bpe")
    monkeypatch.setenv("HARMAX_DATA", str(texts))
    words = ["--input", str(texts / "texts"), "--field", "body", "--workers", "1"]
    assert main(["data", "text", str(texts / "out"), *words]) == 0
    assert TokenShards(texts / "out").vocabulary.size == 266


def test_no_document_for_validation_is_said(texts: Path, capsys: Capture) -> None:
    assert prepare(texts, "--validation", "0") == 0
    assert "the split val got no document; raise `--validation`" in capsys.readouterr().err


def test_packed_shards_and_their_check(tmp_path: Path, capsys: Capture) -> None:
    write_shards(tmp_path / "in", train=np.arange(900), val=np.arange(90))
    out = str(tmp_path / "out")
    assert main(["data", "text", out, "--packed", str(tmp_path / "in")]) == 0
    assert (
        capsys.readouterr().out
        == f"train  900 tokens in 0 documents, 1 shard\nval    90 tokens in 0 documents, 1 shard\n{out}\n"
    )
    assert main(["data", "text", out, "--check"]) == 0
    (tmp_path / "out/val.bin").write_bytes(np.arange(90)[::-1].astype("<u2").tobytes())
    capsys.readouterr()
    assert main(["data", "text", out, "--check"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "val.bin must have the sha256 in shards.json" in printed.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "must be given, got none"),
        (["--input", "a.txt", "--packed", "b"], "must be given, got `--input` and `--packed`"),
        (["--input", "a.txt"], "must be files or folders that exist, got 'a.txt'"),
        (["--packed", "."], "a folder of packed shards must hold train*.bin"),
        (["--check"], "must hold shards.json"),
        (["--input", "x.txt", "--vocabulary", "."], "must hold vocab.bpe and encoder.json"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: list[str], message: str
) -> None:
    pytest.importorskip("tiktoken")
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("x")
    assert main(["data", "text", "out", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("harmax: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not Path("out").exists()


def test_a_damaged_text_is_status_1(texts: Path, capsys: Capture) -> None:
    (texts / "texts/b.txt").write_bytes(b"\xff\xfe")
    assert prepare(texts) == 1
    assert "b.txt must be UTF-8" in capsys.readouterr().err


def test_the_folder_must_be_one(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "out").touch()
    assert main(["data", "text", str(tmp_path / "out"), "--check"]) == 2
    assert "must be a folder" in capsys.readouterr().err
