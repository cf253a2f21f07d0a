"""What every experiment must do; a new line in EXPERIMENTS is checked by all of these."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harmax.figures import house_style
from harmax.files import to_json, write_json
from harmax_lab.experiments import EXPERIMENTS, run
from harmax_lab.kit.claims import VERDICTS
from harmax_lab.kit.experiment import PROFILES, Experiment
from harmax_lab.kit.published import read_rows, write_rows
from harmax_lab.kit.store import CELL_NAME, CellResult, Run
from harmax_lab.report.svg import to_svg

AnyExperiment = Experiment[Any, Any]
TRAINED = [name for name, experiment in EXPERIMENTS.items() if experiment.source is None]
VIEWS = [name for name in EXPERIMENTS if name not in TRAINED]
COSTS = ("waste", "cost")  # depend on the machine and on what was stacked together: the price, not the result


@pytest.fixture(scope="module", params=list(EXPERIMENTS))
def experiment(request: pytest.FixtureRequest) -> AnyExperiment:
    return EXPERIMENTS[request.param]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, so that the views find the runs of their source."""
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture(scope="module")
def smoke(experiment: AnyExperiment, folder: Path) -> Run:
    return run(experiment, smoke=True, folder=folder)


def assert_same(one: dict[str, CellResult], other: dict[str, CellResult]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        for kind in ("curves", "arrays"):
            left, right = getattr(one[name], kind), getattr(other[name], kind)
            assert left.keys() == right.keys()
            for key in left:
                np.testing.assert_array_equal(left[key], right[key], err_msg=f"{name} {key}")
        left, right = ({k: v for k, v in found[name].metrics.items() if k not in COSTS} for found in (one, other))
        assert to_json(left) == to_json(right)


def test_its_name_is_its_key_and_its_claims_differ(experiment: AnyExperiment) -> None:
    assert EXPERIMENTS[experiment.name] is experiment
    ids = [claim.id for claim in experiment.claims]
    assert ids
    assert len(set(ids)) == len(ids)


def test_its_profiles_are_different_runs_whose_specs_survive_json(experiment: AnyExperiment) -> None:
    assert tuple(experiment.profiles) == PROFILES
    keys = set()
    for spec in experiment.profiles.values():
        keys.add(experiment.key(spec))
        assert experiment.load_spec(json.loads(to_json(asdict(spec)))) == spec
    assert len(keys) == len(PROFILES)


def test_its_cells_have_different_names_that_are_safe_on_disk(experiment: AnyExperiment) -> None:
    for spec in experiment.profiles.values():
        names = [cell.name for cell in experiment.work.cells(spec)]
        assert names
        assert len(set(names)) == len(names)
        assert all(CELL_NAME.fullmatch(name) and len(name) < 200 for name in names)


def test_other_seeds_change_the_cells(experiment: AnyExperiment) -> None:
    cells = experiment.work.cells(experiment.resolve("smoke", [3, 11]))
    assert {cell.seed for cell in cells} == {3, 11}


def test_smoke_runs_end_to_end(experiment: AnyExperiment, smoke: Run) -> None:
    assert not smoke.failed
    assert not smoke.pending
    assert smoke.summary is not None
    verdicts = smoke.summary["verdicts"]
    assert [verdict["claim"] for verdict in verdicts] == [claim.id for claim in experiment.claims]
    assert all(verdict["verdict"] in VERDICTS and verdict["sentence"] for verdict in verdicts)
    for table in smoke.summary["tables"]:
        assert table["rows"]
        assert len({tuple(row) for row in table["rows"]}) == 1


def test_nothing_finished_is_computed_again(experiment: AnyExperiment, smoke: Run) -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("computed again")

    work = replace(experiment.work, run_cells=refuse)
    source = experiment.source and replace(experiment.source, work=work)
    again = run(replace(experiment, work=work, source=source), smoke=True, folder=smoke.folder.parents[1])
    assert again.folder == smoke.folder
    assert_same(again.results, smoke.results)


@pytest.mark.parametrize("experiment", TRAINED, indirect=True)
def test_an_interrupted_run_resumes_to_identical_numbers(experiment: AnyExperiment, smoke: Run, tmp_path: Path) -> None:
    def interrupted(spec: Any, cells: Any, context: Any) -> Iterator[Any]:
        yield next(iter(experiment.work.run_cells(spec, cells, context)))
        raise KeyboardInterrupt

    # A few cells tell, and that they come out as among all the others is part of the contract.
    # Claims and tables are about all of them.
    work = replace(experiment.work, cells=lambda spec: experiment.work.cells(spec)[:4])
    few = replace(experiment, work=work, claims=(), tables=lambda results: ())
    with pytest.raises(KeyboardInterrupt):
        run(replace(few, work=replace(work, run_cells=interrupted)), smoke=True, folder=tmp_path)
    resumed = run(few, smoke=True, folder=tmp_path)
    assert resumed.folder.name == smoke.folder.name
    assert not resumed.pending
    assert_same(resumed.results, {name: smoke.results[name] for name in resumed.results})


@pytest.mark.parametrize("experiment", VIEWS, indirect=True)
def test_a_view_comes_after_its_source_and_has_its_profiles(experiment: AnyExperiment) -> None:
    assert experiment.source is not None
    order = list(EXPERIMENTS)
    assert order.index(experiment.source.name) < order.index(experiment.name)
    assert EXPERIMENTS[experiment.source.name] is experiment.source
    assert experiment.profiles == experiment.source.profiles
    assert experiment.work is experiment.source.work


def test_figures_come_from_stored_results_alone(experiment: AnyExperiment, smoke: Run) -> None:
    spec = experiment.load_spec(smoke.config["spec"])
    with house_style():
        pictures = experiment.draw(spec, experiment.by_cell(spec, smoke.results))
        assert pictures
        for name, picture in pictures.items():
            assert CELL_NAME.fullmatch(name)
            assert picture.caption
            axes = picture.figure.axes
            alone = {axes[0].get_title(loc=place) for place in ("left", "center")} if len(axes) == 1 else {""}
            assert picture.figure.get_suptitle() or any(alone), f"{name} must say in its title what it shows"
            svg = to_svg(picture.figure, name)
            assert svg.count("<path") > 10


@pytest.mark.parametrize("kept", [0, 1])
def test_missing_cells_are_no_error(experiment: AnyExperiment, smoke: Run, kept: int) -> None:
    spec = experiment.load_spec(smoke.config["spec"])
    some = dict(list(experiment.by_cell(spec, smoke.results).items())[:kept])
    summary = experiment.summarize(spec, some)
    assert [verdict.claim for verdict in summary.verdicts] == [claim.id for claim in experiment.claims]
    to_json(asdict(summary))
    with house_style():
        experiment.draw(spec, some)


def test_published_rows_give_the_same_verdicts_and_tables(
    experiment: AnyExperiment, smoke: Run, tmp_path: Path
) -> None:
    spec = experiment.load_spec(smoke.config["spec"])
    results = experiment.results(spec, experiment.by_cell(spec, smoke.results))
    write_rows(experiment, results, tmp_path)
    write_json(tmp_path / "summary.json", experiment.summary_of(smoke))
    again = read_rows(experiment, tmp_path)
    assert list(again) == list(results)
    assert to_json(asdict(experiment.judge(again))) == to_json(asdict(experiment.judge(results)))
