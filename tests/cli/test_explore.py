"""`harmax explore` from a user's side: a page in every case, and a sentence where something is missing."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harmax.cli.main import main
from harmax.train.vision import VISION_PRESETS
from harmax.train.vision.train import train_classifier
from threads import one_thread

__all__ = ["one_thread"]

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library without other packages, in an empty folder."""
    monkeypatch.setattr("harmax.plugins.entry_points", lambda group: [])
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("vision")
    train_classifier(replace(VISION_PRESETS["smoke"], epochs=1), output, device="cpu")
    return output


def document(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="harmax-document">(.*?)</script>', path.read_text())
    assert found is not None
    return json.loads(found[1])


def test_without_a_source_there_is_still_a_page(tmp_path: Path, capsys: Capture) -> None:
    assert main(["explore"]) == 0
    assert capsys.readouterr().out == "explore.html\n"
    found = document(tmp_path / "explore.html")
    assert set(found["missing"]) == {"growth", "classifiers", "verdicts"}
    assert all(words.count("`") >= 2 for words in found["missing"].values()), "each says which command helps"
    assert found["costs"]


def test_a_classifiers_folder_is_shown_and_exported(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["--parquet", "atlas", "--projector", "projector", "--device", "cpu", "--limit", "60", "--json"]
    assert main(["explore", str(trained), "--output", "page.html", "--examples", "10", *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    (shown,) = document(tmp_path / "page.html")["classifiers"]
    assert len(shown["classes"]) == 4
    assert len(shown["examples"]) == 10
    assert shown["examples"][0]["example"]["picture"].startswith("data:image/png")
    parquet = next(Path(name) for name in printed["files"] if name.endswith(".parquet"))
    table = pq.read_table(parquet)
    assert table["what"].to_pylist() == ["test image"] * 60 + ["center"] * 4
    assert (tmp_path / "projector/projector_config.pbtxt").is_file()


@pytest.mark.parametrize("kind", ["missing", "empty", "other", "broken", "torn"])
def test_a_source_that_cannot_be_read_leaves_a_page_and_a_sentence(
    kind: str, trained: Path, tmp_path: Path, capsys: Capture
) -> None:
    source = tmp_path / "source"
    if kind not in ("missing", "torn"):
        source.mkdir()
    if kind == "other":  # a model of transformers
        (source / "config.json").write_text('{"model_type": "gpt2"}')
    if kind == "broken":
        (source / "model").mkdir()
        for name in ("config.json", "preparation.json"):
            (source / "model" / name).write_text("{")
    if kind == "torn":
        shutil.copytree(trained / "model", source / "model")
        (source / "model/model.safetensors").write_bytes(b"torn")
    assert main(["explore", str(source), "--dataset", "generated"]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    found = document(tmp_path / "explore.html")
    assert str(source) in said
    assert found["notes"] == [said.removeprefix("harmax: ")]
    assert found["costs"]
    assert not found["classifiers"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--output", "page.txt"], "`--output` must be an .html file, got 'page.txt'"),
        (["--seeds", "0"], "`--seeds` must be at least 1, got 0"),
        (["--parquet", "taken"], "`--parquet` must be a folder, got the file 'taken'"),
    ],
)
def test_bad_usage(words: list[str], expected: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["explore", *words]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "explore.html").exists()
