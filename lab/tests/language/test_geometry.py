"""Geometry of a language model: planted parallelograms are found, judged as what they are, and drawn."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from harmax.analysis import SETTINGS
from harmax.data.folder import find_data
from harmax.figures import house_style
from harmax.files import to_json
from harmax.hf import HarmonicGPT2LMHeadModel, from_gpt2
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.experiment import Summary
from harmax_lab.kit.report.svg import to_svg
from harmax_lab.kit.store import CellResult
from harmax_lab.language import layers, parallelograms
from harmax_lab.language.embedding import (
    NEIGHBOURS,
    QUERIES,
    SHOWN,
    comparison,
    embedding_of,
    from_text_array,
    measure_embedding,
)
from harmax_lab.language.layers import last_states, mean_cosine, measure_layers
from harmax_lab.language.parallelograms import too_many
from harmax_lab.language.spec import HARMONIC, STANDARD, ArmCell, LanguageSpec
from planted_words import GAUSSIAN_MEDIAN, PAIRS

TOKENS, FEATURES = 260, 12
TASKS = {
    "capitalize": [(str(a), str(b)) for a, b in PAIRS[:40]],
    "antonym": [(str(a), str(b)) for a, b in PAIRS[40:70]],
    "synonym": [(str(a), str(b)) for a, b in PAIRS[70:]],
}
SPEC = LanguageSpec(layers=(0,))
Arrays = Mapping[str, np.ndarray]


class Numbers:
    """Words are numbers, one token each, or several joined by a plus; other words are some token or other."""

    n_vocab = TOKENS

    def encode(self, text: str, /) -> list[int]:
        word = text.strip()
        return [int(part) for part in word.split("+")] if word[0].isdigit() else [sum(map(ord, word)) % TOKENS]

    def decode(self, tokens: list[int]) -> str:
        return "+".join(map(str, tokens))


def planted(noise: float, *, seed: int = 0, features: int = FEATURES) -> np.ndarray:
    """Gaussian tokens in which each task's second words lie one step from the first, up to noise."""
    generator = np.random.default_rng(seed)
    x_VD = generator.standard_normal((TOKENS, features))
    for task in TASKS.values():
        step_D = generator.standard_normal(features)
        for first, second in task:
            x_VD[int(second)] = x_VD[int(first)] + step_D + noise * generator.standard_normal(features)
    return x_VD.astype(np.float32)


def measured(x_VD: np.ndarray, **settings: Any) -> dict[str, np.ndarray]:
    return measure_embedding(x_VD, TASKS, Numbers(), **{"quadruples": 300, "seed": 0, **settings})


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


def test_exact_parallelograms_have_no_loss_in_any_setting_and_shuffled_ones_have(exact: Arrays) -> None:
    for task in TASKS:
        place = f"parallelograms/{task}"
        assert exact[f"{place}/losses"].max() < 1e-4
        assert np.median(exact[f"{place}/null"]) > 0.3
        assert exact[f"{place}/quantiles"].shape == (2, len(SETTINGS), 101)
        assert exact[f"{place}/quantiles"][0].max() < 1e-3
        assert exact[f"{place}/quantiles"][1, :, 50].min() > 0.3
        assert comparison(exact[f"{place}/against_null"]).ratio.high < 1e-3


def test_pairs_without_a_relation_have_the_loss_of_chance() -> None:
    noise = np.random.default_rng(3).standard_normal((TOKENS, 2))
    everything = {"all": [(str(a), str(b)) for a, b in PAIRS]}
    arrays = measure_embedding(noise, everything, Numbers(), quadruples=2000, seed=0)
    assert np.median(arrays["parallelograms/all/losses"]) == pytest.approx(GAUSSIAN_MEDIAN, rel=0.15)
    ratio = comparison(arrays["parallelograms/all/against_null"]).ratio
    assert ratio.low < 1 < ratio.high


