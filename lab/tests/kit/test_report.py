"""The report is one file that says what was claimed, what was measured, and what could not be read."""

import csv
import gzip
import json
import re
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harmax.figures import Picture, house_style
from harmax_lab.experiments import EXPERIMENTS, run
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Cell, Experiment, Spec, Work, view
from harmax_lab.kit.published import ROWS
from harmax_lab.kit.report import judge_again, write_report, write_results
from harmax_lab.kit.report.results import NO_ROWS, OTHER_VERSION
from harmax_lab.kit.report.svg import to_svg
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table


@dataclass(frozen=True, kw_only=True)
class DemoSpec(Spec):
    level: int = 0
    fail: bool = False


@dataclass(frozen=True)
class DemoCell(Cell):
    seed: int


def compute(spec: DemoSpec, cells: Any, progress: Any) -> Any:
    for cell in cells:
        if spec.fail and cell.seed == 1:
            raise RuntimeError("cell <one> broke")
        yield cell, CellResult(curves={"y": np.arange(4.0) + cell.seed})


def judge(results: Results[DemoSpec, DemoCell]) -> Finding:
    return Finding(True, f"level {results.spec.level}", {})


def draw(results: Results[DemoSpec, DemoCell]) -> dict[str, Picture]:
    figure = drawing.new_figure(3, 2)
    axes = figure.subplots()
    for result in results.values():
        axes.plot(result.curves["y"])
    return {"demo_figure": Picture(figure, "A line a seed.")}


DEMO = Experiment(
    name="demo",
    title="Demo of a < b",
    figure="Fig. 0",
    claims=(
        Claim("smaller", "a < b & c", "The paper says 1.", sentences=("3.2/6",), judge=judge, seeds=2),
        Claim("checked", "Still true without d.", judge=judge, seeds=2),
    ),
    profiles={"smoke": DemoSpec(), "quick": DemoSpec(seeds=(0, 1), level=1), "full": DemoSpec(seeds=(0, 1), level=2)},
    work=Work(lambda spec: [DemoCell(seed) for seed in spec.seeds], compute),
    tables=lambda results: [Table("Numbers", ({"name": "x", "value": 1.23456e-7},))],
    figures=draw,
)


@pytest.fixture(autouse=True)
def only_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in reversed(list(EXPERIMENTS)):  # so that they come back in their order
        monkeypatch.delitem(EXPERIMENTS, name)
    monkeypatch.setitem(EXPERIMENTS, "demo", DEMO)


