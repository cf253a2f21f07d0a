"""Layers as an experiment: planted spikes, tails and collapsed pairs are judged as what they are, and drawn."""

from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest

from harmax.figures import house_style
from harmax.files import to_json
from harmax.inspect.embedding import Arrays, from_text_array
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, NOT_RUN, REPRODUCED
from harmax_lab.kit.store import CellResult
from harmax_lab.language.arms import PAPERS, STANDARD
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec
from harmax_lab.language.layers import CLAIMS, EXPERIMENT, heavier_tail, near_zero
from harmax_lab.report.svg import to_svg
from planted_embeddings import SPEC, layered, models
from planted_models import TASKS

NO_JUDGE = "tail_from_the_loss"
PLAIN = {"spike": 0.0, "tail": 0.0, "together": 0.9}
LIKE_THE_PAPER = {"spike": 0.2, "tail": 1.0, "together": 0.1}


def arrays(**changes: float) -> Callable[[int], Arrays]:
    def model(seed: int) -> Arrays:
        return layered(**{**PLAIN, **changes}, seed=seed)

    return model


def verdicts(results: dict[ArmCell, CellResult], spec: LanguageSpec = SPEC) -> dict[str, str]:
    return {one.claim: one.verdict for one in EXPERIMENT.summarize(spec, results).verdicts if one.claim != NO_JUDGE}


PAPERS_RUNS = models(arrays(), arrays(**LIKE_THE_PAPER))


def test_layers_like_the_papers_reproduce_every_claim() -> None:
    assert set(verdicts(PAPERS_RUNS).values()) == {REPRODUCED}


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"spike": 0.0}, {"more_perfect_in_layer", "more_perfect_against_shuffled"}),
        ({"tail": -0.5}, {"heavier_tail_in_layer"}),
        ({"together": 0.6}, {"capitals_overlap", "capitals_overlap_among_single_tokens"}),
    ],
)
def test_every_claim_can_break(change: dict[str, float], broken: set[str]) -> None:
    standard = {"spike": 0.1} if "spike" in change else {}
    found = verdicts(models(arrays(**standard), arrays(**{**LIKE_THE_PAPER, **change})))
    assert {claim for claim, verdict in found.items() if verdict == NOT_REPRODUCED} == broken
    assert {claim for claim, verdict in found.items() if verdict == REPRODUCED} == found.keys() - broken


def test_capitals_that_overlap_with_cross_entropy_too_contradict_the_paper() -> None:
    found = verdicts(models(arrays(together=0.1), arrays(**LIKE_THE_PAPER)))
    assert found["capitals_overlap"] == NOT_REPRODUCED


def test_a_spike_that_shuffled_pairs_have_too_is_not_of_the_relation() -> None:
    def anywhere(seed: int) -> Arrays:
        found = dict(layered(**LIKE_THE_PAPER, seed=seed))
        return found | {key.replace("losses", "null"): one for key, one in found.items() if key.endswith("/losses")}

    found = verdicts(models(arrays(), anywhere))
    assert found["more_perfect_in_layer"] == REPRODUCED
    assert found["more_perfect_against_shuffled"] != REPRODUCED


def test_equal_arms_decide_nothing_between_them() -> None:
    found = verdicts(models(arrays(), arrays()))
    assert found.pop("capitals_overlap") == found.pop("capitals_overlap_among_single_tokens") == NOT_REPRODUCED
    assert set(found.values()) == {NOT_DECIDED}


def test_seeds_that_contradict_each_other_decide_nothing() -> None:
    def mixed(seed: int) -> Arrays:
        return layered(**(LIKE_THE_PAPER if seed % 2 else PLAIN), seed=seed)

    def other(seed: int) -> Arrays:
        return layered(**(PLAIN if seed % 2 else LIKE_THE_PAPER), seed=seed)

    assert set(verdicts(models(mixed, other)).values()) == {NOT_DECIDED}


def test_an_explanation_that_nobody_tests_is_not_run() -> None:
    found = {one.claim: one for one in EXPERIMENT.summarize(SPEC, PAPERS_RUNS).verdicts}[NO_JUDGE]
    assert found.verdict == NOT_RUN
    assert "heavier_tail_in_layer" in found.sentence
    assert "heavier_tail_in_layer" in {claim.id for claim in CLAIMS}


