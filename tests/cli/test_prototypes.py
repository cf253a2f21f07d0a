"""`harmax prototypes` from a user's side: numbers that a second computation gives too, files, and what is refused."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from harmax.cli.main import main
from harmax.inspect import PrototypeView
from harmax.inspect.classifiers import choose_decisions
from harmax.train.vision import VISION_PRESETS
from harmax.train.vision.data import generate_images, measure_channels
from harmax.train.vision.model import build_model, load_classifier, save_model
from harmax.train.vision.train import train_classifier
from threads import one_thread

__all__ = ["one_thread"]

Capture = pytest.CaptureFixture[str]
SPEC = replace(VISION_PRESETS["smoke"], epochs=1)
COLORS = {"blue": (70, 80, 190), "green": (70, 180, 80), "red": (190, 70, 80)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `harmax vision`."""
    output = tmp_path_factory.mktemp("vision")
    train_classifier(SPEC, output, device="cpu")
    return output


def prototypes(folder: Path, output: Path, *words: str) -> int:
    return main(["prototypes", str(folder), "--output", str(output), "--device", "cpu", *words])


def read(output: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return load_file(output / "prototypes.safetensors"), json.loads((output / "prototypes.json").read_text())


def assert_pictures(output: Path, *names: str) -> None:
    assert {path.stem for path in output.glob("*.png")} == set(names)
    for name in names:
        with Image.open(output / f"{name}.png") as picture:
            assert np.asarray(picture).std() > 1  # not a blank sheet


def test_a_resnets_run_says_itself_what_it_was_trained_on(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    assert prototypes(trained, tmp_path / "out") == 0
    printed = capsys.readouterr().out.splitlines()
    arrays, summary = read(tmp_path / "out")
    assert_pictures(tmp_path / "out", "nearest", "decisions", "abstention")
    assert printed[0].startswith("generated, 4 classes, exponent 4: ")
    assert printed[-1] == str(tmp_path / "out" / "prototypes.json")

    model, preparation = load_classifier(trained / "model")
    test = generate_images(256, start=512)
    with torch.no_grad():
        logits = model(preparation.prepare(torch.from_numpy(test.pixels))).logits
    np.testing.assert_array_equal(arrays["test/winner"], logits.argmax(1))
    assert summary["test_accuracy"] == float((logits.argmax(1).numpy() == test.labels).mean())
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert summary["test_accuracy"] == pytest.approx(last["top1"])
    assert (tmp_path / "out" / "nearest.png").read_bytes().startswith(b"\x89PNG")
    assert prototypes(trained / "model", tmp_path / "again", "--json", "--decisions", "1") == 0
    assert read(tmp_path / "again")[1] == {**summary, "folder": str(trained / "model")}


def test_some_images_and_some_classes_will_do(trained: Path, tmp_path: Path) -> None:
    assert (
        prototypes(trained, tmp_path, "--limit", "40", "--classes", "pattern 3", "pattern 1", "--decisions", "2") == 0
    )
    arrays, summary = read(tmp_path)
    assert (summary["train_images"], summary["test_images"]) == (40, 40)
    assert arrays["test/image"][[0, -1]].tolist() == [0, 255]
    everything = generate_images(512)
    np.testing.assert_array_equal(arrays["nearest/label"], everything.labels[arrays["nearest/image"]])
    with Image.open(tmp_path / "nearest.png") as picture:
        assert picture.width > 2 * picture.height  # two rows of five


def save_untrained(folder: Path, classes: tuple[str, ...], **fields: Any) -> Path:
    model = build_model(replace(SPEC, **fields), classes)
    save_model(model, model.state_dict(), measure_channels(generate_images(8).pixels), folder)
    return folder


def write_pictures(root: Path, colors: dict[str, tuple[int, int, int]] = COLORS) -> None:
    numbers = np.random.default_rng(0)
    for side, count in (("train", 4), ("val", 2)):
        for name, color in colors.items():
            (root / side / name).mkdir(parents=True)
            for index in range(count):
                pixels = np.clip(numbers.normal(color, 30, size=(20, 26, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / side / name / f"{index}.png")


def test_class_folders_are_read_as_they_were_tested(tmp_path: Path, capsys: Capture) -> None:
    write_pictures(tmp_path / "data")
    model = save_untrained(tmp_path / "model", tuple(COLORS))
    assert prototypes(model, tmp_path / "out", "--dataset", "folder", "--data", str(tmp_path / "data")) == 0
    arrays, summary = read(tmp_path / "out")
    assert (summary["classes"], summary["train_images"], summary["test_images"]) == (list(COLORS), 12, 6)
    assert arrays["test/label"].tolist() == [0, 0, 1, 1, 2, 2]
    assert prototypes(model, tmp_path / "out", "--dataset", "folder") == 2
    assert "`--data` must name the folder with train/ and val/" in capsys.readouterr().err
    (tmp_path / "data/val/red/1.png").write_bytes(b"no picture")
    assert prototypes(model, tmp_path / "out", "--dataset", "folder", "--data", str(tmp_path / "data")) == 1
    assert "red/1.png must be a whole picture" in capsys.readouterr().err


def test_class_folders_of_other_classes_are_refused(tmp_path: Path, capsys: Capture) -> None:
    write_pictures(tmp_path / "data", {**COLORS, "yellow": (190, 180, 80)})
    model = save_untrained(tmp_path / "model", tuple(COLORS))
    words = ["--dataset", "folder", "--data", str(tmp_path / "data")]
    assert prototypes(model, tmp_path / "out", *words) == 2  # both sides have one that the model does not know
    assert "must have the classes of the classifier (blue, green, red, ...: 3), got folder" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "data/val/yellow")
    assert prototypes(model, tmp_path / "out", *words) == 2
    said = capsys.readouterr().err
    assert "the same classes to train on and to test, got 4 and 3 (for example yellow on one side only)" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_names_of_more_than_ten_classes_keep_their_order(tmp_path: Path) -> None:
    for name in (f"class {number:02d}" for number in range(12)):
        for side in ("train", "val"):
            (tmp_path / "data" / side / name).mkdir(parents=True)
            Image.fromarray(np.full((12, 12, 3), 90, np.uint8)).save(tmp_path / "data" / side / name / "0.png")
    model = save_untrained(tmp_path / "model", tuple(f"class {number:02d}" for number in range(12)))
    words = ["--dataset", "folder", "--data", str(tmp_path / "data"), "--classes", "class 10", "--decisions", "1"]
    assert prototypes(model, tmp_path / "out", *words) == 0
    assert read(tmp_path / "out")[1]["classes"][10] == "class 10"


def test_a_linear_head_and_other_classes_are_refused(tmp_path: Path, capsys: Capture) -> None:
    names = generate_images(4).classes
    linear = save_untrained(tmp_path / "linear", names, head="linear")
    assert prototypes(linear, tmp_path / "out", "--dataset", "generated") == 2
    assert "must hold a classifier with a harmonic head" in capsys.readouterr().err
    other = save_untrained(tmp_path / "other", ("cat", "dog"))
    assert prototypes(other, tmp_path / "out", "--dataset", "generated") == 2
    assert "must have the classes of the classifier (cat, dog, ...: 2)" in capsys.readouterr().err
    assert prototypes(other, tmp_path / "out") == 2
    assert "`--dataset` must name the images" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--variant", "paper"], "`--variant` must be left out"),
        (["--dataset", "mnits"], "did you mean 'mnist'"),
        (["--neighbors", "0"], "`--neighbors` must be at least 1, got 0"),
        (["--decisions", "99"], "`--decisions` must be 1 to 24, got 99"),
        (["--limit", "0"], "`--limit` must be at least 1, got 0"),
        (["--classes", "ten"], "`--classes` must be one of pattern 0, pattern 1"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    trained: Path, tmp_path: Path, capsys: Capture, words: list[str], message: str
) -> None:
    assert prototypes(trained, tmp_path / "out", *words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_classifier_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert prototypes(tmp_path, tmp_path / "out") == 2
    assert "FOLDER must be the output of a finished `harmax vision`" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_it_works_without_the_laboratory(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmax.plugins.entry_points", lambda group: [])
    assert prototypes(trained, tmp_path, "--limit", "20", "--decisions", "1") == 0
    assert read(tmp_path)[1]["dataset"] == "generated"


def test_without_matplotlib_it_says_what_to_install(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert prototypes(trained, tmp_path / "out") == 2
    assert 'run pip install "harmax[figures]"' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_decisions_are_right_ones_of_every_degree_and_the_surest_mistakes() -> None:
    ratio = np.array([0.1, 0.9, 0.5, 0.3, 0.7, 0.2])
    labels = np.zeros(6, np.int64)
    winner = np.array([0, 0, 0, 0, 1, 1])
    view = PrototypeView(winner, 1 - winner, ratio, np.ones(6))
    assert choose_decisions(view, labels, 4) == [0, 1, 5, 4]
    assert choose_decisions(view, labels, 1) == [0]
    assert choose_decisions(view, np.ones(6, np.int64), 6)[:2] == [5, 4]
    assert sorted(choose_decisions(view, labels, 24)) == list(range(6))