class Addresses(HTMLParser):
    """Collects everything a browser would fetch, and the ids that links point to."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.targets: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "data") and value:
                (self.targets if value.startswith("#") else self.fetched).append(value)
        assert tag not in ("script", "link", "iframe")


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
        ">reproduced<",
        ">holds<",
        "harmax run demo<",
        "Profile quick: 2 of 2 cells finished",
        "A line a seed.",
        "1.23e-07",
        "1 of the 1 experiments here ran with a short profile",
    ):
        assert words in text, words
    assert text.count("<svg") == 1
    assert "a < b" not in text


def test_a_claims_rule_is_told_from_the_claim_and_a_long_table_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruled = Claim("smaller", "a is less than b. Holds where the interval says so.", "Not reported.", judge=judge)
    tables = (Table("Short", ({"x": 1},) * 30), Table("Long", tuple({"x": number} for number in range(31))))
    demo = replace(DEMO, claims=(ruled,), tables=lambda results: tables)
    monkeypatch.setitem(EXPERIMENTS, "demo", demo)
    run("demo", folder=tmp_path)
    text = write_report(EXPERIMENTS.values(), tmp_path).path.read_text()
    assert "<strong>a is less than b.</strong> Holds where the interval says so." in text
    short, long = text[text.index("<h3>Short") :].split("<h3>Long")
    assert "<details>" not in short
    assert re.search("<details><summary>31 rows</summary>.*<table>.*</table></div>.*</details>", long, re.DOTALL)


def test_it_asks_for_nothing_from_outside_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    run("demo", folder=tmp_path)
    page = Addresses()
    page.feed(write_report(EXPERIMENTS.values(), tmp_path).path.read_text())
    assert [address for address in page.fetched if not address.startswith("data:")] == []
    assert page.targets
    assert {target.removeprefix("#") for target in page.targets} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


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
    page = Addresses()
    page.feed(text)
    assert len(page.ids) == len(set(page.ids))
    assert {target.removeprefix("#") for target in page.targets} <= set(page.ids)
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
    assert [damage.path for damage in report.damaged] == [own.folder]
    assert "entry-point group harmax.experiments" in report.path.read_text()


def test_full_runs_are_not_called_short(tmp_path: Path) -> None:
    assert "a short profile" not in write_report(EXPERIMENTS.values(), tmp_path).path.read_text()
    run("demo", folder=tmp_path, profile="full")
    assert "a short profile" not in write_report(EXPERIMENTS.values(), tmp_path).path.read_text()


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
    assert "1 of 2 cells finished,\n1 failed" in text
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
    assert text.count("<svg") == 2
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
    assert "not run" in text
    assert "harmax run demo" in text


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


def test_a_quick_run_does_not_replace_a_full_one_that_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "demo", replace(DEMO, profiles={**DEMO.profiles, "full": DemoSpec(level=3)}))
    run("demo", profile="full", seeds=1, folder=tmp_path / "full")
    run("demo", profile="quick", seeds=1, folder=tmp_path / "quick")
    (target,) = write_results(EXPERIMENTS.values(), tmp_path / "full", tmp_path / "results")
    published = (target / "README.md").read_text()
    assert write_results(EXPERIMENTS.values(), tmp_path / "quick", tmp_path / "results") == []
    assert (target / "README.md").read_text() == published
    assert write_results(EXPERIMENTS.values(), tmp_path / "full", tmp_path / "results") == [target]


def test_results_pages_stand_on_their_own(tmp_path: Path) -> None:
    run("demo", smoke=True, seeds=1, folder=tmp_path / "runs")
    (target,) = write_results(EXPERIMENTS.values(), tmp_path / "runs", tmp_path / "results")
    page = (target / "README.md").read_text()
    assert target.name == "demo"
    assert "harmax run demo --smoke --seeds 0," in page
    (picture,) = re.findall(r"!\[.*?\]\((.*?)\)", page)
    assert (target / picture).read_bytes().startswith(b"\x89PNG")
    for claim in DEMO.claims:
        assert claim.statement in page
    summary = json.loads((target / "summary.json").read_text())
    assert summary["cells"]["done"] == summary["cells"]["total"]


def test_every_cells_numbers_are_published_and_the_same_bytes_again(tmp_path: Path) -> None:
    made = run("demo", seeds=3, folder=tmp_path / "runs")
    name = next(iter(made.cells))
    known = made.read(name)
    made.write(
        name, replace(known, metrics={**known.metrics, "third": 1 / 3, "never": None, "choice": [1, 2], "seed": 7})
    )
    first, second = (
        write_results(EXPERIMENTS.values(), tmp_path / "runs", tmp_path / place)[0] / ROWS for place in ("one", "two")
    )
    assert first.read_bytes() == second.read_bytes()
    with gzip.open(first, "rt") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(made.cells) == 3
    assert [row["seed"] for row in rows] == ["0", "1", "2"]
    assert [row["seed, found"] for row in rows] == ["7", "", ""]
    assert (rows[0]["third"], rows[0]["never"], rows[1]["third"]) == (repr(1 / 3), "", "")
    assert "choice" not in rows[0]


def test_published_rows_are_judged_again_by_the_claims_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("demo", folder=tmp_path / "runs")
    write_results([DEMO], tmp_path / "runs", tmp_path / "results")
    page = (tmp_path / "results/demo/README.md").read_text()
    assert judge_again([DEMO], tmp_path / "results") == [tmp_path / "results/demo"]
    assert (tmp_path / "results/demo/README.md").read_text() == page
    other = Claim("larger", "a > b", judge=lambda results: Finding(False, "It is not.", {}), seeds=2)
    changed = replace(DEMO, claims=(other,), tables=lambda results: [Table("More", ({"name": "y", "value": 2.0},))])
    judge_again([changed], tmp_path / "results")
    again = (tmp_path / "results/demo/README.md").read_text()
    assert "| a > b | Not in the paper. | It is not. | **does not hold** |" in again
    assert "| y | 2 |" in again
    assert "1.23e-07" not in again
    assert again.partition("| claim |")[0] == page.partition("| claim |")[0]
    assert again.count("![") == page.count("![") > 0
    summary = json.loads((tmp_path / "results/demo/summary.json").read_text())
    assert [one["claim"] for one in summary["verdicts"]] == ["larger"]
    assert summary["tables"][0]["title"] == "More"


def published(folder: Path, *experiments: Experiment[Any, Any]) -> dict[str, tuple[str, str]]:
    """Judge again; return verdict and sentence of each claim."""
    judge_again(experiments, folder)
    page = (folder / "demo/README.md").read_text()
    stored = json.loads((folder / "demo/summary.json").read_text())["verdicts"]
    assert all(one["sentence"] in page for one in stored)
    return {one["claim"]: (one["verdict"], one["sentence"]) for one in stored}


def test_published_runs_of_another_version_decide_nothing(tmp_path: Path) -> None:
    run("demo", folder=tmp_path / "runs")
    write_results([DEMO], tmp_path / "runs", tmp_path)
    unrun = Claim("unrun", "It cannot be run.", not_run="Too large.", sentences=("3.2/6",))
    newer = replace(DEMO, version=2, claims=(*DEMO.claims, unrun))
    found = published(tmp_path, newer)
    assert found.pop("unrun") == ("not run", "Too large.")
    assert set(found.values()) == {("not decided", OTHER_VERSION)}
    look = replace(DEMO, source=replace(DEMO, version=2))
    assert set(published(tmp_path, look).values()) == {("not decided", OTHER_VERSION)}
    assert {verdict for verdict, _ in published(tmp_path, DEMO).values()} == {"reproduced"}


def test_without_rows_a_verdict_stays_as_long_as_its_statement_does(tmp_path: Path) -> None:
    run("demo", folder=tmp_path / "runs")
    write_results([DEMO], tmp_path / "runs", tmp_path)
    (tmp_path / "demo" / ROWS).unlink()
    before = published(tmp_path, DEMO)
    assert {verdict for verdict, _ in before.values()} == {"reproduced"}
    first, second = DEMO.claims
    other = replace(first, statement="a is less than b by much | or more.")
    for _ in range(2):
        assert published(tmp_path, replace(DEMO, claims=(other, second))) == {
            "smaller": ("not decided", NO_ROWS),
            "checked": before["checked"],
        }
