"""The report judges and draws the best run of each experiment, and lists what it cannot use."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from harmax.figures import house_style
from harmax_lab.experiments import EXPERIMENTS, run
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Experiment, Spec, view
from harmax_lab.kit.published import ROWS
from harmax_lab.kit.results import Results
from harmax_lab.report import write_report, write_results
from harmax_lab.report.svg import to_svg
from pages_read import Page
from planted_demo import DEMO, DemoCell, DemoSpec, draw


@pytest.fixture(autouse=True)
def only_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in reversed(list(EXPERIMENTS)):  # so that they come back in their order
        monkeypatch.delitem(EXPERIMENTS, name)
    monkeypatch.setitem(EXPERIMENTS, "demo", DEMO)


def test_it_shows_claim_paper_result_verdict_and_command(tmp_path: Path) -> None:
    run("demo", folder=tmp_path)
    report = write_report(EXPERIMENTS.values(), tmp_path)
    text = report.path.read_text()
    assert report.path == tmp_path / "report.html"
    for words in (
        "Demo of a &lt; b",
        "a &lt; b &amp; c",
        "The paper says 1.",
        "level 1",
        "this machine: reproduced<",
        "this machine: holds<",
        "harmax run demo<",
        "Profile quick: 2 of 2 cells finished",
        "A line a seed.",
        "1.23e-07",
    ):
        assert words in text, words
    assert text.count("<img") == 1
    assert "a < b" not in text


def test_a_variant_has_a_section_of_its_own_and_leaves_the_standard_run_alone(tmp_path: Path) -> None:
    run("demo", folder=tmp_path)
    run("demo", folder=tmp_path, profile="full", changes={"level": 7})
    report = write_report(EXPERIMENTS.values(), tmp_path)
    assert [section.command for section in report.sections] == [
        "harmax run demo",
        "harmax run demo --full --set level=7",
    ]
    assert [section.variant for section in report.sections] == ["", "level=7"]
    text = report.path.read_text()
    assert "Demo of a &lt; b (variant: level=7)" in text
    page = Page(report.path)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {target.removeprefix("#") for target in page.values("href", "a")} <= set(ids)
    (published,) = write_results(EXPERIMENTS.values(), tmp_path, tmp_path / "results")
    assert json.loads((published / "summary.json").read_text())["profile"] == "quick"


def test_only_a_variant_does_not_count_as_the_standard_run(tmp_path: Path) -> None:
    run("demo", folder=tmp_path, changes={"level": 7})
    standard, variant = write_report(EXPERIMENTS.values(), tmp_path).sections
    assert (standard.run, standard.judged) == (None, [])
    verdict = variant.judged[0][1]
    assert verdict.verdict == "not decided"
    assert verdict.sentence == "Settings of your own (level=7) decide no claim. With them it holds: level 7"


def test_runs_of_an_experiment_that_nobody_registered_are_named(tmp_path: Path) -> None:
    own = run(replace(DEMO, name="own"), folder=tmp_path)
    report = write_report(EXPERIMENTS.values(), tmp_path)
    assert [other.path for other in report.others] == [own.folder]
    assert "entry-point group harmax.experiments" in report.path.read_text()


def test_full_runs_are_not_called_short(tmp_path: Path) -> None:
    run("demo", folder=tmp_path, profile="full")
    assert "quick check" not in write_report(EXPERIMENTS.values(), tmp_path).path.read_text()
    run("demo", folder=tmp_path / "other")
    assert "quick check" in write_report(EXPERIMENTS.values(), tmp_path / "other").path.read_text()


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    run("demo", folder=tmp_path)
    first = write_report(EXPERIMENTS.values(), tmp_path, tmp_path / "one.html").path.read_bytes()
    assert first == write_report(EXPERIMENTS.values(), tmp_path, tmp_path / "two.html").path.read_bytes()


def test_it_takes_the_most_thorough_finished_profile(tmp_path: Path) -> None:
    run("demo", folder=tmp_path, smoke=True)
    assert write_report(EXPERIMENTS.values(), tmp_path).sections[0].command == "harmax run demo --smoke"
    run("demo", folder=tmp_path, profile="full")
    run("demo", folder=tmp_path)
    assert write_report(EXPERIMENTS.values(), tmp_path).sections[0].command == "harmax run demo --full"
    assert "level 2" in (tmp_path / "report.html").read_text()


def test_an_unfinished_profile_does_not_replace_a_finished_one(tmp_path: Path) -> None:
    run("demo", folder=tmp_path)
    full = run("demo", folder=tmp_path, profile="full")
    (full.folder / "cells/seed=1/done").unlink()
    assert write_report(EXPERIMENTS.values(), tmp_path).sections[0].command == "harmax run demo"


def test_the_command_repeats_the_seeds(tmp_path: Path) -> None:
    run("demo", folder=tmp_path, seeds=[4])
    assert write_report(EXPERIMENTS.values(), tmp_path).sections[0].command == "harmax run demo --seeds 4,"


def test_failures_are_counted_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPERIMENTS, "demo", replace(DEMO, profiles={"quick": DemoSpec(seeds=(0, 1), fail=True)}))
    run("demo", folder=tmp_path)
    report = write_report(EXPERIMENTS.values(), tmp_path)
    text = report.path.read_text()
    assert "1 of 2 cells finished, 1 failed" in text
    assert "cell &lt;one&gt; broke" in text
    assert report.to_dict()["experiments"][0]["failed"] == 1


def test_a_damaged_folder_is_named_and_the_rest_reports(tmp_path: Path) -> None:
    run("demo", folder=tmp_path)
    broken = run("demo", folder=tmp_path, profile="full")
    (broken.folder / "config.json").write_text("{")
    report = write_report(EXPERIMENTS.values(), tmp_path)
    text = report.path.read_text()
    assert report.sections[0].command == "harmax run demo"
    assert str(broken.folder) in text
    assert "config.json cannot be read" in text


@pytest.mark.parametrize("change", [{"version": 9}, {"profiles": {"quick": Spec()}}])
def test_a_run_of_another_version_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    run("demo", folder=tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "demo", replace(DEMO, **change))
    report = write_report(EXPERIMENTS.values(), tmp_path)
    assert report.sections[0].run is None
    assert "another version" in report.damaged[0].reason or "written by version 1" in report.damaged[0].reason


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Experiment[DemoSpec, DemoCell]:
    """A view of the demo, in the list of experiments."""
    made = view(
        DEMO,
        name="look",
        title="Another look",
        figure="Fig. 9",
        claims=(
            Claim("seen", "It sees.", "Nothing.", judge=lambda results: Finding(True, f"saw {len(results)} cells", {})),
        ),
        figures=lambda results: {"look_figure": draw(results)["demo_figure"]},
    )
    monkeypatch.setitem(EXPERIMENTS, "look", made)
    return made


@pytest.mark.usefixtures("look")
def test_a_view_is_drawn_from_its_sources_results(tmp_path: Path) -> None:
    run("look", folder=tmp_path)
    report = write_report(EXPERIMENTS.values(), tmp_path)
    assert [section.command for section in report.sections] == ["harmax run demo", "harmax run look"]
    text = report.path.read_text()
    assert "saw 2 cells" in text
    assert '2 of 2 cells of <a href="#demo">demo</a> finished' in text
    assert text.count("<img") == 2
    assert [target.name for target in write_results(EXPERIMENTS.values(), tmp_path, tmp_path / "results")] == [
        "demo",
        "look",
    ]
    assert (tmp_path / "results/look/look_figure.png").exists()
    assert [(tmp_path / "results" / name / ROWS).exists() for name in ("demo", "look")] == [True, True]


def test_a_view_counts_its_sources_failures_and_names_them_once(
    tmp_path: Path, look: Experiment[DemoSpec, DemoCell], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = replace(DEMO, profiles={"quick": DemoSpec(seeds=(0, 1), fail=True)})
    monkeypatch.setitem(EXPERIMENTS, "demo", failing)
    monkeypatch.setitem(EXPERIMENTS, "look", replace(look, profiles=failing.profiles, source=failing))
    run("look", folder=tmp_path)
    report = write_report(EXPERIMENTS.values(), tmp_path)
    assert [entry["failed"] for entry in report.to_dict()["experiments"]] == [1, 1]
    assert report.path.read_text().count("<summary>failed: ") == 1


def test_a_view_of_another_version_of_its_source_is_left_out(
    tmp_path: Path, look: Experiment[DemoSpec, DemoCell], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run("look", folder=tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "look", replace(look, source=replace(DEMO, version=2)))
    report = write_report(EXPERIMENTS.values(), tmp_path)
    assert report.sections[1].run is None
    (damage,) = report.damaged
    assert damage.path == made.folder
    assert f"reads the cells of {made.source}" in damage.reason


def test_an_experiment_that_never_ran_says_how_to_run_it(tmp_path: Path) -> None:
    text = write_report(EXPERIMENTS.values(), tmp_path).path.read_text()
    assert "nothing is finished on this machine: <code>harmax run demo</code>" in text
    assert "No run is finished here." in text


def test_house_style_ignores_and_restores_the_users_settings() -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 40}):
        with house_style():
            assert matplotlib.rcParams["font.size"] < 12
            svg = to_svg(draw(Results(DemoSpec(), {}))["demo_figure"].figure, "demo")
        assert matplotlib.rcParams["font.size"] == 40
    assert svg.startswith("<svg")
    assert "<metadata" not in svg
    assert not re.search(r"<svg[^>]* width=", svg)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("env.json", "{broken", "env.json cannot be read"),
        ("env.json", '{"a": 1}', "env.json must hold a list of environments"),
        ("config.json", '{"overrides": []}', "config.json must hold experiment"),
    ],
)
def test_one_damaged_run_leaves_the_others_in_the_report(tmp_path: Path, file: str, text: str, reason: str) -> None:
    good, bad = (run("demo", smoke=True, seeds=seeds, folder=tmp_path) for seeds in (1, 2))
    (bad.folder / file).write_text(text)
    report = write_report(EXPERIMENTS.values(), tmp_path)
    assert [section.run.folder for section in report.sections if section.run] == [good.folder]
    (damage,) = report.damaged
    assert damage.path == bad.folder
    assert reason in damage.reason
    assert str(bad.folder.name) in report.path.read_text()
    assert (bad.folder / file).read_text() == text


def plant(**changes: Any) -> Callable[[Path], None]:
    """Return a function that changes fields of a run's config.json."""

    def write(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return write


def unreadable(folder: Path) -> None:
    (folder / "cells/seed=0/metrics.json").unlink()
    (folder / "cells/seed=0/metrics.json").mkdir()


def nested(folder: Path) -> None:
    (folder / "config.json").write_text('{"experiment": "demo", "spec": ' + "[" * 5000 + "]" * 5000 + "}")


@pytest.mark.parametrize(
    ("damage", "place", "reason"),
    [
        (plant(overrides={"seeds": 5}), "", "config.json does not fit the experiment (TypeError"),
        (plant(profile=["quick"]), "", "config.json must hold experiment"),
        (plant(cells={"../..": {}}), "", "config.json must hold experiment"),
        (plant(cells={"seed=0": {}}), "", "config.json lists other cells than its settings have"),
        (plant(profile="full"), "", "it is of the profile full, but has the settings of quick"),
        (nested, "", "config.json"),
        (unreadable, "cells/seed=0", "metrics.json must be an ordinary file, got a folder"),
    ],
)
def test_a_damaged_run_or_cell_never_takes_the_report_down(
    tmp_path: Path, damage: Callable[[Path], None], place: str, reason: str
) -> None:
    bad = run("demo", folder=tmp_path)
    damage(bad.folder)
    report = write_report(EXPERIMENTS.values(), tmp_path)
    assert "</html>" in report.path.read_text()
    if reason:
        (found,) = report.damaged
        assert found.path == bad.folder / place
        assert reason in found.reason
        assert str(found.path) in report.path.read_text()


def test_a_cell_that_cannot_be_read_after_its_check_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = run("demo", folder=tmp_path)
    read = safetensors.numpy.load_file

    def fail(path: Path) -> Any:
        if "seed=0" in str(path):
            raise OSError(5, "Input/output error")
        return read(path)

    monkeypatch.setattr(safetensors.numpy, "load_file", fail)
    report = write_report(EXPERIMENTS.values(), tmp_path)
    (found,) = report.damaged
    assert found.path == bad.folder / "cells/seed=0"
    assert "curves.safetensors" in found.reason
    assert "Input/output error" in found.reason
    assert report.sections[0].results is not None
    assert [cell.seed for cell in report.sections[0].results] == [1]


def test_a_run_that_cannot_be_judged_gives_way_to_the_next_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, full = run("demo", folder=tmp_path), run("demo", folder=tmp_path, profile="full")

    def draw_quick(results: Results[DemoSpec, DemoCell]) -> Any:
        return draw(results) if results.spec.level == 1 else {}["absent"]

    monkeypatch.setitem(EXPERIMENTS, "demo", replace(DEMO, figures=draw_quick))
    report = write_report(EXPERIMENTS.values(), tmp_path)
    assert report.sections[0].run is not None
    assert report.sections[0].run.folder == quick.folder
    (damage,) = report.damaged
    assert damage.path == full.folder
    assert "it cannot be judged (KeyError: 'absent')" in damage.reason
    with pytest.raises(KeyError):
        write_results(EXPERIMENTS.values(), tmp_path, tmp_path / "results")


def test_runs_that_are_not_shown_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("demo", folder=tmp_path, profile="full")
    quick = run("demo", folder=tmp_path)
    stranger = run(replace(DEMO, name="stranger"), folder=tmp_path)
    report = write_report(EXPERIMENTS.values(), tmp_path)
    assert [other.path for other in report.others] == [quick.folder, stranger.folder]
    text = report.path.read_text()
    assert "2 other runs in this folder that are not shown" in text
    assert "no experiment of this name is registered" in text
    assert "this one is harmax run demo<" in text
