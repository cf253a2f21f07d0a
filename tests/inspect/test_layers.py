"""Geometry inside a language model: states are those of the words alone, and planted steps are found parallel."""

import numpy as np
import pytest
import torch

from harmax.hf import from_gpt2
from harmax.inspect import mean_cosine
from harmax.inspect.layers import last_states
from planted_models import TASKS, TOKENS, measured, planted, states_of, tiny, with_embedding


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


def test_partners_that_fall_together_are_found_near_and_others_far() -> None:
    x_VD = planted(0.0)
    for first, second in TASKS["capitalize"]:
        x_VD[int(second)] = x_VD[int(first)] + 1e-3
    arrays = states_of(with_embedding(tiny(), x_VD))
    together, apart = (np.median(arrays[f"layers/{task}/0/partners"], axis=0) for task in ("capitalize", "antonym"))
    assert together[0] < 0.01 * together[1]
    assert apart[0] > 0.3 * apart[1]
    assert arrays["layers/capitalize/single"].all()
    assert arrays["layers/capitalize/0/partners"].shape == (len(TASKS["capitalize"]), 2)


def test_partners_are_shuffled_among_pairs_of_their_kind() -> None:
    same_end = [("7", "7"), ("201+9", "9"), ("201+9", "202+9")]
    mixed = {"capitalize": [*TASKS["capitalize"][:10], ("201+0", "201+1"), ("202+2", "203+4"), *same_end]}
    arrays = states_of(with_embedding(tiny(), planted(0.3)), pairs=mixed)
    single, partners = arrays["layers/capitalize/single"], arrays["layers/capitalize/0/partners"]
    assert single.tolist() == [True] * 10 + [False] * 2  # without pairs that end in the same token
    assert np.isfinite(partners).all()
    alone = states_of(with_embedding(tiny(), planted(0.3)), pairs={"capitalize": [*mixed["capitalize"][:11]]})
    assert np.isnan(alone["layers/capitalize/0/partners"]).tolist() == [[False, False]] * 10 + [[False, True]]


def test_the_unit_of_distances_is_the_spread_of_the_tokens() -> None:
    models = [with_embedding(tiny(), scale * planted(0.3)) for scale in (1, 10)]
    for model in models:
        model.transformer.wpe.weight.data.zero_()  # what is added to the tokens does not grow with them
    one, ten = map(states_of, models)
    for what in ("losses", "partners"):
        np.testing.assert_allclose(one[f"layers/antonym/0/{what}"], ten[f"layers/antonym/0/{what}"], rtol=1e-3)
