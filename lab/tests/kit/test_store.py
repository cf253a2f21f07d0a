"""Run folders survive crashes, damage and odd numbers."""

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harmax import files
from harmax.environment import environment
from harmax.errors import DamagedError, MissingExtraError
from harmax.files import from_json, to_json, write_atomically
from harmax_lab.kit import store
from harmax_lab.kit.store import CellResult, Run, open_runs, spec_hash
from harmax_lab.kit.writer import RunWriter


def create(root: Path, experiment: str = "demo", **spec: object) -> RunWriter:
    cells = {"seed=0": {"seed": 0}, "seed=1": {"seed": 1}}
    return RunWriter(root, config_of(experiment, {"steps": 3, **spec}, cells))


def config_of(experiment: str, spec: dict[str, object], cells: dict[str, dict[str, int]], **more: object) -> Any:
    fixed = {"version": 1, "profile": "quick", "overrides": {}}
    return {"experiment": experiment, "spec": spec, "cells": cells, **fixed, **more}


RESULT = CellResult(
    curves={"loss": np.linspace(1, 0, 5, dtype=np.float32)},
    arrays={"weight": np.arange(6.0).reshape(2, 3).T, "count": np.array(7), "none": np.zeros((0, 2), np.uint8)},
    metrics={"loss": 1e-12, "gap": math.nan, "bound": -math.inf, "steps": 3, "first": None},
)


def standard_json(text: str) -> object:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not standard JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_hash_depends_on_every_field_but_not_on_their_order() -> None:
    base = spec_hash("demo", 1, {"a": 1, "b": (1, 2)})
    assert base == spec_hash("demo", 1, {"b": [1, 2], "a": 1})
    others = [spec_hash("other", 1, {"a": 1, "b": (1, 2)}), spec_hash("demo", 2, {"a": 1, "b": (1, 2)})]
    others += [spec_hash("demo", 1, {"a": 2, "b": (1, 2)}), spec_hash("demo", 1, {"a": 1, "b": (2, 1)})]
    assert len({base, *others}) == 5


def test_json_stays_standard_and_comes_back() -> None:
    values = {"a": [math.inf, -math.inf, 0.1], "b": np.float32(0.5), "c": np.int64(3)}
    text = to_json(values)
    standard_json(text)
    assert from_json(text) == {"a": [math.inf, -math.inf, 0.1], "b": 0.5, "c": 3}
    assert math.isnan(from_json(to_json(math.nan)))


def test_a_text_that_would_come_back_as_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="'NaN'; store the number itself"):
        to_json({"label": "NaN"})


