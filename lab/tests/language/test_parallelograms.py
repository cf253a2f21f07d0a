"""Parallelograms as an experiment: planted structure is judged as what it is, published in few bytes, and drawn."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from harmax.analysis import SETTINGS
from harmax.figures import house_style
from harmax.files import to_json
from harmax.inspect.embedding import Arrays, from_text_array
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.published import ARRAYS, write_rows
from harmax_lab.kit.store import CellResult
from harmax_lab.language.arms import PAPERS, STANDARD
from harmax_lab.language.gpt2 import ArmCell, LanguageSpec
from harmax_lab.language.parallelograms import CLAIMS, EXPERIMENT, samples
from harmax_lab.report.svg import to_svg
from planted_embeddings import SPEC, far, models, near, noisy, slanted
from planted_models import TASKS

SHAPES = {"more_rectangular", "standard_is_flatter", "more_rectangular_in_all_tasks"}
LOSSES = {claim.id for claim in CLAIMS} - SHAPES
PAPERS_CLAIMS = {claim.id for claim in CLAIMS if not claim.control}
Runs = dict[ArmCell, CellResult]


def verdicts(results: Runs, spec: LanguageSpec = SPEC, only: set[str] = LOSSES) -> dict[str, str]:
    return {one.claim: one.verdict for one in EXPERIMENT.summarize(spec, results).verdicts if one.claim in only}


def sentence(claim: str, results: Runs, spec: LanguageSpec = SPEC) -> str:
    return next(one.sentence for one in EXPERIMENT.summarize(spec, results).verdicts if one.claim == claim)


def test_a_better_harmonic_embedding_is_found_better_and_a_worse_one_worse() -> None:
    assert set(verdicts(models(standard=far, harmonic=near)).values()) == {REPRODUCED}
    worse = verdicts(models(standard=near, harmonic=far))
    assert worse.pop("better_than_shuffled") == REPRODUCED
    assert set(worse.values()) == {NOT_REPRODUCED}


def test_one_task_that_is_worse_breaks_every_task_and_not_the_average() -> None:
    def but_one(seed: int) -> Arrays:
        worst = {key: array for key, array in noisy(1.6, seed).items() if key.startswith("parallelograms/antonym/")}
        return {**near(seed), **worst}

    found = verdicts(models(far, but_one))
    assert found["lower_in_every_task"] == NOT_REPRODUCED
    assert found["lower_on_average"] == REPRODUCED
    assert "antonym 1." in sentence("lower_in_every_task", models(far, but_one))
    assert "lower 2; higher 1; undecided 0" in sentence("lower_in_every_task", models(far, but_one))


def test_pairs_that_are_worse_than_shuffled_ones_are_found() -> None:
    def reversed_null(seed: int) -> Arrays:
        arrays = dict(near(seed))
        for task in TASKS:
            place = f"parallelograms/{task}/against_null"
            arrays[place] = arrays[place][[1, 0, 2, 3, 4]]
        return arrays

    assert verdicts(models(near, reversed_null))["better_than_shuffled"] == NOT_REPRODUCED
    assert verdicts(models(near, reversed_null))["gains_more_on_shuffled"] == NOT_REPRODUCED


def test_equal_arms_decide_nothing_between_them() -> None:
    found = verdicts(models(near, near))
    assert found.pop("better_than_shuffled") == REPRODUCED
    assert set(found.values()) == {NOT_DECIDED}


def test_seeds_that_contradict_each_other_decide_nothing() -> None:
    def mixed(seed: int) -> Arrays:
        return (near, far)[seed % 2](seed)

    found = verdicts(models(mixed, lambda seed: (far, near)[seed % 2](seed)))
    assert {found[claim] for claim in ("lower_in_every_task", "lower_on_average")} == {NOT_DECIDED}


@pytest.mark.parametrize(
    ("standard", "harmonic", "verdict"),
    [(20.0, 80.0, REPRODUCED), (80.0, 20.0, NOT_REPRODUCED), (50.0, 50.0, NOT_DECIDED)],
)
def test_rectangles_and_flat_parallelograms_are_told_apart(standard: float, harmonic: float, verdict: str) -> None:
    results = models(lambda seed: slanted(standard, seed), lambda seed: slanted(harmonic, seed))
    found = verdicts(results, only=SHAPES)
    assert found["more_rectangular"] == found["standard_is_flatter"] == verdict
    first = ArmCell(PAPERS, 0)
    measured = EXPERIMENT.results(SPEC, results)[first].metrics
    assert measured["sine of present-past"] == pytest.approx(np.sin(np.radians(harmonic)), abs=0.05)
    rows = EXPERIMENT.summarize(SPEC, results).tables[1].rows
    assert rows[0]["arm"] == STANDARD


def test_the_shapes_of_all_tasks_are_a_claim_of_their_own() -> None:
    def shaped(sine: float, seed: int) -> Arrays:
        arrays = dict(near(seed))
        for task in TASKS:
            shapes = arrays[f"parallelograms/{task}/shapes"].copy()
            shapes[:, 0] = sine + 0.01 * seed
            arrays[f"parallelograms/{task}/shapes"] = shapes
        return arrays

    for low, high, verdict in ((0.3, 0.8, REPRODUCED), (0.8, 0.3, NOT_REPRODUCED), (0.5, 0.5, NOT_DECIDED)):
        results = models(lambda seed, sine=low: shaped(sine, seed), lambda seed, sine=high: shaped(sine, seed))
        assert verdicts(results, only=SHAPES)["more_rectangular_in_all_tasks"] == verdict


def test_one_seed_made_up_words_or_a_missing_arm_decide_nothing() -> None:
    alone = models(far, near, seeds=(0,))
    summary = EXPERIMENT.summarize(replace(SPEC, seeds=(0,)), alone)
    assert {one.verdict for one in summary.verdicts} == {NOT_DECIDED}
    assert summary.verdicts[0].sentence.startswith("Only 1 of at least 3 seeds were run. So far: Harmonic median loss")
    assert "one model per arm" in summary.verdicts[0].sentence
    both = models(far, near)
    for spec in (replace(SPEC, embedded=True), replace(SPEC, steps=10), replace(SPEC, tasks=tuple(TASKS))):
        assert {one.verdict for one in EXPERIMENT.summarize(spec, both).verdicts} == {NOT_DECIDED}
    for some in ({}, dict(list(both.items())[:1])):
        summary = EXPERIMENT.summarize(SPEC, some)
        assert {one.verdict for one in summary.verdicts} == {NOT_DECIDED}
        to_json(asdict(summary))


def test_the_exponent_of_the_authors_code_leaves_the_papers_claims_open() -> None:
    authors = replace(SPEC, exponent=1536.0)
    found = verdicts(models(far, near), authors, only={claim.id for claim in CLAIMS})
    assert {claim for claim, verdict in found.items() if verdict == NOT_DECIDED} >= PAPERS_CLAIMS
    assert found["lower_on_average"] == REPRODUCED


def test_a_model_that_diverged_counts_as_a_failure() -> None:
    for arm, verdict in ((PAPERS, NOT_REPRODUCED), (STANDARD, NOT_DECIDED)):
        results = models(far, near)
        results[ArmCell(arm, 1)] = CellResult(metrics={"diverged_at": 40})
        assert set(verdicts(results).values()) == {verdict}
        with house_style():
            assert EXPERIMENT.draw(SPEC, results)


def test_tables_have_rows_of_one_kind() -> None:
    summary = EXPERIMENT.summarize(SPEC, models(far, near))
    to_json(asdict(summary))
    for table in summary.tables:
        assert len({tuple(row) for row in table.rows}) == 1
    losses, shapes, settings, *_ = (table.rows for table in summary.tables)
    assert [row["task"] for row in losses[:: 2 * len(SPEC.seeds)]] == list(TASKS)
    assert len(losses) == len(shapes) == 2 * len(SPEC.seeds) * len(TASKS)
    assert {row["by standard"] == "" for row in losses if row["arm"] == STANDARD} == {True}
    assert len(settings) == len(SETTINGS)
    assert {row["lower in"] for row in settings} == {"3 of 3"}


def test_samples_are_of_the_same_quadruples() -> None:
    results = EXPERIMENT.results(SPEC, models(far, near))
    found = samples(results, ArmCell(PAPERS, 1), "parallelograms/antonym")
    assert found is not None
    own, standard, quadruples = found
    np.testing.assert_allclose(own, near(1)["parallelograms/antonym/losses"], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(standard, far(1)["parallelograms/antonym/losses"], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(quadruples.pairs, near(1)["parallelograms/antonym/pairs"])


def test_fifteen_models_of_twelve_tasks_are_published_in_two_megabytes(tmp_path: Path) -> None:
    place = "parallelograms/antonym"
    full = dict(near(0))
    for what in ("losses", "null"):
        full[f"{place}/{what}"] = np.resize(full[f"{place}/{what}"], 10_000)
    full |= {f"{place}/pairs": np.resize(full[f"{place}/pairs"], (10_000, 2))}
    full |= {f"{place}/shapes": np.resize(full[f"{place}/shapes"], (10_000, 2))}
    results = models(lambda seed: full, lambda seed: full)
    sizes = {}
    for arms in ((STANDARD,), (PAPERS,)):
        one = {cell: run for cell, run in results.items() if cell.arm in arms and cell.seed == 0}
        found = EXPERIMENT.results(SPEC, one)
        kept = {cell: replace(run, arrays=_of(run.arrays, place)) for cell, run in found.items()}
        write_rows(EXPERIMENT, type(found)(SPEC, kept), tmp_path)
        sizes[arms[0]] = (tmp_path / ARRAYS).stat().st_size
    assert 12 * (3 * sizes[STANDARD] + 12 * sizes[PAPERS]) < 2 * 2**20


def _of(arrays: Arrays, place: str) -> dict[str, np.ndarray]:
    return {key: array for key, array in arrays.items() if key.startswith(f"{place}/")}


def test_pictures_show_every_task_and_both_arms() -> None:
    with house_style():
        drawn = EXPERIMENT.draw(SPEC, models(far, near))
        for name, picture in drawn.items():
            assert to_svg(picture.figure, name).count("<path") > 10
            assert picture.caption.endswith("3 models per arm; exponent 28.")
            assert picture.figure.get_suptitle()
    distributions = drawn["parallelogram_cdf"].figure
    assert [axes.get_title(loc="left") for axes in distributions.axes] == list(TASKS)
    assert all(len(axes.lines) == 4 * len(SPEC.seeds) for axes in distributions.axes)
    legend = [text.get_text() for text in distributions.legends[0].get_texts()]
    assert legend == ["standard", "standard, shuffled pairs", "harmonic", "harmonic, shuffled pairs"]
    for rank, place, which in (("best", 0, 0), ("median", 1, 2), ("worst", 2, 4)):
        panels = [axes for axes in drawn[f"parallelogram_{rank}"].figure.axes if axes.axison]
        assert len(panels) == 2 * len(TASKS)
        words = from_text_array(far(0)["parallelograms/capitalize/ranked_words"])[place][which]
        assert {text.get_text() for text in panels[0].texts} == set(words)


def test_the_best_parallelograms_stand_in_descending_order_with_their_shape() -> None:
    with house_style():
        figure = EXPERIMENT.draw(SPEC, models(far, near))["parallelogram_shapes"].figure
    assert "present-past" in figure.get_suptitle()
    standard, harmonic = np.array(figure.axes).reshape(2, -1)
    assert (standard[0].get_ylabel(), harmonic[0].get_ylabel()) == ("standard", "harmonic")
    for row, model in ((standard, far(0)), (harmonic, near(0))):
        losses = [float(axes.get_xlabel().split("\n")[0].removeprefix("loss ")) for axes in row]
        assert losses == sorted(losses)
        assert losses[0] == pytest.approx(float(model["parallelograms/present-past/losses"].min()), rel=0.05)
        assert all("area / sides" in axes.get_xlabel() for axes in row)


def test_the_settings_have_a_dot_per_task_on_the_side_where_it_lies() -> None:
    with house_style():
        figure = EXPERIMENT.draw(SPEC, models(far, near))["parallelogram_settings"].figure
    for axes in figure.axes:
        dots = [collection for collection in axes.collections if len(collection.get_offsets()) == len(TASKS)]
        assert len(dots) == len(SETTINGS)
        heights = np.concatenate([np.asarray(one.get_offsets())[:, 1] for one in dots])
        assert heights.max() < 1  # lower everywhere


@pytest.mark.parametrize("arm", [STANDARD, PAPERS])
def test_one_arm_alone_is_drawn_too(arm: str) -> None:
    with house_style():
        drawn = EXPERIMENT.draw(SPEC, {ArmCell(arm, 0): CellResult(arrays=dict(near(0)))})
        assert "parallelogram_settings" not in drawn
        assert "parallelogram_best" in drawn
        assert EXPERIMENT.draw(SPEC, {}) == {}