def test_stored_numbers_agree_with_one_another(near: Arrays) -> None:
    for task, words in TASKS.items():
        losses, quantiles, counts = (near[f"parallelograms/{task}/{k}"] for k in ("losses", "quantiles", "counts"))
        np.testing.assert_allclose(quantiles[0, 0, [0, 50, 100]], np.quantile(losses, [0, 0.5, 1]), rtol=1e-5)
        assert counts.tolist() == [300, len(words), 2 * len(words)]
        ranked, plane = (near[f"parallelograms/{task}/ranked_{k}"] for k in ("losses", "plane"))
        np.testing.assert_allclose(ranked, np.sort(losses)[[0, 1, 2, 148, 149, 150, -3, -2, -1]].reshape(3, SHOWN))
        # In the picture's units the gap is the loss.
        gaps = np.linalg.norm(plane[:, :, 0] - plane[:, :, 1] - plane[:, :, 2] + plane[:, :, 3], axis=-1)
        np.testing.assert_allclose(gaps, ranked, rtol=1e-3, atol=1e-6)
        shown = from_text_array(near[f"parallelograms/{task}/ranked_words"])
        assert np.array(shown).astype(int).tolist() == near[f"parallelograms/{task}/ranked_tokens"].tolist()


def test_the_unit_of_an_embedding_does_not_count(near: Arrays) -> None:
    larger = measured(7 * planted(0.2))
    for task in TASKS:
        key = f"parallelograms/{task}/quantiles"
        np.testing.assert_allclose(larger[key], near[key], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(larger["centers/vocabulary/norms"], 7 * near["centers/vocabulary/norms"], rtol=1e-5)
    np.testing.assert_allclose(larger["centers/vocabulary/explained"], near["centers/vocabulary/explained"], rtol=1e-5)


def test_neighbors_come_with_their_texts() -> None:
    x_VD = planted(1.0)
    asked = Numbers().encode(" king")[0]
    x_VD[7] = x_VD[asked] + 1e-3
    arrays = measured(x_VD)
    assert arrays["centers/neighbors/tokens"].shape == (len(QUERIES), NEIGHBOURS)
    words = from_text_array(arrays["centers/neighbors/words"])
    assert words[QUERIES.index("king")][:2] == ["king", "7"]
    assert arrays["centers/neighbors/distances"][QUERIES.index("king"), 0] == pytest.approx(
        1e-3 * FEATURES**0.5, rel=1e-3
    )


def test_progress_is_told_and_ends(near: Arrays) -> None:
    told: list[float] = []
    again = measured(planted(0.2), progress=lambda fraction, message="", /: told.append(fraction))
    assert told == sorted(told)
    assert told[-1] == 1
    assert again.keys() == near.keys()
    assert all(np.array_equal(again[key], near[key]) for key in near)


def test_a_better_harmonic_embedding_is_found_better_and_a_worse_one_worse(near: Arrays, far: Arrays) -> None:
    better = verdicts(parallelograms.summarize(SPEC, arms(standard=far, harmonic=near)))
    assert set(better.values()) == {REPRODUCED}
    worse = verdicts(parallelograms.summarize(SPEC, arms(standard=near, harmonic=far)))
    assert worse.pop("better_than_shuffled") == REPRODUCED
    assert set(worse.values()) == {NOT_REPRODUCED}


def test_equal_arms_decide_nothing_between_them(near: Arrays) -> None:
    summary = parallelograms.summarize(SPEC, arms(near, near))
    found = verdicts(summary)
    assert {found[claim] for claim in ("lower_in_every_task", "lower_in_most_tasks", "gains_more_on_shuffled")} == {
        NOT_DECIDED
    }
    assert all("one model an arm" in verdict.sentence for verdict in summary.verdicts)


def test_seeds_that_contradict_each_other_decide_nothing(near: Arrays, far: Arrays) -> None:
    results = arms(far, near) | {
        ArmCell(STANDARD, 1): CellResult(arrays=near),
        ArmCell(HARMONIC, 1): CellResult(arrays=far),
    }
    spec = replace(SPEC, seeds=(0, 1))
    assert verdicts(parallelograms.summarize(spec, results))["lower_in_most_tasks"] == NOT_DECIDED
    agreeing = arms(far, near) | {
        ArmCell(STANDARD, 1): CellResult(arrays=far),
        ArmCell(HARMONIC, 1): CellResult(arrays=near),
    }
    summary = parallelograms.summarize(spec, agreeing)
    assert verdicts(summary)["lower_in_most_tasks"] == REPRODUCED
    assert "2 models an arm" in summary.verdicts[0].sentence
    assert len(summary.tables[0].rows) == 2 * len(TASKS)


def test_a_missing_arm_or_generated_tokens_decide_nothing(near: Arrays, far: Arrays) -> None:
    results = arms(far, near)
    for some in ({}, dict(list(results.items())[:1])):
        summary = parallelograms.summarize(SPEC, some)
        assert set(verdicts(summary).values()) == {NOT_DECIDED}
        to_json(asdict(summary))
    embedded = parallelograms.summarize(replace(SPEC, embedded=True), results)
    assert set(verdicts(embedded).values()) == {NOT_DECIDED}
    assert "lower" in embedded.verdicts[0].sentence


def test_tables_have_rows_of_one_kind(exact: Arrays, far: Arrays) -> None:
    summary = parallelograms.summarize(SPEC, arms(far, exact))
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
        drawn = parallelograms.figures(SPEC, arms(far, near))
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
        drawn = parallelograms.figures(SPEC, {ArmCell(arm, 0): CellResult(arrays=near)})
        assert "parallelogram_settings" not in drawn
        assert "parallelogram_best" in drawn
        assert parallelograms.figures(SPEC, {}) == {}


def tiny(*, rows: int = TOKENS) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=rows, n_positions=8, n_embd=FEATURES, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config)


