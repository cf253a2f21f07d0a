"""Run folders of the laboratory as sources of the library's commands `prototypes` and `geometry`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from harmax.cli.main import main
from harmax.data.images import load_images
from harmax.data.words import SAMPLE_PAIRS
from harmax_lab.experiments import run
from harmax_lab.kit.writer import RunWriter

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("registered")


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of `harmax run mnist --smoke`: digits."""
    return run("mnist", profile="smoke", folder=tmp_path_factory.mktemp("runs")).folder


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of `harmax run gpt2 --smoke`."""
    return run("gpt2", profile="smoke", folder=tmp_path_factory.mktemp("runs")).folder


def prototypes(folder: Path, output: Path, *words: str) -> int:
    return main(["prototypes", str(folder), "--output", str(output), "--device", "cpu", *words])


def test_one_layers_centers_and_decisions_are_those_of_its_weights(
    one_layer: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert prototypes(one_layer, tmp_path / "out", "--variant", "text_sqrt", "--neighbors", "3", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    arrays = load_file(tmp_path / "out/prototypes.safetensors")
    summary = json.loads((tmp_path / "out/prototypes.json").read_text())
    assert {name: printed[name] for name in summary} == summary
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"centers", "nearest", "decisions", "abstention"}
    assert all(Path(name).is_file() for name in printed["files"])

    cell = next(path for path in (one_layer / "cells").iterdir() if "text_sqrt,head=harmonic,seed=0" in path.name)
    centers = load_file(cell / "arrays.safetensors")["weight"].reshape(10, 64).astype(np.float64)
    np.testing.assert_array_equal(arrays["centers"], centers)
    train, test = (load_images("digits", split) for split in ("train", "test"))
    far_train, far_test = (
        np.linalg.norm(side.pixels.reshape(-1, 1, 64) / 255 - centers, axis=2) for side in (train, test)
    )
    order = far_test.argsort(1)
    np.testing.assert_array_equal(arrays["test/winner"], order[:, 0])
    np.testing.assert_array_equal(arrays["test/runner_up"], order[:, 1])
    np.testing.assert_allclose(arrays["test/winner_distance"], far_test.min(1), rtol=1e-5)
    np.testing.assert_array_equal(arrays["nearest/image"], far_train.argsort(0)[:3].T)
    np.testing.assert_array_equal(arrays["nearest/label"], train.labels[far_train.argsort(0)[:3].T])
    metrics = json.loads((cell / "metrics.json").read_text())
    assert summary["test_accuracy"] == pytest.approx(metrics["test_accuracy"])
    assert (summary["exponent"], summary["dataset"], summary["one_layer"]) == (8.0, "digits", True)
    assert summary["accuracy_at_coverage"]["ratio"]["1"] == summary["test_accuracy"]
    assert summary["accuracy_at_coverage"]["ratio"]["0.5"] > summary["test_accuracy"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--variant", "author"], "did you mean 'authors'?"),
        (["--dataset", "mnist"], "`--dataset` must be one of digits, got 'mnist'"),
        (["--classes", "ten"], "`--classes` must be one of 0, 1, 2"),
    ],
)
def test_what_a_run_of_mnist_does_not_have_is_refused(
    one_layer: Path, tmp_path: Path, capsys: Capture, words: list[str], message: str
) -> None:
    assert prototypes(one_layer, tmp_path / "out", *words) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_runs_of_other_experiments_are_refused(tmp_path: Path, one_layer: Path, capsys: Capture) -> None:
    config = {"experiment": "toy_cases", "version": 1, "profile": "smoke", "spec": {}, "overrides": {}, "cells": {}}
    other = RunWriter(tmp_path, config).folder
    assert prototypes(other, tmp_path / "out") == 2
    assert "got a run of `toy_cases`" in capsys.readouterr().err
    assert main(["geometry", str(one_layer)]) == 2
    assert "MODEL must hold a causal language model, got a run of `mnist`" in capsys.readouterr().err


def test_a_damaged_run_folder_is_named(one_layer: Path, tmp_path: Path, capsys: Capture) -> None:
    moved = shutil.copytree(one_layer, tmp_path / "mnist/elsewhere")
    assert prototypes(moved, tmp_path / "out") == 1
    assert f"{moved} must be a whole run folder" in capsys.readouterr().err
    (moved / "config.json").write_text("{")
    assert prototypes(moved, tmp_path / "out") == 1
    said = capsys.readouterr().err
    assert f"{moved} must be a whole run folder" in said
    assert "config.json cannot be read" in said


def test_a_damaged_model_folder_is_no_run_folder(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.json").write_text("{")
    assert main(["geometry", str(tmp_path)]) == 2
    assert "MODEL must be one that AutoModelForCausalLM loads" in capsys.readouterr().err


def test_geometry_shows_what_a_run_of_gpt2_stores(language: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["--layers", "1", "--json", "--figures", str(tmp_path)]
    assert main(["geometry", str(language), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pairs"], sorted(found["tasks"])) == ("stored", sorted(SAMPLE_PAIRS))
    assert [model["name"] for model in found["models"]] == ["standard", "harmonic"]
    arms = {arm: load_file(language / f"cells/arm={arm},seed=0/arrays.safetensors") for arm in ("standard", "harmonic")}
    for model in found["models"]:
        losses = arms[model["name"]]["layers/capitalize/1/losses"]
        assert model["places"]["layer 1"]["capitalize"]["median_loss"][0] == pytest.approx(np.median(losses))
    ratio = found["ratios"][0]["places"]["embedding"]["capitalize"][0]
    medians = [np.median(arms[arm]["parallelograms/capitalize/losses"]) for arm in ("harmonic", "standard")]
    assert ratio == pytest.approx(medians[0] / medians[1], rel=1e-5)
    assert (tmp_path / "capitalize_steps.png").is_file()
    assert main(["geometry", str(language), "--tasks", "capitalize"]) == 0
    assert "harmonic / standard" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "2"], "`--layers` must be among those that standard stores (1), got 2"),
        (["--tasks", "antonym"], "`--tasks` must be among those that standard stores"),
    ],
)
def test_measures_that_a_run_does_not_store_are_refused(
    language: Path, capsys: Capture, words: list[str], message: str
) -> None:
    assert main(["geometry", str(language), *words]) == 2
    assert message in capsys.readouterr().err
