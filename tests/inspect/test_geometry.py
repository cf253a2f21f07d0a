"""Measured language models: the figures carry their names."""

import pytest

from harmax.figures import house_style
from harmax.inspect import MeasuredModel, compare_measured, draw_measured
from planted_models import TASKS, TOKENS, measured, planted, states_of, tiny, with_embedding


def model(name: str, noise: float) -> MeasuredModel:
    x_VD = planted(noise)
    arrays = {**measured(x_VD), **states_of(with_embedding(tiny(), x_VD))}
    return MeasuredModel(name, f"folder/{name}", "numbers", TOKENS, arrays, "numbers")


@pytest.fixture(scope="module")
def two() -> list[MeasuredModel]:
    return [model("harmonic", 0.2), model("a model with a name of more than 28 letters", 0.8)]


def test_figures_carry_the_models_names(two: list[MeasuredModel]) -> None:
    with house_style():
        drawn = draw_measured(two, list(TASKS), [0])
    names = ["harmonic", "a model with a…han 28 letters"]
    pairs = [f"{name}{words}" for name in names for words in ("", ", shuffled pairs")]
    for figure in ("parallelogram_cdf", "layers_tasks"):
        assert [text.get_text() for text in drawn[figure].legends[0].get_texts()] == pairs
    assert [text.get_text() for text in drawn["token_centers"].legends[0].get_texts()] == names
    titles = [axes.get_title(loc="left").split("\n")[0] for axes in drawn["parallelogram_best"].axes]
    assert titles[:2] == [f"capitalize, {name}" for name in names]
    steps = [axes.get_title(loc="left").split("\n")[0] for axes in drawn["capitalize_steps"].axes]
    assert steps == [f"{name}, layer 0" for name in names]


def test_steps_are_of_another_task_if_capitals_were_not_measured(two: list[MeasuredModel]) -> None:
    with house_style():
        assert "present-past_steps" in draw_measured(two[:1], ["present-past"], [0])


def test_three_models_are_not_drawn(two: list[MeasuredModel]) -> None:
    with pytest.raises(ValueError, match="`models` must be one or two, got 3"):
        draw_measured([*two, two[0]], list(TASKS))


def test_models_are_compared_only_if_they_share_their_tokens(two: list[MeasuredModel]) -> None:
    far, near = two[1], two[0]
    ratios = compare_measured(far, near, list(TASKS), [0])
    assert ratios is not None
    assert ratios.keys() == {"embedding", "layer 0"}
    assert all(ratio.high < 1 for ratio in ratios["embedding"].values())
    other = MeasuredModel("other", "other", "letters", TOKENS, near.arrays, "letters")
    assert compare_measured(far, other, list(TASKS)) is None
