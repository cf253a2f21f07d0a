"""What the probes of two arms say: verdicts, intervals, tables and the figure, on planted scores."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

import numpy as np
import pytest

from harmax.figures import house_style
from harmax.files import to_json
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, NOT_RUN, REPRODUCED
from harmax_lab.kit.store import CellResult
from harmax_lab.language import probes
from harmax_lab.language.arms import PAPERS, STANDARD
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec
from harmax_lab.language.probes import EXPERIMENT, Spot, compare, compare_on_sentences
from harmax_lab.language.probing import READOUTS, scores
from harmax_lab.report.svg import to_svg

SPEC = LanguageSpec(probe_seeds=10, seeds=(0, 1, 2))
DEV = 800


def planted_results(
    spec: LanguageSpec, *, gain: float, spread: float = 0.01, tasks: tuple[str, ...] = ("sst2", "cola")
) -> dict[ArmCell, CellResult]:
    """Return probes that are right on a share of the sentences, the harmonic arm's on `gain` more of them."""
    found = {}
    for arm in spec.arms:
        for seed in spec.seeds:
            generator = np.random.default_rng([seed, spec.arms.index(arm)])
            arrays = {}
            for task in tasks:
                labels = (np.arange(DEV) % 10 < 6).astype(np.uint8)
                shape = (spec.probe_seeds, len(spec.probe_layers), len(READOUTS))
                noise = generator.normal(size=shape)
                share = 0.8 + gain * (arm == PAPERS) + spread * (noise - noise.mean(0))
                # The same sentences are hard for every probe, so that a share decides the score.
                wrong = np.random.default_rng(0).permutation(DEV) >= DEV * share[..., None]
                said = (labels ^ wrong).astype(np.uint8)
                constant = scores(np.ones(DEV), labels)
                arrays |= {
                    f"probes/{task}/said": said,
                    f"probes/{task}/labels": labels,
                    f"probes/{task}/layers": np.array(spec.probe_layers),
                    f"probes/{task}/majority": np.array(list(constant.values())),
                    **{f"probes/{task}/{name}": values for name, values in scores(said, labels).items()},
                }
            found[ArmCell(arm, seed)] = CellResult(arrays=arrays)
    return found


def verdicts(spec: LanguageSpec, results: Mapping[ArmCell, CellResult]) -> dict[str, str]:
    """Return the verdicts on controls; what the paper's table says is not run here, whatever is planted."""
    found = {one.claim: one.verdict for one in EXPERIMENT.summarize(spec, results).verdicts}
    assert found.pop("f1_of_probes") == NOT_RUN
    return found


@pytest.mark.parametrize(
    ("gain", "spread", "expected"),
    [(0.05, 0.006, REPRODUCED), (0.0, 0.002, REPRODUCED), (-0.05, 0.006, NOT_REPRODUCED)],
)
def test_as_well_means_not_clearly_worse_by_a_point(gain: float, spread: float, expected: str) -> None:
    found = verdicts(SPEC, planted_results(SPEC, gain=gain, spread=spread))
    assert found["reads_as_well_last"] == found["reads_as_well_mean"] == expected
    assert found["above_the_majority"] == REPRODUCED


def test_models_of_different_seeds_that_disagree_decide_nothing() -> None:
    results = planted_results(SPEC, gain=-0.04, spread=0.002)
    results[ArmCell(PAPERS, 0)] = planted_results(SPEC, gain=0.04, spread=0.002)[ArmCell(PAPERS, 0)]
    found = verdicts(SPEC, results)
    assert found["reads_as_well_last"] == found["reads_as_well_mean"] == NOT_DECIDED


def test_one_bad_layer_is_enough() -> None:
    results = planted_results(SPEC, gain=0.02)
    worse = planted_results(SPEC, gain=-0.1)
    for seed in SPEC.seeds:
        own = results[ArmCell(PAPERS, seed)].arrays
        for key in ("probes/cola/f1", "probes/cola/said"):
            own[key] = own[key].copy()
            own[key][:, 1, 0] = worse[ArmCell(PAPERS, seed)].arrays[key][:, 1, 0]  # layer 6, last token
    found = verdicts(SPEC, results)
    assert found["reads_as_well_last"] == NOT_REPRODUCED
    assert found["reads_as_well_mean"] == REPRODUCED
    assert found["as_well_on_other_sentences"] == NOT_REPRODUCED


def test_other_sentences_can_confirm_and_leave_open() -> None:
    assert verdicts(SPEC, planted_results(SPEC, gain=0.05))["as_well_on_other_sentences"] == REPRODUCED
    noisy = planted_results(SPEC, gain=-0.01, spread=0.03)
    assert verdicts(SPEC, noisy)["as_well_on_other_sentences"] == NOT_DECIDED


def test_probes_below_the_majority_are_named() -> None:
    summary = EXPERIMENT.summarize(SPEC, planted_results(SPEC, gain=-0.4))
    found = next(one for one in summary.verdicts if one.claim == "above_the_majority")
    assert found.verdict == NOT_REPRODUCED
    assert "harmonic, SST-2 layer 0, last token" in found.sentence
    assert "standard, SST-2" not in found.sentence


