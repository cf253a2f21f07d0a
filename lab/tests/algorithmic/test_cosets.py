"""Which cosets: planted ones are named and counted, noise is not taken for them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harmax.figures import house_style
from harmax_lab.algorithmic import cosets, runs
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED, Verdict
from harmax_lab.kit.experiment import Summary
from harmax_lab.kit.report.svg import to_svg
from harmax_lab.kit.store import CellResult
from planted_structures import diverged, planted

SPEC = replace(runs.EXPERIMENT.profiles["full"], seeds=tuple(range(10)), protocols=("authors",), tasks=("permutation",))
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


def test_the_papers_cosets_are_found_and_counted() -> None:
    summary = cosets.EXPERIMENT.summarize(SPEC, as_in_the_paper())
    found = verdicts(summary)
    for claim in ("mlp_authors", "transformer_authors"):
        assert found[claim].verdict == REPRODUCED
        assert found[claim].numbers["hits_plane"] == found[claim].numbers["runs"] == 10
    for table in summary.tables:
        rows = {row["model"]: row for row in table.rows}
        assert rows["harmonic MLP"]["Klein four V4"] == 10
        assert rows["harmonic transformer"]["S3"] == 10
        assert rows["standard MLP"]["runs with p < 0.05"] <= 3
        for row in table.rows:
            assert sum(row[kind] for kind in cosets.KINDS) == row["runs with p < 0.05"]


def test_other_cosets_are_not_the_papers() -> None:
    found = verdicts(cosets.EXPERIMENT.summarize(SPEC, make(lambda cell: "D4", lambda cell: 0.1)))
    assert found["mlp_authors"].verdict == found["transformer_authors"].verdict == NOT_REPRODUCED
    assert "D4 10" in found["mlp_authors"].sentence


def test_noise_shows_no_cosets() -> None:
    found = verdicts(cosets.EXPERIMENT.summarize(SPEC, make(lambda cell: "S3", lambda cell: NOISE)))
    assert found["mlp_authors"].verdict == found["transformer_authors"].verdict == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("hits", "verdict"), [(9, REPRODUCED), (8, NOT_DECIDED), (5, NOT_DECIDED), (2, NOT_DECIDED), (1, NOT_REPRODUCED)]
)
def test_often_means_clearly_more_than_half_of_all_runs_diverged_ones_among_them(hits: int, verdict: str) -> None:
    results = {
        cell: diverged(result) if cell.head == "harmonic" and cell.seed >= hits else result
        for cell, result in as_in_the_paper().items()
    }
    found = verdicts(cosets.EXPERIMENT.summarize(SPEC, results))
    assert found["mlp_authors"].verdict == found["transformer_authors"].verdict == verdict


def test_short_runs_decide_nothing() -> None:
    short = cosets.EXPERIMENT.summarize(replace(SPEC, mlp_epochs=10, transformer_epochs=10), as_in_the_paper())
    assert {verdict.verdict for verdict in short.verdicts} == {NOT_DECIDED}


def test_figures_name_the_subgroup_and_mark_failures() -> None:
    results = {
        cell: diverged(result) if cell.seed < 6 and cell.arm == ("mlp", "harmonic") else result
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
    assert [text.get_text() for text in strips[0].texts][1:3] == ["4 of 10", "6 diverged"]
