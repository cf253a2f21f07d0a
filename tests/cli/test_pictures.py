"""`harmax vision pictures` and the page of `harmax prototypes`, from a user's side."""

import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from harmax.cli.main import main
from harmax.data.images.picture_list import read_picture_list
from harmax.train.pictures.model import load_picture_classifier, predict
from harmax.train.vision.pictures import whole_squares
from own_pictures import COLORS, write_folder, write_network, write_picture
from threads import one_thread

__all__ = ["one_thread"]

Capture = pytest.CaptureFixture[str]
VOID = {"meta", "img", "br", "wbr"}


def vision(data: Path, output: Path, *words: str | Path) -> int:
    flags = ["--data", str(data), "--output", str(output), "--device", "cpu"]
    return main(["vision", "pictures", *flags, *map(str, words)])


def colors(folder: Path) -> tuple[str, str]:
    return "--backbone", f"{write_network(folder)}:Colors"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of three colors on a network of the user's."""
    root = tmp_path_factory.mktemp("own")
    write_folder(root / "photos", "{name}_{index}.png")
    shutil.copy(root / "photos" / "red_0.png", root / "photos" / "red_1<img src=x>&'.png")
    for index in range(5):
        write_picture(root / "photos" / f"<i>odd_{index}.png", (128, 128, 128), index)
    assert vision(root / "photos", root / "run", *colors(root), "--epochs", "3") == 0
    return root / "run"


