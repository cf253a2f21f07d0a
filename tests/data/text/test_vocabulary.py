"""Vocabularies: two files that belong together, or an error that says what to pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harmax.data.text import load_encoding
from harmax.errors import MissingExtraError
from token_shards import write_vocabulary


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
    with pytest.raises(ValueError, match=r"vocab.bpe and encoder.json in .*one byte-level vocabulary.*do not match"):
        load_encoding(folder)
    (folder / "encoder.json").write_text("{")
    with pytest.raises(ValueError, match="do not match"):
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
    assert "GPT-2's vocabulary could not be downloaded" in failed.stderr
    assert "--vocabulary" in failed.stderr