def with_embedding(model: GPT2LMHeadModel, x_VD: np.ndarray) -> GPT2LMHeadModel:
    with torch.no_grad():
        model.transformer.wte.weight[:TOKENS] = torch.from_numpy(x_VD)
    return model


def states_of(model: Any, *, pairs: Any = None, at: tuple[int, ...] = (0,)) -> dict[str, np.ndarray]:
    return measure_layers(model, pairs or TASKS, Numbers(), layers=at, quadruples=200, seed=0, device="cpu")


def test_the_embedding_of_either_model_is_that_of_its_tokens() -> None:
    harmonic = from_gpt2(tiny())
    assert harmonic.transformer.wte.weight.shape[0] > TOKENS  # padded inside
    for model in (tiny(), harmonic, tiny(rows=TOKENS + 5).bfloat16()):
        found = embedding_of(model, tokens=TOKENS)
        assert found.shape == (TOKENS, FEATURES)
        assert found.dtype == np.float32
    np.testing.assert_array_equal(embedding_of(harmonic), embedding_of(tiny()))


@pytest.mark.parametrize("harmonic", [False, True])
def test_a_state_is_that_of_the_last_token_of_the_word_alone(harmonic: bool) -> None:
    model = (from_gpt2(tiny()) if harmonic else tiny()).train()
    words = [(5,), (3, 17), (9,), (4, 3, 17), (17, 3)]
    found = last_states(model, words, [0, 1, 2], "cpu")
    assert model.transformer.training
    model.eval()
    for row, tokens in enumerate(words):
        with torch.no_grad():
            states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        for layer in (0, 1, 2):
            np.testing.assert_allclose(found[layer][row], states[layer][0, -1].numpy(), rtol=1e-4, atol=1e-6)


def test_layers_find_planted_parallelograms_and_parallel_steps() -> None:
    arrays = states_of(with_embedding(tiny(), planted(0.0)), at=(0, 1))
    for task in TASKS:
        # What enters the first block is the embedding and the place, which all words share.
        assert arrays[f"layers/{task}/0/losses"].max() < 1e-4
        assert np.median(arrays[f"layers/{task}/0/null"]) > 0.3
        (real, shuffled), alone = arrays[f"layers/{task}/0/cosine"]
        np.testing.assert_allclose(real, 1, atol=1e-5)
        assert shuffled[2] < 0.95
        np.testing.assert_allclose(alone[0], 1, atol=1e-5)
        assert arrays[f"layers/{task}/one_token"].all()
        assert arrays[f"layers/{task}/1/losses"].max() > 1e-3  # a block bends them


def test_the_same_points_give_the_same_losses_as_an_embedding() -> None:
    model = with_embedding(tiny(), planted(0.3))
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
    inside, outside = states_of(model), measured(planted(0.3), quadruples=200)
    for task in TASKS:
        np.testing.assert_allclose(
            inside[f"layers/{task}/0/losses"], outside[f"parallelograms/{task}/losses"], rtol=1e-4, atol=1e-6
        )


