"""Geometry of an embedding: planted parallelograms are found, and numbers agree with one another."""

import numpy as np
import pytest

from harmax.analysis import SETTINGS, parallelogram_shape
from harmax.data.folder import find_data
from harmax.hf import from_gpt2
from harmax.inspect import embedding_of, measure_embedding
from harmax.inspect.embedding import NEIGHBORS, QUERIES, SHOWN, Arrays, compare_models, comparison, from_text_array
from planted_models import FEATURES, TASKS, TOKENS, Numbers, measured, planted, tiny
from planted_words import GAUSSIAN_MEDIAN, PAIRS


@pytest.fixture(scope="module")
def near() -> Arrays:
    return measured(planted(0.2))


def test_exact_parallelograms_have_no_loss_in_any_setting_and_shuffled_ones_have() -> None:
    exact = measured(planted(0.0))
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
        middle = round((300 - SHOWN) / 2) + np.arange(SHOWN)
        places = np.concatenate([np.arange(SHOWN), middle, np.arange(-SHOWN, 0)])
        np.testing.assert_allclose(ranked, np.sort(losses)[places].reshape(3, SHOWN))
        # In the picture's units the gap is the loss.
        gaps = np.linalg.norm(plane[:, :, 0] - plane[:, :, 1] - plane[:, :, 2] + plane[:, :, 3], axis=-1)
        np.testing.assert_allclose(gaps, ranked, rtol=1e-3, atol=1e-6)
        # What is ranked first has the shape that is stored of it.
        best = parallelogram_shape(*plane[0].transpose(1, 0, 2).astype(float))
        stored = near[f"parallelograms/{task}/shapes"][np.argsort(losses, kind="stable")[:SHOWN]]
        np.testing.assert_allclose(stored, np.stack(best, axis=1), atol=2e-3)
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
    assert arrays["centers/neighbors/tokens"].shape == (len(QUERIES), NEIGHBORS)
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


def test_the_embedding_of_either_model_is_that_of_its_tokens() -> None:
    harmonic = from_gpt2(tiny())
    assert harmonic.transformer.wte.weight.shape[0] > TOKENS  # padded inside
    for model in (tiny(), harmonic, tiny(rows=TOKENS + 5).bfloat16()):
        found = embedding_of(model, tokens=TOKENS)
        assert found.shape == (TOKENS, FEATURES)
        assert found.dtype == np.float32
    np.testing.assert_array_equal(embedding_of(harmonic), embedding_of(tiny()))


@pytest.mark.skipif(find_data() is None, reason="no data folder")
def test_words_asked_for_are_tokens_of_gpt2() -> None:
    from harmax.data.text import load_encoding

    folder = find_data()
    assert folder is not None
    encoding = load_encoding(folder / "gpt2_bpe")
    assert all(len(encoding.encode(f" {word}")) == 1 for word in QUERIES)


def test_two_models_are_compared_on_the_same_quadruples_only(near: Arrays) -> None:
    far = measured(planted(0.8))
    place = "parallelograms/antonym"
    found = compare_models(near, far, place, f"{place}/pairs")
    assert found is not None
    medians = [np.median(arrays[f"{place}/losses"]) for arrays in (near, far)]
    assert found.ratio.estimate == pytest.approx(medians[0] / medians[1], rel=1e-5)
    assert found.ratio.high < 1
    assert compare_models(near, measured(planted(0.8), seed=1), place, f"{place}/pairs") is None
