"""`harmax doctor`: what is installed, what is missing, what `impl="auto"` chooses."""

import json
from pathlib import Path

import pytest

from harmax.cli.main import main
from harmax.errors import EXTRAS

Capture = pytest.CaptureFixture[str]


def test_doctor(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path))
    monkeypatch.setitem(EXTRAS, "sklearn", ("no_such_module",))
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert 'sklearn   missing: pip install "harmax[sklearn]"' in text
    assert f"data       {tmp_path}" in text
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    chosen = {row["use"]: row["impl"] for row in facts["implementations"] if row["device"] == "cpu"}
    assert chosen["small classifier"] == "eager"
    assert chosen["GPT-2 small, 16 sequences"] == "chunked"
    assert all(row["reason"] for row in facts["implementations"])


def test_a_data_folder_that_is_not_there_is_reported(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARMAX_DATA", "/no/such/folder")
    assert main(["doctor"]) == 0
    assert "`HARMAX_DATA` must name a folder, got '/no/such/folder'" in capsys.readouterr().out
