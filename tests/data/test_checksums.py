"""Lists of checksums as sha256sum writes them."""

import hashlib
from pathlib import Path

import pytest

from harmax.data.checksums import read_sums, sha256_of
from harmax.errors import DamagedError

DIGEST = "0123456789abcdef" * 4


def test_every_form_of_a_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "SHA256SUMS"
    path.write_text(f"{DIGEST}  a.bin\n{DIGEST.upper()} *b.bin\r\n\n{DIGEST}  ./c/two words.bin\n")
    assert read_sums(path) == dict.fromkeys(("a.bin", "b.bin", "c/two words.bin"), DIGEST)


@pytest.mark.parametrize("line", ["word", DIGEST, f"{DIGEST[1:]}  a.bin", f"x{DIGEST[1:]}  a.bin", "\xff\xfe"])
def test_another_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "SHA256SUMS"
    path.write_text(f"{DIGEST}  a.bin\n{line}\n", encoding="latin-1")
    with pytest.raises(DamagedError, match=f"{path} must have .* in line 2; .*sha256sum"):
        read_sums(path)


def test_a_checksum_is_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"content")
    assert sha256_of(tmp_path / "a.bin") == hashlib.sha256(b"content").hexdigest()
