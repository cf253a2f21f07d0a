"""Which cosets: planted ones are named and counted, noise is not taken for them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harmax.analysis import cycles, subgroups
from harmax.figures import house_style
from harmax_lab.algorithmic import cosets, runs
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, NOT_RUN, REPRODUCED, Verdict
from harmax_lab.kit.experiment import Summary
from harmax_lab.kit.store import CellResult
from harmax_lab.report.svg import to_svg
from planted_structures import diverged, planted

SPEC = replace(runs.EXPERIMENT.profiles["full"], seeds=tuple(range(20)), protocols=("authors",), tasks=("permutation",))
NOISE = 20.0
SEEN = {"mlp": "Klein four V4", "transformer": "S3"}


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmax_lab.algorithmic.measures.DRAWS", 99)


def make(subgroup: Callable[[RunCell], str], noise: Callable[[RunCell], float]) -> dict[RunCell, CellResult]:
    return {
        cell: planted(cell.task, cell.protocol, noise=noise(cell), seed=cell.seed, subgroup=subgroup(cell))
        for cell in runs.cells(SPEC)
    }


def as_in_the_paper() -> dict[RunCell, CellResult]:
    return make(lambda cell: SEEN[cell.model], lambda cell: 0.1 if cell.head == "harmonic" else NOISE)


def verdicts(summary: Summary) -> dict[str, Verdict]:
    return {verdict.claim: verdict for verdict in summary.verdicts}


CLAIMS = ("klein", "stabilizer")
EXACT = ("number_of_cosets", "normal_subgroups")


def test_the_papers_cosets_are_found_and_counted() -> None:
    summary = cosets.EXPERIMENT.summarize(SPEC, as_in_the_paper())
    found = verdicts(summary)
    assert {found[claim].verdict for claim in CLAIMS} == {REPRODUCED}
    assert found["klein"].numbers["clean"] == found["stabilizer"].numbers["plane_S3"] == 20
    for table in summary.tables:
        rows = {row["model"]: row for row in table.rows}
        assert rows["harmonic MLP"]["Klein four V4"] == rows["harmonic MLP"]["pass the test"] == 20
        assert rows["harmonic transformer"]["S3"] == 20
        assert rows["standard MLP"]["runs with p < 0.05"] <= 5
        for row in table.rows:
            assert sum(row[kind] for kind in cosets.KINDS) == row["runs with p < 0.05"]


def test_the_same_under_the_matched_protocol_is_a_control() -> None:
    spec = replace(SPEC, protocols=("matched",))
    results = {
        cell: planted(cell.task, "matched", noise=0.1, seed=cell.seed, subgroup=SEEN[cell.model])
        for cell in runs.cells(spec)
    }
    found = verdicts(cosets.EXPERIMENT.summarize(spec, results))
    assert [claim.id for claim in cosets.CLAIMS if claim.control] == ["klein_matched", "stabilizer_matched"]
    assert found["klein_matched"].verdict == found["stabilizer_matched"].verdict == REPRODUCED
    other = {cell: replace(result) for cell, result in zip(results, reversed(results.values()), strict=True)}
    found = verdicts(cosets.EXPERIMENT.summarize(spec, other))
    assert found["klein_matched"].verdict == found["stabilizer_matched"].verdict == NOT_REPRODUCED


def test_other_cosets_are_not_the_papers() -> None:
    found = verdicts(cosets.EXPERIMENT.summarize(SPEC, make(lambda cell: "D4", lambda cell: 0.1)))
    assert {found[claim].verdict for claim in CLAIMS} == {NOT_REPRODUCED}
    assert "D4 20" in found["klein"].sentence


@pytest.mark.parametrize("noise", [NOISE, 1.2])  # no clusters, and clusters that are beyond chance but not clean
def test_noise_shows_no_clean_cosets(noise: float) -> None:
    found = verdicts(cosets.EXPERIMENT.summarize(SPEC, make(lambda cell: SEEN[cell.model], lambda cell: noise)))
    assert found["klein"].verdict == NOT_REPRODUCED
    assert (found["stabilizer"].verdict == REPRODUCED) == (noise < NOISE)


@pytest.mark.parametrize(
    ("hits", "klein", "stabilizer"),
    [
        (0, NOT_REPRODUCED, NOT_REPRODUCED),
        (1, NOT_REPRODUCED, NOT_REPRODUCED),
        (2, NOT_DECIDED, NOT_DECIDED),
        (4, REPRODUCED, NOT_DECIDED),
        (5, REPRODUCED, REPRODUCED),
    ],
)
def test_diverged_runs_count_as_runs_without_cosets(hits: int, klein: str, stabilizer: str) -> None:
    results = {
        cell: diverged(result) if cell.head == "harmonic" and cell.seed >= hits else result
        for cell, result in as_in_the_paper().items()
    }
    found = verdicts(cosets.EXPERIMENT.summarize(SPEC, results))
    assert (found["klein"].verdict, found["stabilizer"].verdict) == (klein, stabilizer)


@pytest.mark.parametrize(("hits", "verdict"), [(10, REPRODUCED), (8, NOT_DECIDED), (5, NOT_REPRODUCED)])
def test_what_is_common_is_the_most_frequent(hits: int, verdict: str) -> None:
    results = make(lambda cell: "S3" if cell.seed < hits else "D4", lambda cell: 0.1)
    assert verdicts(cosets.EXPERIMENT.summarize(SPEC, results))["stabilizer"].verdict == verdict


def test_runs_that_pass_the_test_may_not_say_the_opposite() -> None:
    results = {
        cell: planted("permutation", "authors", noise=0.1, seed=cell.seed, **how)
        for cell in runs.cells(SPEC)
        for how in [{"subgroup": "D4"} if cell.seed < 12 else {"subgroup": SEEN[cell.model], "learned": 0.5}]
    }
    found = verdicts(cosets.EXPERIMENT.summarize(SPEC, results))["klein"]
    assert found.verdict == NOT_DECIDED
    assert found.sentence.startswith("Runs that pass the test say the opposite")


def test_the_counts_of_subgroups_are_exact_and_need_no_run() -> None:
    found = verdicts(cosets.EXPERIMENT.summarize(SPEC, {}))
    assert found["number_of_cosets"].verdict == found["normal_subgroups"].verdict == REPRODUCED
    assert found["klein"].verdict == NOT_DECIDED
    assert found["captured"].verdict == NOT_RUN
    # Counted by hand: a subgroup of order m has 24 / m cosets, and there are 9, 4, 7, 4, 3, 1 of orders 2 to 12.
    single = 9 * 12 + 4 * 8 + 7 * 6 + 4 * 4 + 3 * 3 + 1 * 2
    assert found["number_of_cosets"].numbers == {"left": 28, "right": 28, "single_cosets": single}


def test_the_counts_of_subgroups_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = tuple(group for group in subgroups(4) if cycles(group.elements[-1]) != "(14)(23)")
    monkeypatch.setattr(cosets, "subgroups", lambda n: fewer)
    found = verdicts(cosets.EXPERIMENT.summarize(SPEC, {}))
    assert found["number_of_cosets"].verdict == found["normal_subgroups"].verdict == NOT_REPRODUCED


def test_short_runs_decide_nothing() -> None:
    short = cosets.EXPERIMENT.summarize(replace(SPEC, mlp_epochs=10, transformer_epochs=10), as_in_the_paper())
    found = {claim: verdict.verdict for claim, verdict in verdicts(short).items() if claim not in EXACT}
    assert set(found.values()) == {NOT_DECIDED, NOT_RUN}


def test_figures_name_the_subgroup_and_mark_failures() -> None:
    results = {
        cell: diverged(result) if cell.seed < 12 and cell.arm == ("mlp", "harmonic") else result
        for cell, result in as_in_the_paper().items()
    }
    with house_style():
        pictures = cosets.EXPERIMENT.draw(SPEC, results)
        for name, picture in pictures.items():
            assert len(to_svg(picture.figure, name)) < 300_000
    assert set(pictures) == {"cosets_authors", "cosets_silhouettes"}
    panels = pictures["cosets_authors"].figure.axes
    assert "Klein four V4" in panels[1].get_title(loc="left")
    assert panels[5].texts[0].get_text() == "diverged at epoch 3"  # the median harmonic MLP
    strips = pictures["cosets_silhouettes"].figure.axes
    assert [text.get_text() for text in strips[0].texts][1:3] == ["8 of 20", "12 diverged"]
