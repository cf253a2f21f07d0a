"""The laboratory's part of `harmax explore`: trainings, verdicts, and runs that are not whole."""

import json
import re
import shutil
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harmax.analysis import project
from harmax.cli.main import main
from harmax.inspect.explorer import ExplorerOptions, page_of, unpack
from harmax.inspect.explorer.assemble import assemble
from harmax_lab.algorithmic.runs import EXPERIMENT
from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.explorer import published_parts, verdicts
from harmax_lab.explorer.growth import shown
from harmax_lab.kit.writer import RunWriter
from planted_runs import like_the_authors

pytestmark = pytest.mark.usefixtures("registered")
Capture = pytest.CaptureFixture[str]
SMALL = ExplorerOptions(pictures=False)
MOST_BYTES = 6_000_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of which the trainings of modular addition with an MLP are finished."""
    folder, spec = tmp_path_factory.mktemp("explorer") / "runs", EXPERIMENT.profiles["smoke"]
    found = like_the_authors(spec)
    config = {"experiment": EXPERIMENT.name, "version": EXPERIMENT.version, "profile": "smoke", "overrides": {}}
    cells = {cell.name: asdict(cell) for cell in found}
    writer = RunWriter(folder, {**config, "spec": asdict(spec), "cells": cells})
    for cell, result in found.items():
        if (cell.task, cell.model) == ("modular_addition", "mlp"):
            writer.write(cell.name, result)
    return folder


@pytest.fixture
def own(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the runs, in the current folder."""
    shutil.copytree(runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def document(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="harmax-document">(.*?)</script>', path.read_text())
    assert found is not None
    return json.loads(found[1])


def test_a_folder_of_runs_is_shown_with_the_published_verdicts(own: Path, capsys: Capture) -> None:
    assert main(["explore", "--small", "--projector", "clouds"]) == 0
    found = document(own.parent / "explore.html")
    assert Counter(one["head"] for one in found["growth"]) == {"linear": 4, "harmonic": 4}
    assert {one["task_title"] for one in found["growth"]} == {"Modular addition"}
    assert found["growth"][0]["labels"] == [str(number) for number in range(31)]
    assert set(found["missing"]) == {"classifiers"}
    assert "8 of 80 trainings" in capsys.readouterr().err
    assert len(list(Path("clouds").glob("*.vectors.tsv"))) == 8


def test_dots_are_where_numpy_puts_them() -> None:
    spec = replace(EXPERIMENT.profiles["smoke"], tasks=("lattice",), protocols=("matched",), seeds=(0,))
    for cell, result in like_the_authors(spec).items():
        found = shown(cell, result)
        points = unpack(found.points) * unpack(found.units)[:, None, None]
        last = result.arrays["embedding"][-1].astype(np.float64)
        np.testing.assert_allclose(points[-1][:, :2], project(last), atol=1e-3 * np.abs(last).max())


def test_a_diverged_run_says_so() -> None:
    spec = replace(EXPERIMENT.profiles["smoke"], tasks=("lattice",), protocols=("matched",), seeds=(0,))
    cell, result = next(iter(like_the_authors(spec).items()))
    found = shown(cell, replace(result, metrics={**result.metrics, "diverged_at": 3}))
    assert found.note == "This run diverged at epoch 3."
    assert not found.epochs


@pytest.mark.parametrize("kind", ["half a cell", "damaged cell", "damaged config"])
def test_what_is_damaged_is_left_out_and_named(kind: str, own: Path, capsys: Capture) -> None:
    (folder,) = own.glob("algorithmic/*/")
    cell = next(iter((folder / "cells").iterdir()))
    if kind == "half a cell":
        (cell / "done").unlink()
    elif kind == "damaged cell":
        (cell / "arrays.safetensors").write_bytes(b"torn")
    else:
        (folder / "config.json").write_text("{")
    status = main(["explore", "--small"])
    said = capsys.readouterr().err
    found = document(own.parent / "explore.html")
    assert found["verdicts"]["claims"], "the page still has what needs no run"
    if kind == "damaged config":
        assert status == 0
        assert "config.json cannot be read" in said
        assert not found["growth"]
        assert "harmax run algorithmic" in found["missing"]["growth"]
    else:
        assert len(found["growth"]) == 7
        expected = "7 of 80 trainings" if kind == "half a cell" else "arrays.safetensors is not the file that was"
        assert expected in said
        assert any(expected in note for note in found["notes"])


def test_a_run_of_another_version_is_named(tmp_path: Path) -> None:
    version, spec = EXPERIMENT.version - 1, EXPERIMENT.profiles["smoke"]
    config = {"experiment": EXPERIMENT.name, "version": version, "profile": "smoke", "overrides": {}, "cells": {}}
    older = RunWriter(tmp_path, {**config, "spec": asdict(spec)}).folder
    (note,) = assemble(older, SMALL).document.notes
    assert str(older) in note
    assert f"written by version {version} of the experiment" in note


def test_every_claim_has_its_published_verdict() -> None:
    found = published_parts(SMALL).verdicts
    assert found is not None
    folder = verdicts.published_folder()
    assert folder is not None
    expected = sum(len(one.claims) for one in EXPERIMENTS.values())
    assert len({(claim.experiment, claim.id) for claim in found.claims}) == len(found.claims) == expected
    for name in ("toy_cases", "modular_case"):
        stored = {one["claim"]: one for one in json.loads((folder / name / "summary.json").read_text())["verdicts"]}
        for claim in (one for one in found.claims if one.experiment == name and not one.control):
            assert claim.results[0].verdict == stored[claim.id]["verdict"]
            assert claim.results[0].sentence == stored[claim.id]["sentence"]
            assert claim.places
    figures = {one.name: [figure.name for figure in one.figures] for one in found.experiments}
    assert figures["toy_cases"] == ["toy_case_1", "toy_case_2"]


def test_runs_of_a_folder_stand_behind_the_published_ones(own: Path) -> None:
    (folder,) = own.glob("algorithmic/*/")
    spec = EXPERIMENT.load_spec(json.loads((folder / "config.json").read_text())["spec"])
    summary = {"profile": "smoke", "verdicts": [{"claim": "all_finite", "verdict": "reproduced", "sentence": "Yes."}]}
    (folder / "summary.json").write_text(json.dumps({**summary, "spec": {"seeds": list(spec.seeds)}}))
    found = assemble(own, SMALL).document.verdicts
    assert found is not None
    (claim,) = (one for one in found.claims if one.id == "all_finite")
    assert [one.origin for one in claim.results] == ["published runs", "runs of this folder"]
    assert claim.results[1].verdict == "holds"  # a control, so not "reproduced"
    (folder / "summary.json").write_text('{"verdicts": 3}')
    assert any("summary.json cannot be read" in note for note in assemble(own, SMALL).document.notes)


def test_the_algorithmic_section_at_three_seeds_is_below_six_megabytes() -> None:
    spec = replace(EXPERIMENT.profiles["quick"], seeds=(0,))
    found = []
    for cell, result in like_the_authors(spec).items():
        count = len(result.arrays["embedding"][0])
        # As many snapshots as a long training has, none of which compresses.
        embedding = np.random.default_rng(0).normal(size=(51, count, 16))
        if cell.task == "permutation":
            continue  # its colors take a second each; a lattice is as large
        arrays = {"embedding": embedding, "snapshot_epoch": np.arange(51)}
        found.append(shown(cell, replace(result, arrays=arrays)))
    assert len(found) == 32
    page = page_of(replace(assemble(None, SMALL).document, growth=(*found, *found[:8])))
    empty = page_of(assemble(None, SMALL).document)
    assert len(empty) + 3 * (len(page) - len(empty)) < MOST_BYTES