def test_longer_words_and_padding_leave_the_unit_alone() -> None:
    mixed = {"capitalize": [*TASKS["capitalize"], ("201+0", "201+1"), ("202+2", "203+4")]}
    model = with_embedding(tiny(), planted(0.3))
    padded = with_embedding(tiny(rows=TOKENS + 4), planted(0.3))
    with torch.no_grad():
        padded.transformer.wpe.weight.copy_(model.transformer.wpe.weight)
        padded.transformer.wte.weight[TOKENS:] = 100.0
    one, two = states_of(model, pairs=mixed), states_of(padded, pairs=mixed)
    for key in one:
        np.testing.assert_allclose(one[key], two[key], rtol=1e-4, atol=1e-6, err_msg=key)
    alone = one["layers/capitalize/one_token"][0]
    assert 0 < alone.sum() < len(alone)
    plain = states_of(model, pairs={"capitalize": TASKS["capitalize"]})
    np.testing.assert_allclose(one["layers/capitalize/0/cosine"][1], plain["layers/capitalize/0/cosine"][0], rtol=1e-5)
    assert not np.allclose(one["layers/capitalize/0/cosine"][0], plain["layers/capitalize/0/cosine"][0])


def test_layers_and_words_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be one or more of 0 to 2, got \(3,\)"):
        states_of(tiny(), at=(3,))
    with pytest.raises(ValueError, match=r"below 260, got \(999,\) for '999'"):
        states_of(tiny(), pairs={"antonym": [("1", "999"), ("2", "3")]})


def test_mean_cosine_is_over_pairs_of_different_steps() -> None:
    steps = np.random.default_rng(0).standard_normal((30, 4)) + 0.7
    unit = steps / np.linalg.norm(steps, axis=1, keepdims=True)
    expected = (unit @ unit.T)[~np.eye(30, dtype=bool)].mean()
    found = mean_cosine(steps)
    assert found.estimate == pytest.approx(expected, abs=1e-9)
    assert found.low < expected < found.high
    assert mean_cosine(np.eye(5)).estimate == pytest.approx(0, abs=1e-9)
    assert mean_cosine(np.concatenate([steps, np.zeros((3, 4))])).estimate == pytest.approx(expected, abs=1e-9)
    assert np.isnan(mean_cosine(steps[:2]).estimate)


@pytest.fixture(scope="module")
def layer_arms() -> dict[ArmCell, CellResult]:
    standard = with_embedding(tiny(), planted(1.0))
    harmonic = with_embedding(from_gpt2(tiny()), planted(0.1))
    assert isinstance(harmonic, HarmonicGPT2LMHeadModel)
    return arms(states_of(standard), states_of(harmonic))


def test_layers_are_judged(layer_arms: dict[ArmCell, CellResult]) -> None:
    summary = layers.summarize(SPEC, layer_arms)
    assert set(verdicts(summary).values()) == {REPRODUCED}
    to_json(asdict(summary))
    for table in summary.tables:
        assert len({tuple(row) for row in table.rows}) == 1
    standard, harmonic = layer_arms.values()
    swapped = verdicts(layers.summarize(SPEC, arms(harmonic.arrays, standard.arrays)))
    assert swapped["parallel_in_layer"] == swapped["lower_in_most_tasks_in_layer"] == NOT_REPRODUCED
    assert swapped["more_parallel_than_shuffled"] == REPRODUCED
    for some in ({}, dict(list(layer_arms.items())[:1])):
        assert set(verdicts(layers.summarize(SPEC, some)).values()) == {NOT_DECIDED}


def test_layers_are_drawn(layer_arms: dict[ArmCell, CellResult]) -> None:
    with house_style():
        drawn = layers.figures(SPEC, layer_arms)
        for name, picture in drawn.items():
            assert to_svg(picture.figure, name).count("<path") > 10
        assert layers.figures(SPEC, {}) == {}
        assert layers.figures(SPEC, dict(list(layer_arms.items())[:1])).keys() == drawn.keys()
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


@pytest.mark.skipif(find_data() is None, reason="no data folder")
def test_words_asked_for_are_tokens_of_gpt2() -> None:
    from harmax.data.text import load_encoding

    folder = find_data()
    assert folder is not None
    encoding = load_encoding(folder / "gpt2_bpe")
    assert all(len(encoding.encode(f" {word}")) == 1 for word in QUERIES)