@pytest.mark.parametrize(("gain", "expected"), [(0.0, True), (-0.1, False)])
def test_our_smaller_evidence_stands_beside_the_papers_table(gain: float, expected: bool) -> None:
    claim = next(one for one in probes.CLAIMS if one.sentences)
    results = EXPERIMENT.results(SPEC, planted_results(SPEC, gain=gain, spread=0.002))
    assert claim.judge is not None
    assert claim.judge(results).holds is expected
    words = EXPERIMENT.judge(results).verdicts[0].sentence
    assert "4.9 billion tokens" in words
    assert "In something smaller: F1, harmonic minus standard, in points: SST-2 layer 0, last token" in words


def test_a_model_that_diverged_counts_as_a_failure() -> None:
    for arm, verdict in ((PAPERS, NOT_REPRODUCED), (STANDARD, NOT_DECIDED)):
        results = planted_results(SPEC, gain=0.02)
        results[ArmCell(arm, 1)] = CellResult(metrics={"diverged_at": 40})
        assert set(verdicts(SPEC, results).values()) == {verdict}
        with house_style():
            assert EXPERIMENT.draw(SPEC, results)


def test_sentences_make_intervals_wider_than_probes_alone() -> None:
    results = EXPERIMENT.results(SPEC, planted_results(SPEC, gain=0.03, spread=0.002))
    spot = Spot("cola", 6, "mean")
    paired, drawn = compare(results, spot), compare_on_sentences(results, spot)
    assert paired is not None
    assert drawn is not None
    assert drawn.estimate == pytest.approx(paired.difference.estimate, abs=1e-6)
    assert drawn.low < paired.difference.low < paired.difference.high < drawn.high
    assert drawn.low > 0  # 24 sentences of 800 more, and none fewer


def test_one_model_per_arm_decides_nothing() -> None:
    alone = replace(SPEC, seeds=(0,))
    summary = EXPERIMENT.summarize(alone, planted_results(alone, gain=0.05))
    assert {one.verdict for one in summary.verdicts[1:]} == {NOT_DECIDED}
    last, *_, other, majority = summary.verdicts[1:]
    assert "one model per arm" in last.sentence
    assert "Intervals are over probes and dev sentences of one model per arm, not over models." in other.sentence
    assert "(one model per arm)" in majority.sentence
    more = EXPERIMENT.summarize(SPEC, planted_results(SPEC, gain=0.0))
    assert "over 3 seeds" in more.verdicts[1].sentence
    assert more.tables[0].rows[0]["probes"] == 30


def test_tables_stand_beside_the_paper() -> None:
    summary = EXPERIMENT.summarize(SPEC, planted_results(SPEC, gain=0.0))
    scores_table, differences = summary.tables
    assert len(scores_table.rows) == 2 * 2 * 2 * 2
    row = next(
        row
        for row in scores_table.rows
        if (row["sentences"], row["layer"], row["model"], row["read from"]) == ("CoLA", 6, PAPERS, "last token")
    )
    assert row["paper's F1"] == "77.1 ± 4.2"
    assert row["always the majority"] == 75.0
    assert len(differences.rows) == 8
    assert [row["paper's"] for row in differences.rows] == [1.7, 1.7, 0.0, 0.0, 0.4, 0.4, -1.1, -1.1]
    assert json.loads(to_json(asdict(summary)))


def test_what_is_missing_is_undecided_and_no_error() -> None:
    results = planted_results(SPEC, gain=0.0)
    some = {cell: result for cell, result in results.items() if cell.arm == STANDARD}
    bare = {cell: CellResult() for cell in results}
    for found in ({}, some, bare):
        summary = EXPERIMENT.summarize(SPEC, found)
        assert [one.claim for one in summary.verdicts] == [claim.id for claim in probes.CLAIMS]
        assert {one.verdict for one in summary.verdicts[1:]} == {NOT_DECIDED}
        assert all(len({tuple(row) for row in table.rows}) == 1 for table in summary.tables)
        json.loads(to_json(asdict(summary)))
        with house_style():
            assert set(EXPERIMENT.draw(SPEC, found)) == ({"probes"} if found is some else set())


def test_made_up_sentences_decide_nothing() -> None:
    spec = replace(SPEC, embedded=True, probe_layers=(0, 1))
    results = planted_results(spec, gain=0.05, tasks=("made_up",))
    summary = EXPERIMENT.summarize(spec, results)
    assert {one.verdict for one in summary.verdicts[1:]} == {NOT_DECIDED}
    assert all("made-up sentences stood in for text" in one.sentence for one in summary.verdicts[1:])
    with house_style():
        picture = EXPERIMENT.draw(spec, results)["probes"]
    assert "the paper's" not in picture.caption


def test_the_figure_shows_every_probe_and_the_majority() -> None:
    results = planted_results(SPEC, gain=0.02)
    with house_style():
        picture = EXPERIMENT.draw(SPEC, results)["probes"]
        assert to_svg(picture.figure, "probes").count("<path") > 10
    assert [axes.get_title(loc="left") for axes in picture.figure.axes] == [
        f"{task}, {words}" for words in ("last token", "mean over tokens") for task in ("SST-2", "CoLA")
    ]
    for axes in picture.figure.axes:
        heights = np.concatenate([np.atleast_1d(line.get_ydata()) for line in axes.lines])
        assert np.isclose(heights, 75).any()  # 2 * 0.6 / 1.6
        task, words = axes.get_title(loc="left").lower().replace("-", "").split(", ")
        readout = {"last token": 0, "mean over tokens": 1}[words]
        for result in results.values():
            for value in 100 * result.arrays[f"probes/{task}/f1"][..., readout].ravel():
                assert np.isclose(heights, value).any()
    assert "not over models" in picture.caption