def test_another_layer_one_seed_or_another_exponent_decide_none_of_the_papers_claims() -> None:
    renamed = {
        cell: replace(run, arrays={key.replace("/6/", "/3/"): one for key, one in run.arrays.items()})
        for cell, run in PAPERS_RUNS.items()
    }
    controls = {claim.id for claim in CLAIMS if claim.control}
    for spec, runs in ((replace(SPEC, layers=(3,)), renamed), (replace(SPEC, exponent=1536.0), PAPERS_RUNS)):
        found = verdicts(runs, spec)
        assert {claim for claim, verdict in found.items() if verdict == NOT_DECIDED} == found.keys() - controls
    alone = replace(SPEC, seeds=(0,))
    some = {cell: run for cell, run in PAPERS_RUNS.items() if cell.seed == 0}
    assert set(verdicts(some, alone).values()) == {NOT_DECIDED}
    assert set(verdicts(PAPERS_RUNS, replace(SPEC, embedded=True)).values()) == {NOT_DECIDED}
    for few in ({}, dict(list(PAPERS_RUNS.items())[:1])):
        assert set(verdicts(few).values()) == {NOT_DECIDED}


def test_a_model_that_diverged_counts_as_a_failure() -> None:
    for arm, verdict in ((PAPERS, NOT_REPRODUCED), (STANDARD, NOT_DECIDED)):
        results = {**PAPERS_RUNS, ArmCell(arm, 1): CellResult(metrics={"diverged_at": 40})}
        assert set(verdicts(results).values()) == {verdict}
        with house_style():
            assert EXPERIMENT.draw(SPEC, results)


def test_the_measures_of_a_spike_and_of_a_tail_are_those_of_known_distributions() -> None:
    uniform = np.linspace(0, 1, 10_001)
    assert near_zero(uniform, uniform) == pytest.approx(0)
    assert near_zero(uniform / 2, uniform) == pytest.approx(0.05, abs=1e-3)
    assert near_zero(2 * uniform, uniform) == pytest.approx(-0.025, abs=1e-3)
    assert heavier_tail(3 * uniform, uniform) == pytest.approx(0)  # the unit does not count
    assert heavier_tail(uniform**2, uniform) == pytest.approx(np.log(0.99 * 2))


def test_tables_have_intervals_over_word_pairs() -> None:
    summary = EXPERIMENT.summarize(SPEC, PAPERS_RUNS)
    to_json(asdict(summary))
    for table in summary.tables:
        assert len({tuple(row) for row in table.rows}) == 1
        assert len(table.rows) == len(PAPERS_RUNS) * len(TASKS)
    _, tails, steps = (table.rows for table in summary.tables)
    near, tail, _ = list(tails[0])[4:]
    harmonic, standard = (next(row for row in tails if row["arm"] == arm) for arm in (PAPERS, STANDARD))
    assert float(standard[near].split()[0]) == pytest.approx(0.05, abs=0.01)
    low, high = (float(end.strip("[],")) for end in harmonic[near].split()[1:])
    assert 0.1 < low < 0.2 < high < 0.4
    assert float(harmonic[tail].split()[0]) > float(standard[tail].split()[0])
    assert {round(row["distance of partners by shuffled"], 1) for row in steps} == {0.1, 0.9}


def test_layers_are_drawn() -> None:
    with house_style():
        drawn = EXPERIMENT.draw(SPEC, PAPERS_RUNS)
        for name, picture in drawn.items():
            assert to_svg(picture.figure, name).count("<path") > 10
            assert picture.figure.get_suptitle()
            assert picture.caption.endswith("3 models per arm; exponent 28.")
        assert EXPERIMENT.draw(SPEC, {}) == {}
        assert EXPERIMENT.draw(SPEC, dict(list(PAPERS_RUNS.items())[:1])).keys() == drawn.keys()
    steps = drawn["layers_steps"].figure.axes
    assert [axes.get_title(loc="left").split("\n")[0] for axes in steps] == ["standard, layer 6", "harmonic, layer 6"]
    named = {text.get_text() for text in steps[0].texts} - {""}
    shown = PAPERS_RUNS[ArmCell(STANDARD, 0)].arrays["layers/capitalize/shown_words"]
    assert named == {pair[0] for pair in from_text_array(shown)}
    losses, cosines = drawn["layers_tasks"].figure.axes
    assert [label.get_text() for label in losses.get_yticklabels()] == list(TASKS)
    assert len(losses.lines) == 2 * 4 * len(TASKS)  # a bar and a mark of two arms and their nulls
    assert cosines.get_title(loc="left") == "mean cosine between steps"
    near, tail = drawn["layers_losses"].figure.axes
    assert len(near.lines) == len(tail.lines) == 2 * len(PAPERS_RUNS)
