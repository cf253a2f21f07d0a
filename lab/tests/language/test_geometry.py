"""Parallelograms and layers as experiments: planted structure is judged as what it is, and drawn."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from harmax.analysis import SETTINGS
from harmax.figures import house_style
from harmax.files import to_json
from harmax.hf import HarmonicGPT2LMHeadModel, from_gpt2
from harmax.inspect.embedding import Arrays, from_text_array
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.experiment import Summary
from harmax_lab.kit.report.svg import to_svg
from harmax_lab.kit.store import CellResult
from harmax_lab.language import layers, parallelograms
from harmax_lab.language.arms import HARMONIC, STANDARD
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec
from harmax_lab.language.parallelograms import too_many
from planted_models import TASKS, measured, planted, states_of, tiny, with_embedding

SPEC = LanguageSpec(layers=(0,))


@pytest.fixture(scope="module")
def exact() -> Arrays:
    return measured(planted(0.0))


@pytest.fixture(scope="module")
def near() -> Arrays:
    return measured(planted(0.2))


@pytest.fixture(scope="module")
def far() -> Arrays:
    return measured(planted(0.8))


def arms(standard: Arrays, harmonic: Arrays) -> dict[ArmCell, CellResult]:
    return {ArmCell(STANDARD, 0): CellResult(arrays=standard), ArmCell(HARMONIC, 0): CellResult(arrays=harmonic)}


def verdicts(summary: Summary) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in summary.verdicts}


def test_a_better_harmonic_embedding_is_found_better_and_a_worse_one_worse(near: Arrays, far: Arrays) -> None:
    better = verdicts(parallelograms.EXPERIMENT.summarize(SPEC, arms(standard=far, harmonic=near)))
    assert set(better.values()) == {REPRODUCED}
    worse = verdicts(parallelograms.EXPERIMENT.summarize(SPEC, arms(standard=near, harmonic=far)))
    assert worse.pop("better_than_shuffled") == REPRODUCED
    assert set(worse.values()) == {NOT_REPRODUCED}


def test_equal_arms_decide_nothing_between_them(near: Arrays) -> None:
    summary = parallelograms.EXPERIMENT.summarize(SPEC, arms(near, near))
    found = verdicts(summary)
    assert {found[claim] for claim in ("lower_in_every_task", "lower_in_most_tasks", "gains_more_on_shuffled")} == {
        NOT_DECIDED
    }
    assert all("one model per arm" in verdict.sentence for verdict in summary.verdicts)


def test_seeds_that_contradict_each_other_decide_nothing(near: Arrays, far: Arrays) -> None:
    results = arms(far, near) | {
        ArmCell(STANDARD, 1): CellResult(arrays=near),
        ArmCell(HARMONIC, 1): CellResult(arrays=far),
    }
    spec = replace(SPEC, seeds=(0, 1))
    assert verdicts(parallelograms.EXPERIMENT.summarize(spec, results))["lower_in_most_tasks"] == NOT_DECIDED
    agreeing = arms(far, near) | {
        ArmCell(STANDARD, 1): CellResult(arrays=far),
        ArmCell(HARMONIC, 1): CellResult(arrays=near),
    }
    summary = parallelograms.EXPERIMENT.summarize(spec, agreeing)
    assert verdicts(summary)["lower_in_most_tasks"] == REPRODUCED
    assert "2 models per arm" in summary.verdicts[0].sentence
    assert len(summary.tables[0].rows) == 2 * len(TASKS)


def test_a_missing_arm_or_generated_tokens_decide_nothing(near: Arrays, far: Arrays) -> None:
    results = arms(far, near)
    for some in ({}, dict(list(results.items())[:1])):
        summary = parallelograms.EXPERIMENT.summarize(SPEC, some)
        assert set(verdicts(summary).values()) == {NOT_DECIDED}
        to_json(asdict(summary))
    embedded = parallelograms.EXPERIMENT.summarize(replace(SPEC, embedded=True), results)
    assert set(verdicts(embedded).values()) == {NOT_DECIDED}
    assert "lower" in embedded.verdicts[0].sentence


def test_tables_have_rows_of_one_kind(exact: Arrays, far: Arrays) -> None:
    summary = parallelograms.EXPERIMENT.summarize(SPEC, arms(far, exact))
    to_json(asdict(summary))
    for table in summary.tables:
        assert len({tuple(row) for row in table.rows}) == 1
    assert [row["task"] for row in summary.tables[0].rows] == list(TASKS)
    assert len(summary.tables[1].rows) == len(SETTINGS)
    assert {row["lower in"] for row in summary.tables[1].rows} == {"3 of 3"}


def test_more_tasks_on_the_other_side_than_chance_gives() -> None:
    assert [too_many(tasks) for tasks in (1, 3, 12, 40)] == [1, 2, 2, 4]


def test_pictures_show_every_task_and_both_arms(near: Arrays, far: Arrays) -> None:
    with house_style():
        drawn = parallelograms.EXPERIMENT.draw(SPEC, arms(far, near))
        for name, picture in drawn.items():
            assert to_svg(picture.figure, name).count("<path") > 10
            assert picture.caption
    distributions = drawn["parallelogram_cdf"].figure
    assert [axes.get_title(loc="left") for axes in distributions.axes] == list(TASKS)
    assert all(len(axes.lines) == 4 for axes in distributions.axes)
    legend = [text.get_text() for text in distributions.legends[0].get_texts()]
    assert legend == ["standard", "standard, shuffled pairs", "harmonic", "harmonic, shuffled pairs"]
    for rank, place in (("best", 0), ("median", 1), ("worst", 2)):
        panels = [axes for axes in drawn[f"parallelogram_{rank}"].figure.axes if axes.axison]
        assert len(panels) == 2 * len(TASKS)
        words = from_text_array(far["parallelograms/capitalize/ranked_words"])[place][place]
        assert {text.get_text() for text in panels[0].texts} == set(words)
    heat = drawn["parallelogram_settings"].figure.axes[0]
    assert [label.get_text() for label in heat.get_yticklabels()] == list(TASKS)
    shown = np.asarray(heat.images[0].get_array())
    assert shown.shape == (len(TASKS), len(SETTINGS))
    assert shown.max() < 0  # lower everywhere


@pytest.mark.parametrize("arm", [STANDARD, HARMONIC])
def test_one_arm_alone_is_drawn_too(near: Arrays, arm: str) -> None:
    with house_style():
        drawn = parallelograms.EXPERIMENT.draw(SPEC, {ArmCell(arm, 0): CellResult(arrays=near)})
        assert "parallelogram_settings" not in drawn
        assert "parallelogram_best" in drawn
        assert parallelograms.EXPERIMENT.draw(SPEC, {}) == {}


@pytest.fixture(scope="module")
def layer_arms() -> dict[ArmCell, CellResult]:
    standard = with_embedding(tiny(), planted(1.0))
    harmonic = with_embedding(from_gpt2(tiny()), planted(0.1))
    assert isinstance(harmonic, HarmonicGPT2LMHeadModel)
    return arms(states_of(standard), states_of(harmonic))


def test_layers_are_judged(layer_arms: dict[ArmCell, CellResult]) -> None:
    summary = layers.EXPERIMENT.summarize(SPEC, layer_arms)
    assert set(verdicts(summary).values()) == {REPRODUCED}
    to_json(asdict(summary))
    for table in summary.tables:
        assert len({tuple(row) for row in table.rows}) == 1
    standard, harmonic = layer_arms.values()
    swapped = verdicts(layers.EXPERIMENT.summarize(SPEC, arms(harmonic.arrays, standard.arrays)))
    assert swapped["parallel_in_layer"] == swapped["lower_in_most_tasks_in_layer"] == NOT_REPRODUCED
    assert swapped["more_parallel_than_shuffled"] == REPRODUCED
    for some in ({}, dict(list(layer_arms.items())[:1])):
        assert set(verdicts(layers.EXPERIMENT.summarize(SPEC, some)).values()) == {NOT_DECIDED}


def test_layers_are_drawn(layer_arms: dict[ArmCell, CellResult]) -> None:
    with house_style():
        drawn = layers.EXPERIMENT.draw(SPEC, layer_arms)
        for name, picture in drawn.items():
            assert to_svg(picture.figure, name).count("<path") > 10
        assert layers.EXPERIMENT.draw(SPEC, {}) == {}
        assert layers.EXPERIMENT.draw(SPEC, dict(list(layer_arms.items())[:1])).keys() == drawn.keys()
    steps = drawn["layers_steps"].figure.axes
    assert [axes.get_title(loc="left").split("\n")[0] for axes in steps] == ["standard, layer 0", "harmonic, layer 0"]
    named = {text.get_text() for text in steps[0].texts} - {""}
    assert named == {
        pair[0] for pair in from_text_array(layer_arms[ArmCell(STANDARD, 0)].arrays["layers/capitalize/shown_words"])
    }
    losses, cosines = drawn["layers_tasks"].figure.axes
    assert [label.get_text() for label in losses.get_yticklabels()] == list(TASKS)
    assert len(losses.lines) == 2 * 4 * len(TASKS)  # a bar and a mark of two arms and their nulls
    assert len(drawn["layers_tasks"].figure.legends[0].get_texts()) == 4
    assert cosines.get_xlim()[0] < 1 < cosines.get_xlim()[1]
