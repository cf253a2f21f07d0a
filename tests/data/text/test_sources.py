"""Documents come from files and rows in a fixed order, and a bad file is named."""

import gzip
import os
import sys
from pathlib import Path

import pytest

from harmax.data.text import from_dataset, from_files
from harmax.data.text import sources as module
from harmax.errors import DamagedError, MissingExtraError
from token_shards import write_text_files


def test_files_are_read_by_their_kind_in_the_order_of_their_names(tmp_path: Path) -> None:
    texts = write_text_files(tmp_path)
    source = from_files([tmp_path])
    assert [text for _, text in source.documents] == texts
    assert source.description["files"] == 5
    places = [place for place, _ in from_files([tmp_path / "d.txt.gz", tmp_path / "b"]).documents]
    assert list(dict.fromkeys(places)) == ["d.txt.gz", "c.jsonl", "many.txt"]


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
    with pytest.raises(ValueError, match=r"`inputs` must .*nothing.txt"):
        from_files([tmp_path / "nothing.txt"])
    with pytest.raises(ValueError, match=r"a folder of texts must hold .txt or .jsonl .*got none in"):
        from_files([tmp_path])
    with pytest.raises(ValueError, match="`inputs` must name at least one"):
        from_files([])


def test_without_datasets_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r'`datasets` must be installed.*pip install "harmax\[text\]"'):
        from_dataset("Skylion007/openwebtext")


def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("a text")
    for inputs in ([tmp_path], [tmp_path / "a.txt"]):
        with pytest.raises(DamagedError, match=r"a.txt must be an ordinary file"):
            from_files(inputs)


def test_a_folder_named_like_a_text_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "poems.txt").mkdir()
    (tmp_path / "poems.txt" / "a.txt").write_text("a text")
    assert list(from_files([tmp_path]).documents) == [("poems.txt/a.txt", "a text")]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.xz", "a.txt.gz"])
def test_a_file_that_would_fill_the_memory_or_never_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 2**20)
    path = tmp_path / name
    path.touch()
    os.truncate(path, 100 * 2**30)  # which occupies nothing on the disk
    with pytest.raises(DamagedError, match=name):
        list(from_files([path]).documents)
