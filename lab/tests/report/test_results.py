"""Published results are small pages that stand on their own, and are judged again by the claims of today."""

import csv
import gzip
import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harmax_lab.experiments import EXPERIMENTS, run
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.published import ROWS
from harmax_lab.kit.tables import Table
from harmax_lab.report import judge_again, write_results
from harmax_lab.report.results import NO_ROWS, OTHER_VERSION
from planted_demo import DEMO, DemoSpec


@pytest.fixture(autouse=True)
def only_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in reversed(list(EXPERIMENTS)):  # so that they come back in their order
        monkeypatch.delitem(EXPERIMENTS, name)
    monkeypatch.setitem(EXPERIMENTS, "demo", DEMO)


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
        assert claim.statement in html.unescape(page)
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