@pytest.fixture(scope="module")
def shown(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `harmax prototypes` writes about it."""
    output = tmp_path_factory.mktemp("shown")
    words = [
        "--output",
        str(output),
        "--device",
        "cpu",
        "--neighbors",
        "9",
        "--decisions",
        "1",
        *colors(trained.parent),
    ]
    assert main(["prototypes", str(trained), *words]) == 0
    return output


def test_two_commands_lead_from_a_folder_to_a_page(trained: Path, shown: Path) -> None:
    summary = json.loads((shown / "prototypes.json").read_text())
    arrays = load_file(shown / "prototypes.safetensors")
    pictures = read_picture_list(trained / "pictures.json")
    assert summary["test_files"] == [one.file for one in pictures.test]
    assert summary["test_accuracy"] > 0.8
    model, preparation = load_picture_classifier(trained / "model", backbone=colors(trained.parent)[1])
    squares = whole_squares(pictures.open_side("test"), preparation.size)
    pixels = np.stack([squares[place, 0][0] for place in range(len(squares))])
    p = predict(model, preparation, torch.from_numpy(pixels)).numpy()
    np.testing.assert_array_equal(arrays["test/winner"], p.argmax(1))
    np.testing.assert_allclose(arrays["test/confidence"], p.max(1), rtol=1e-4)
    assert arrays["confusion"].sum() == len(p)
    assert arrays["confusion"].trace() == (p.argmax(1) == arrays["test/label"]).sum()
    stored = json.loads((trained / "model" / "classifier.json").read_text())
    assert stored["top1"] == pytest.approx(summary["test_accuracy"])


class Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [found["id"]] if found.get("id") else []
        self.links += [value for key in ("src", "href") if (value := found.get(key))]
        assert tag not in {"script", "link", "iframe"}
        if tag == "img":
            self.images += 1
            assert found.get("alt")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_loads_nothing_and_escapes_names(shown: Path) -> None:
    page = (shown / "prototypes.html").read_text()
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.images > 20
    assert all(link.startswith(("data:image/", "#")) for link in checker.links)
    assert {link[1:] for link in checker.links if link.startswith("#")} <= set(checker.ids)
    assert len(set(checker.ids)) == len(checker.ids)
    assert "<img src=x>" not in page
    assert "<i>odd" not in page
    assert "&lt;i&gt;odd" in page
    names = json.loads((shown / "prototypes.json").read_text())["nearest_files"]
    assert all(html.escape(file) in page for row in names for file in row)
    assert "prefers-color-scheme:dark" in page
    assert "connect-src" not in page
    assert "default-src 'none'" in html.unescape(page)


def test_the_explorer_names_the_folder_and_the_files(trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    words = ["--output", str(output), "--small", "--device", "cpu", *colors(trained.parent)]
    assert main(["explore", str(trained), *words]) == 0
    data = output.read_text().split('id="harmax-document">')[1].split("</script>")[0]
    (shown,) = json.loads(data)["classifiers"]
    pictures = read_picture_list(trained / "pictures.json")
    assert shown["name"] == "run, 4 classes"
    files = {one["example"]["title"] for one in shown["examples"]}
    assert len(files) > 3
    assert files <= {one.file for one in pictures.test}
    near = {one["example"]["title"] for own in shown["nearest"] for one in own}
    assert near <= {one.file for one in pictures.train}


def test_pictures_that_moved_are_found_by_their_new_folder(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    moved, run = tmp_path / "moved", tmp_path / "run"
    shutil.copytree(trained.parent / "photos", moved)
    shutil.copytree(trained, run)
    stored = json.loads((run / "pictures.json").read_text())
    (run / "pictures.json").write_text(json.dumps({**stored, "root": str(tmp_path / "gone")}))
    words = ["--output", str(tmp_path / "out"), "--device", "cpu", "--decisions", "1", *colors(trained.parent)]
    assert main(["prototypes", str(run), *words]) == 1
    assert "name the folder they are in with --data" in capsys.readouterr().err
    assert main(["prototypes", str(run), *words, "--data", str(moved)]) == 0


def test_what_was_chosen_is_printed_and_a_second_run_computes_no_features(tmp_path: Path, capsys: Capture) -> None:
    data = write_folder(tmp_path / "photos")
    network = colors(tmp_path)
    assert vision(data, tmp_path / "run", *network, "--epochs", "3") == 0
    said = capsys.readouterr().err
    for words in ("30 pictures, 3 classes (blue, green, red): 24 to train on, 6 to test", "classes from sub-folders"):
        assert words in said
    for pattern in (r"batch 24: all training pictures", r"micro-batch 32: ", r"exponent .* best in 5-fold"):
        assert re.search(pattern, said)
    before = (tmp_path / "run" / "features" / "features.json").stat().st_mtime_ns
    assert vision(data, tmp_path / "run", *network, "--exponent", "9", "--epochs", "2", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["exponent"], record["head_epochs"], record["train_pictures"]) == (9.0, 2, 24)
    assert (tmp_path / "run" / "features" / "features.json").stat().st_mtime_ns == before


def test_fine_tuning_changes_the_network_and_is_loaded_again(tmp_path: Path, capsys: Capture) -> None:
    data = write_folder(tmp_path / "photos", count=5)
    network = colors(tmp_path)
    assert vision(data, tmp_path / "run", *network, "--exponent", "9", "--epochs", "1") == 0
    plain = load_picture_classifier(tmp_path / "run" / "model", backbone=network[1])[0]
    assert vision(data, tmp_path / "run", *network, "--exponent", "9", "--epochs", "1", "--fine-tune", "2") == 0
    assert "fine-tuned for 2 epochs" in capsys.readouterr().err
    tuned = load_picture_classifier(tmp_path / "run" / "model", backbone=network[1])[0]
    assert not torch.equal(plain.backbone.mix.weight, tuned.backbone.mix.weight)
    torch.testing.assert_close(plain.backbone.mix.weight, tuned.backbone.mix.weight, atol=0.01, rtol=0)


def test_from_scratch_it_trains_resumes_and_shows(tmp_path: Path, capsys: Capture) -> None:
    data = write_folder(tmp_path / "photos", "{name}{index}.png", count=5)
    words = ["--model", "tiny", "--image-size", "16", "--epochs", "2"]
    assert vision(data, tmp_path / "run", *words) == 0
    said = capsys.readouterr().err
    assert "batch 8: about an eighth" in said
    assert "without --backbone a ResNet is trained from scratch" in said
    assert vision(data, tmp_path / "run", *words) == 0  # nothing is left to do
    assert main(["prototypes", str(tmp_path / "run"), "--output", str(tmp_path / "out"), "--decisions", "1"]) == 0
    assert json.loads((tmp_path / "out" / "prototypes.json").read_text())["classes"] == list(COLORS)
    assert vision(data, tmp_path / "run", *colors(tmp_path)) == 2
    assert "must be a folder of a training with --backbone" in capsys.readouterr().err


def test_bad_folders_are_one_clear_sentence(tmp_path: Path, capsys: Capture) -> None:
    network = colors(tmp_path / "nets")
    data = write_folder(tmp_path / "photos", count=3)
    (data / "red" / "0.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n")
    cases = {
        (data,): (1, "1 of 9 pictures cannot be read: red/0.png."),
        (data, "--skip-broken", "--batch", "0"): (2, "`batch` must be at least 1"),
        (tmp_path / "none",): (2, "`data` must be a folder of pictures"),
        (data / "blue",): (2, "name of a picture in a flat folder must begin with its class"),
        (data, "--labels", tmp_path / "no.csv"): (2, "`labels` must be a CSV file"),
        (data, "--log", "tensorboard"): (2, "must be left out with --backbone"),
    }
    for words, (status, message) in cases.items():
        try:
            found = vision(words[0], tmp_path / "run", *network, *words[1:])
        except SystemExit as error:  # tyro's own refusal of a value
            found = int(str(error.code))
        printed = capsys.readouterr()
        assert (found, printed.out) == (status, "")
        assert message in printed.out + printed.err
    assert not (tmp_path / "run").exists()
    assert vision(data, tmp_path / "run", *network, "--skip-broken") == 0
    assert "1 of 9 pictures cannot be read: red/0.png. They are left out." in capsys.readouterr().err


def test_a_model_folder_alone_never_runs_a_python_file(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (tmp_path / "bad.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w').close()\n")
    stored = json.loads((run / "model" / "classifier.json").read_text())
    (run / "model" / "classifier.json").write_text(json.dumps({**stored, "backbone": "bad.py:make"}))
    monkeypatch.chdir(tmp_path)
    assert main(["prototypes", str(run), "--output", "out", "--device", "cpu"]) == 2
    assert "if you trust it, name it: --backbone bad.py:make" in capsys.readouterr().err
    assert not (tmp_path / "was-run").exists()
    listed = json.loads((run / "pictures.json").read_text())
    listed["test"][0]["file"] = "../secret.png"
    (run / "pictures.json").write_text(json.dumps(listed))
    assert main(["prototypes", str(run), "--output", "out", "--device", "cpu"]) == 1
    assert "must list pictures below one folder" in capsys.readouterr().err