def test_a_cell_comes_back_as_it_was_written(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.write("seed=0", RESULT, seconds=1.5)
    found = open_runs(tmp_path).runs[0].results["seed=0"]
    for kind in ("curves", "arrays"):
        for name, array in getattr(RESULT, kind).items():
            back = getattr(found, kind)[name]
            assert back.dtype == array.dtype
            assert back.shape == array.shape
            np.testing.assert_array_equal(back, array)
    assert math.isnan(found.metrics["gap"])
    assert {**found.metrics, "gap": 0} == {**RESULT.metrics, "gap": 0}
    for file in tmp_path.rglob("*.json"):
        standard_json(file.read_text())


def test_only_finished_cells_are_read(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.write("seed=0", RESULT)
    run.write("seed=1", RESULT)
    (run.folder / "cells/seed=1/done").unlink()
    again = open_runs(tmp_path).runs[0]
    assert again.done == ["seed=0"]
    assert again.pending == ["seed=1"]
    assert list(again.results) == ["seed=0"]


@pytest.mark.parametrize("survivors", range(4))
def test_a_crash_at_any_file_leaves_the_cell_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survivors: int
) -> None:
    run = create(tmp_path)
    left = [survivors]
    real = files.os.replace

    def replace(source: str, target: Path) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        real(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        run.write("seed=0", RESULT)
    monkeypatch.undo()
    again = open_runs(tmp_path).runs[0]
    assert again.pending == ["seed=0", "seed=1"]
    assert not again.damaged
    assert not list(tmp_path.rglob("*.partial"))
    run.write("seed=0", RESULT)
    assert run.done == ["seed=0"]


def test_an_interrupted_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(handle: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_is_counted_until_the_cell_succeeds(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.fail("seed=1", "ZeroDivisionError: no")
    assert open_runs(tmp_path).runs[0].failed == {"seed=1": "ZeroDivisionError: no"}
    assert "seed=1" in run.pending
    run.write("seed=1", RESULT)
    assert not run.failed
    assert run.done == ["seed=1"]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


DAMAGES = {
    "config unparsable": (lambda run: (run / "config.json").write_text("{"), "config.json cannot be read"),
    "config not an object": (lambda run: (run / "config.json").write_text("[]"), "config.json must hold"),
    "config missing": (lambda run: (run / "config.json").unlink(), "config.json is missing"),
    "config edited": (
        lambda run: (run / "config.json").write_text((run / "config.json").read_text().replace("3", "4")),
        "belongs to demo/",
    ),
    "curves truncated": (lambda run: truncate(run / "cells/seed=0/curves.safetensors"), "curves.safetensors is not"),
    "arrays missing": (lambda run: (run / "cells/seed=0/arrays.safetensors").unlink(), "arrays.safetensors is missing"),
    "arrays changed": (
        lambda run: flip_last_byte(run / "cells/seed=0/arrays.safetensors"),
        "arrays.safetensors is not",
    ),
    "metrics unparsable": (lambda run: (run / "cells/seed=0/metrics.json").write_text("{"), "metrics.json is not"),
    "done unparsable": (lambda run: (run / "cells/seed=0/done").write_text(""), "done cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_named_and_left_alone_while_the_rest_reports(tmp_path: Path, kind: str) -> None:
    damage, reason = DAMAGES[kind]
    for experiment in ("demo", "healthy"):
        create(tmp_path, experiment).write("seed=0", RESULT)
    folder = create(tmp_path).folder
    damage(folder)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    runs = open_runs(tmp_path)
    assert len(runs.damaged) == 1
    assert folder in (runs.damaged[0].path, *runs.damaged[0].path.parents)
    assert reason in str(runs.damaged[0])
    assert [list(run.results) for run in runs.query(experiment="healthy")] == [["seed=0"]]
    assert [run.done for run in runs.query(experiment="demo")] in ([], [[]])
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_damaged_folder_is_not_run_into(tmp_path: Path) -> None:
    folder = create(tmp_path).folder
    (folder / "config.json").write_text("{")
    with pytest.raises(DamagedError, match=r"config\.json cannot be read.*move or delete it"):
        create(tmp_path)
    assert (folder / "config.json").read_text() == "{"


def test_a_folder_left_empty_by_an_early_crash_is_started_over(tmp_path: Path) -> None:
    folder = create(tmp_path).folder
    (folder / "config.json").rename(folder / ".config.partial")
    assert not open_runs(tmp_path).runs
    assert not open_runs(tmp_path).damaged
    assert create(tmp_path).pending == ["seed=0", "seed=1"]


def test_a_view_shows_its_sources_cells_and_has_a_key_of_its_own(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.write("seed=0", RESULT)
    run.fail("seed=1", "broken")
    config = config_of("look", run.config["spec"], run.cells)
    look = RunWriter(tmp_path, {**config, "source": f"demo/{run.folder.name}"})
    assert look.folder != RunWriter(tmp_path, config).folder
    again = Run.open(look.folder)
    assert (again.done, again.pending, again.failed) == (["seed=0"], ["seed=1"], {"seed=1": "broken"})
    np.testing.assert_array_equal(again.results["seed=0"].curves["loss"], RESULT.curves["loss"])
    assert not (look.folder / "cells").exists()
    flip_last_byte(run.folder / "cells/seed=0/arrays.safetensors")
    assert [damage.path.name for damage in Run.open(look.folder).damaged] == ["seed=0"]
    assert len(open_runs(tmp_path).damaged) == 1
    shutil.rmtree(run.folder)
    assert Run.open(look.folder).pending == ["seed=0", "seed=1"]


@pytest.mark.parametrize("source", ["../../etc", "demo/", "/demo/0123456789ab", 3])
def test_a_view_cannot_lead_out_of_the_folder_of_runs(tmp_path: Path, source: object) -> None:
    with pytest.raises(DamagedError, match=r"config\.json must hold"):
        RunWriter(tmp_path, config_of("look", {}, {}, source=source))


def test_query(tmp_path: Path) -> None:
    create(tmp_path, widths=(1, 2))
    create(tmp_path, widths=(3,))
    create(tmp_path, "other")
    runs = open_runs(tmp_path)
    assert len(runs) == 3
    assert len(runs.query(experiment="demo")) == 2
    assert len(runs.query(profile="full")) == 0
    assert [run.config["spec"]["widths"] for run in runs.query(widths=(3,))] == [[3]]
    with pytest.raises(ValueError, match="did you mean 'widths'"):
        runs.query(width=3)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a folder of runs"):
        open_runs(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b"])
def test_a_cell_name_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a cell's name must match"):
        RunWriter(tmp_path, config_of("demo", {}, {name: {}}))


def test_a_missing_extra_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(MissingExtraError, match=r'pip install "harmax\[run\]"'):
        create(tmp_path).write("seed=0", RESULT)


def test_the_environment_holds_no_date_and_no_path(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.add_environment(environment())
    run.add_environment(environment())
    assert len(run.environments) == 1
    assert run.environments[0]["numpy"] == np.__version__
    assert str(Path(store.__file__).parent) not in (run.folder / "env.json").read_text()
