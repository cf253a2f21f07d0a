"""The page of the report: published verdicts first, filters, and text that stays text."""

import base64
import hashlib
import html
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harmax.figures import Picture
from harmax_lab.experiments import EXPERIMENTS, run
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.tables import Table
from harmax_lab.report import write_report, write_results
from harmax_lab.report.shipped import published_folder, read_published
from pages_read import Page
from planted_demo import DEMO, DemoSpec, draw, judge

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&lt;[a](javascript:b) {{ 7*7 }}"


@pytest.fixture(autouse=True)
def only_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in reversed(list(EXPERIMENTS)):  # so that they come back in their order
        monkeypatch.delitem(EXPERIMENTS, name)
    monkeypatch.setitem(EXPERIMENTS, "demo", DEMO)


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with the published results of a full run."""
    run("demo", folder=tmp_path / "full", profile="full")
    write_results([DEMO], tmp_path / "full", tmp_path / "shelf")
    return tmp_path / "shelf"


def page_of(folder: Path, shelf: Path | None = None) -> Page:
    folder.mkdir(exist_ok=True)
    return Page(write_report(EXPERIMENTS.values(), folder, published=shelf or folder / "nothing").path)


def change(shelf: Path, how: Callable[[dict[str, Any]], None]) -> None:
    """Change the published summary of the demo."""
    path = shelf / "demo/summary.json"
    summary = json.loads(path.read_text())
    how(summary)
    path.write_text(json.dumps(summary))


def test_published_verdicts_come_first_and_those_of_this_machine_stand_beside_them(tmp_path: Path, shelf: Path) -> None:
    def contradict(summary: dict[str, Any]) -> None:
        summary["verdicts"][1]["verdict"] = "not reproduced"

    change(shelf, contradict)
    run("demo", folder=tmp_path / "runs")
    page = page_of(tmp_path / "runs", shelf)
    assert ">reproduced<" in page.text
    assert ">same here<" in page.text
    assert ">does not hold<" in page.text
    assert ">this machine: holds<" in page.text
    assert "They decide 2 claims: 1 as published, 1 otherwise." in page.text
    assert page.text.index("level 2") < page.text.index("level 1")
    assert [found["class"].split()[1] for found in page.of_class("version")] == ["published", "here"]
    assert [source.partition(";")[0] for source in page.values("src", "img")] == [
        "data:image/png",
        "data:image/svg+xml",
    ]
    assert "Tables: 1 published, 1 of this machine" in page.text
    assert "this machine, quick check" in page.text


def test_the_tally_counts_published_verdicts_of_the_paper_and_of_controls(tmp_path: Path, shelf: Path) -> None:
    own = [Claim(f"own{number}", "Of ours.", judge=judge) for number in range(4)]
    paper = [replace(DEMO.claims[0], id=f"paper{number}") for number in range(6)]
    EXPERIMENTS["demo"] = replace(DEMO, claims=(*own, *paper))
    given = {"own0": "reproduced", "own1": "not reproduced", "paper0": "reproduced", "paper1": "not reproduced"}
    given |= {"paper2": "not reproduced", "paper3": "not run", "paper4": "not decided"}
    verdicts = [{"claim": claim, "verdict": verdict, "sentence": "So."} for claim, verdict in given.items()]
    change(shelf, lambda summary: summary.update(verdicts=verdicts))
    text = " ".join(re.sub("<[^>]+>", " ", page_of(tmp_path / "runs", shelf).text.partition("<main>")[2]).split())
    assert "6 claims of the paper 1 reproduced 2 not reproduced 2 not decided 1 not run" in text
    assert "4 controls that the paper does not have 1 hold 1 do not hold 2 not decided" in text


@pytest.mark.parametrize("profile", ["smoke", "quick"])
def test_short_runs_are_called_what_they_are(tmp_path: Path, profile: str) -> None:
    run("demo", smoke=profile == "smoke", folder=tmp_path / "runs")
    assert f"all of them as {profile} checks." in page_of(tmp_path / "runs").text


def test_claims_that_a_short_run_leaves_open_are_counted_once(tmp_path: Path) -> None:
    few = tuple(
        Claim(f"c{number}", f"Claim {number}.", judge=judge, seeds=9, sentences=("3.2/6",)) for number in range(7)
    )
    EXPERIMENTS["demo"] = replace(DEMO, claims=few)
    run("demo", folder=tmp_path / "runs")
    page = page_of(tmp_path / "runs")
    assert "7 claims stay open here. Reasons: few seeds (7)." in page.text
    assert "<summary>7 claims not decided: No run of this claim is published yet.</summary>" in page.text
    assert page.of_class("here-tag") == []


def test_claims_sections_and_contents_carry_what_filters_need(tmp_path: Path, shelf: Path) -> None:
    page = page_of(tmp_path / "runs", shelf)
    claims = page.of_class("claim")
    assert [found["data-verdict"] for found in claims] == ["reproduced", "reproduced"]
    assert [found["data-kind"] for found in claims] == ["paper", "control"]
    assert page.values("data-experiment", "section") == page.values("data-experiment", "li") == ["demo"]
    assert page.values("value", "option") == ["", "demo", "", "paper", "control"]
    boxes = [found["value"] for tag, found in page.elements if tag == "input" and found.get("name") == "verdict"]
    assert boxes == ["reproduced", "not reproduced", "not decided", "not run"]


def test_ids_are_unique_and_links_lead_somewhere(tmp_path: Path, shelf: Path) -> None:
    figures = ("demo_figure", "smaller", "contents")
    EXPERIMENTS["demo"] = replace(DEMO, figures=lambda results: dict.fromkeys(figures, draw(results)["demo_figure"]))
    made = run("demo", folder=tmp_path / "runs")
    (tmp_path / "runs/demo/0123456789ab").mkdir()
    (tmp_path / "runs/demo/0123456789ab/config.json").write_text("{")
    page = page_of(made.folder.parents[1], shelf)
    ids = page.values("id")
    assert Counter(ids).most_common(1)[0][1] == 1
    targets = [address.removeprefix("#") for address in page.values("href")]
    assert {"demo", "page.damaged"} <= set(targets) <= set(ids)
    assert set(page.values("data-enlarge")) <= set(ids)


def test_it_fetches_nothing_and_only_its_own_script_may_run(tmp_path: Path, shelf: Path) -> None:
    run("demo", folder=tmp_path / "runs")
    page = page_of(tmp_path / "runs", shelf)
    assert all(source.startswith("data:image/") for source in page.values("src"))
    assert not {"link", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert not re.search(r"url\(|@import|https?://", page.text)
    (policy,) = (value for value in page.values("content", "meta") if "default-src" in value)
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_text_of_runs_and_of_published_results_stays_text(tmp_path: Path, shelf: Path) -> None:
    def spoil(summary: dict[str, Any]) -> None:
        summary["profile"] = HOSTILE
        summary["verdicts"][0]["sentence"] = HOSTILE
        summary["tables"] = [{"title": HOSTILE, "rows": [{HOSTILE: HOSTILE}]}]

    change(shelf, spoil)
    pages = shelf / "demo/README.md"
    pages.write_text(pages.read_text().replace("A line a seed.", HOSTILE))
    spoken = replace(DEMO.claims[0], judge=lambda results: Finding(True, HOSTILE, {}))
    EXPERIMENTS["demo"] = replace(
        DEMO,
        claims=(spoken, DEMO.claims[1]),
        tables=lambda results: [Table(HOSTILE, ({HOSTILE: HOSTILE},))],
        figures=lambda results: {"demo_figure": Picture(draw(results)["demo_figure"].figure, HOSTILE)},
        profiles={"quick": DemoSpec(seeds=(0, 1)), "smoke": DemoSpec()},
    )
    made = run("demo", folder=tmp_path / "runs")
    (made.folder / "env.json").write_text(json.dumps([{"harmax": HOSTILE, "commit": HOSTILE}]))
    other = tmp_path / "runs/demo" / "<b>other"
    other.mkdir()
    (other / "config.json").write_text("{")
    page = page_of(tmp_path / "runs", shelf)
    assert page.text.count("onerror") > 8
    assert page.values("onerror") == []
    assert page.count("script") == 1
    assert page.count("img") == 2
    assert "<b>other" not in page.text
    assert html.escape("<b>other") in page.text
    assert "{{ 7*7 }}" in page.text
    target = write_results(EXPERIMENTS.values(), tmp_path / "runs", tmp_path / "pages")[0]
    written = (target / "README.md").read_text()
    assert "<img" not in written
    assert "[a](javascript:b)" not in written
    again = page_of(tmp_path / "runs", tmp_path / "pages")
    assert html.escape(HOSTILE).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in again.text


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("summary.json", b"{", "summary.json cannot be read"),
        ("summary.json", b"[1]", "summary.json is no summary"),
        ("summary.json", b'{"profile": "full", "verdicts": [{"claim": "a", "verdict": "yes"}]}', "got &#39;yes&#39;"),
        ("demo_figure.png", b"GIF89a", "demo_figure.png must be a PNG"),
        ("README.md", b"\xff\xfe", "README.md cannot be read"),
    ],
)
def test_damaged_published_results_are_listed(
    tmp_path: Path, shelf: Path, file: str, content: bytes, reason: str
) -> None:
    (shelf / "demo" / file).write_bytes(content)
    run("demo", folder=tmp_path / "runs")
    page = page_of(tmp_path / "runs", shelf)
    assert reason in page.text.partition('id="page.damaged"')[2]
    assert str(shelf / "demo") in page.text
    assert "this machine: quick check, 2 of 2 cells finished" in page.text


def test_a_figure_of_many_points_is_a_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmax_lab.report.page.LARGE_SVG", 100)
    run("demo", folder=tmp_path / "runs")
    (source,) = page_of(tmp_path / "runs").values("src", "img")
    assert source.startswith("data:image/png;base64,")


def test_published_results_of_every_experiment_can_be_read_and_are_small() -> None:
    folder = published_folder()
    names = sorted(path.parent.name for path in folder.glob("*/summary.json"))
    assert len(names) > 20
    for name in names:
        known, damaged = read_published(name, folder)
        assert damaged == []
        assert known is not None
        assert len(known.pictures) == len(list((folder / name).glob("*.png")))
        assert all(picture.caption for picture in known.pictures.values())
        assert known.made.startswith("harmax ")
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 10e6


def test_published_results_travel_in_the_wheel() -> None:
    project = tomllib.loads((published_folder().parent / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {published_folder().name: "harmax_lab/results"}
