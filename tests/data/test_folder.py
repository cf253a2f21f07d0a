"""The data folder: found by its variable, and its files are read with a limit."""

import gzip
from pathlib import Path

import pytest

from harmax.data import folder as module
from harmax.data.folder import read_text
from harmax.errors import DamagedError


@pytest.mark.parametrize("packed", [False, True])
def test_a_text_is_read_plain_and_packed(tmp_path: Path, packed: bool) -> None:
    data = "Zürich\n".encode()
    (tmp_path / f"a.txt{'.gz' * packed}").write_bytes(gzip.compress(data) if packed else data)
    assert read_text("a.txt", tmp_path) == "Zürich\n"


def test_a_text_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TEXT", 1000)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(bytes(1001)))
    with pytest.raises(DamagedError, match=r"a.txt.gz must unpack to at most 1,000 bytes"):
        read_text("a.txt", tmp_path)
