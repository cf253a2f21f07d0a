"""`harmax analyze` on a run folder with planted structures: numbers side by side, JSON, and a film."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harmax.cli.main import main
from harmax.figures import house_style
from harmax_lab.algorithmic import film, runs
from harmax_lab.algorithmic.training import RunCell, task_of
from harmax_lab.kit.store import CellResult, Run
from harmax_lab.kit.writer import RunWriter
from planted_structures import diverged, plant

MODELS = {"mlp": "MLP", "transformer": "transformer"}
Capture = pytest.CaptureFixture[str]
SOURCE = runs.EXPERIMENT
SPEC = replace(SOURCE.profiles["quick"], seeds=(0, 52), tasks=("lattice", "modular_addition", "permutation"))


def store(folder: Path, profile: str, results: dict[RunCell, CellResult]) -> Run:
    spec = SPEC if profile == "quick" else replace(SPEC, mlp_epochs=7000)
    cells = {cell.name: asdict(cell) for cell in SOURCE.work.cells(spec)}
    config = {"experiment": SOURCE.name, "version": SOURCE.version, "profile": profile, "overrides": {}}
    run = RunWriter(folder, {**config, "spec": asdict(spec), "cells": cells})
    for cell, result in results.items():
        run.write(cell.name, result)
    return run


def clean(cell: RunCell) -> float:
    return 0.05 if cell.head == "harmonic" else 1.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    lost = ("matched", "lattice", ("transformer", "harmonic"), 52)
    results = {
        cell: diverged(result) if (cell.protocol, cell.task, cell.arm, cell.seed) == lost else result
        for cell, result in plant(SOURCE.work.cells(SPEC), clean).items()
    }
    store(path, "quick", results)
    return path


@pytest.fixture
def analyze(folder: Path) -> Callable[..., int]:
    return lambda *arguments: main(["analyze", "--folder", str(folder), *map(str, arguments)])


def test_standard_and_harmonic_stand_side_by_side(analyze: Callable[..., int], capsys: Capture) -> None:
    assert analyze("--task", "modular_addition", "--model", "mlp", "--protocol", "matched") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "Modular addition, matched protocol"
    assert "standard MLP, 2 runs" in lines[2]
    assert "harmonic MLP, 2 runs" in lines[2]
    rows = {cells[0].strip(): cells[1:] for line in lines if (cells := line.strip("│").split("│"))[1:]}
    standard, harmonic = (float(cell.split()[0]) for cell in rows["circle residual"])
    assert harmonic < 0.01 < 0.3 < standard
    assert [cell.strip() for cell in rows["clean"]] == ["0 of 2", "2 of 2"]
    assert {"explained variance", "participation ratio", "roundness", "frequency"} <= set(rows)


def test_without_filters_every_task_protocol_and_model_is_shown(analyze: Callable[..., int], capsys: Capture) -> None:
    assert analyze() == 0
    printed = capsys.readouterr()
    assert printed.out.count("protocol") == 3 * 2 * 2
    assert "harmonic transformer, 2 runs, 1 diverged" in printed.out
    assert "Klein four V4 (normal) (2 of 2)" in printed.out
    assert "quick profile" in printed.err


def test_json_has_every_run_and_null_for_a_diverged_one(analyze: Callable[..., int], capsys: Capture) -> None:
    assert analyze("--task", "lattice", "--seed", "52", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"] == "quick"
    assert len(found["runs"]) == 2 * 4
    assert {run["seed"] for run in found["runs"]} == {52}
    (lost,) = (run for run in found["runs"] if run["measures"] is None)
    assert (lost["protocol"], lost["model"], lost["head"]) == ("matched", "transformer", "harmonic")
    for run in found["runs"]:
        if run["head"] == "harmonic" and run is not lost:
            assert run["measures"]["lattice residual"] < 0.01


def test_the_most_thorough_run_is_taken_unless_a_profile_is_named(tmp_path: Path, capsys: Capture) -> None:
    store(tmp_path, "quick", plant(SOURCE.work.cells(SPEC)[:4], clean))
    store(tmp_path, "full", plant(SOURCE.work.cells(SPEC)[:2], clean))
    for arguments, profile, count in (([], "full", 2), (["--profile", "quick"], "quick", 4)):
        assert main(["analyze", "--folder", str(tmp_path), "--json", *arguments]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["profile"], len(found["runs"])) == (profile, count)


@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_a_film_has_a_frame_a_snapshot_and_they_differ(
    analyze: Callable[..., int], tmp_path: Path, capsys: Capture, model: str
) -> None:
    output = tmp_path / "new" / "film.GIF"
    assert analyze("--task", "lattice", "--model", model, "--animate", output) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{output}\n"
    assert "drawing 5 frames" in printed.err
    assert f"standard {MODELS[model]}: median of 2 runs is seed" in printed.err
    with Image.open(output) as image:
        assert image.n_frames == 5
        assert image.info["loop"] == 0
        frames = []
        for index in range(image.n_frames):
            image.seek(index)
            frames.append(np.asarray(image.convert("RGB"), dtype=int))
    assert all(np.abs(one - other).max() > 100 for one, other in pairwise(frames))
    assert list(output.parent.iterdir()) == [output]


def test_the_axes_of_a_film_do_not_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[np.ndarray] = []
    monkeypatch.setattr(film, "draw_bubbles", lambda axes, xy, *rest: drawn.append(xy))
    cell = next(cell for cell in SOURCE.work.cells(SPEC) if cell.task == "lattice" and cell.arm == ("mlp", "harmonic"))
    result = plant([cell], clean)[cell]
    x, y = task_of(cell).structure.values.T
    # Wide along x at the end and along y at the start: axes found for each frame alone would change places.
    frames = [np.stack([x * a, y * b, 0 * x], axis=1).astype(np.float32) for a, b in ((1, 3), (2, 1))]
    arrays = {"embedding": np.stack(frames), "snapshot_epoch": np.array([0, 40])}
    turning = CellResult(result.curves, arrays, result.metrics)
    with house_style():
        assert len(list(film.draw_frames(task_of(cell), {cell.arm: turning}))) == 2
    for xy in drawn:
        assert abs(np.corrcoef(xy[:, 0], x)[0, 1]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "latice"], "did you mean 'lattice'?"),
        (
            ["--task", "genealogy"],
            "`--task` must be one that has finished, lattice, modular_addition, permutation, got",
        ),
        (["--model", "mpl"], "did you mean 'mlp'?"),
        (["--protocol", "author"], "did you mean 'authors'?"),
        (["--profile", "ful"], "did you mean 'full'?"),
        (["--profile", "full"], "make one with `harmax run algorithmic --full`"),
        (["--seed", "7"], "`--seed` must be one that has finished, 0, 52, got 7"),
        (
            ["--animate", "film.avi", "--task", "lattice"],
            "`--animate` must end in .gif, .png, .html or .mp4, got 'film.avi'",
        ),
        (["--animate", "film.gif"], "`--animate` must come with `--task`"),
        (["--animate", "film.gif", "--task", "lattice", "--json"], "must not come together"),
        (
            [
                "--animate",
                "f.gif",
                "--task",
                "lattice",
                "--model",
                "transformer",
                "--protocol",
                "matched",
                "--seed",
                "52",
            ],
            "the harmonic transformer diverged; take another seed",
        ),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    analyze: Callable[..., int],
    arguments: list[str],
    message: str,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert analyze(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not list(tmp_path.iterdir())


def test_a_folder_without_such_runs_says_how_to_make_one(tmp_path: Path, capsys: Capture) -> None:
    assert main(["analyze", "--folder", str(tmp_path)]) == 2
    assert "make one with `harmax run algorithmic`" in capsys.readouterr().err
    assert main(["analyze", "--folder", str(tmp_path / "none")]) == 2
    assert "must be a folder of runs" in capsys.readouterr().err


def test_a_film_of_half_a_pair_is_refused(tmp_path: Path, capsys: Capture) -> None:
    standard = [cell for cell in SOURCE.work.cells(SPEC) if cell.task == "lattice" and cell.arm == ("mlp", "linear")]
    store(tmp_path, "quick", plant(standard[:1], clean))
    assert main(["analyze", "--folder", str(tmp_path), "--task", "lattice", "--animate", str(tmp_path / "a.gif")]) == 2
    assert "must find a standard and a harmonic mlp" in capsys.readouterr().err


def test_the_audit_needs_no_runs_and_says_how_much_leaks(capsys: Capture) -> None:
    assert main(["analyze", "--audit"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "Modular addition" in line]
    assert ["57.4%" in lines[0], "56%" in lines[0], " 0.0%" in lines[1]] == [True] * 3
    assert main(["analyze", "--audit", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["leak"] for row in rows if row["protocol"] == "matched"} == {0}
