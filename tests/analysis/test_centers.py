"""Token centers: neighbors as brute force finds them, and a cloud described by numbers that are known for it."""

import numpy as np
import pytest
from sklearn.decomposition import PCA as Reference

from harmax.analysis import centers as module
from harmax.analysis import (
    explained_variance,
    nearest_tokens,
    participation_ratio,
    pca,
    summarize_centers,
    token_norms,
)


def cloud(tokens: int = 300, features: int = 12, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(tokens, features)) * np.linspace(2, 0.2, features)


@pytest.mark.parametrize(("block", "asked"), [(4096, 256), (7, 3), (1, 1), (300, 300)])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_neighbors_are_those_of_brute_force_whatever_the_blocks(
    monkeypatch: pytest.MonkeyPatch, block: int, asked: int, offset: float
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(module, "ASKED", asked)
    x = cloud() + offset
    tokens = np.array([5, 299, 0, 5, 17, 100, 101])
    found = nearest_tokens(x, tokens, count=4)
    distances = np.linalg.norm(x[tokens][:, None] - x, axis=2)
    distances[np.arange(len(tokens)), tokens] = np.inf
    np.testing.assert_array_equal(found.tokens, np.argsort(distances, axis=1)[:, :4])
    np.testing.assert_allclose(found.distances, np.sort(distances, axis=1)[:, :4], rtol=1e-9)


def test_twins_are_at_zero_exactly_and_a_token_is_not_its_own_neighbor() -> None:
    x = cloud().astype(np.float32) + 100
    x[[40, 7]] = x[3]
    found = nearest_tokens(x, [3, 7], count=2)
    assert found.tokens.tolist() == [[7, 40], [3, 40]]
    assert not found.distances.any()


def test_a_small_vocabulary_has_fewer_neighbors() -> None:
    found = nearest_tokens(np.eye(3), [1], count=10)
    assert found.tokens.tolist() == [[0, 2]]
    np.testing.assert_allclose(found.distances, np.sqrt(2))


def test_norms_and_their_quantiles() -> None:
    x = np.outer(np.arange(1, 102), [0.6, 0.8])
    np.testing.assert_allclose(token_norms(x), np.arange(1, 102))
    norms = summarize_centers(x).norms
    assert {level: round(norm, 9) for level, norm in norms.items()} == {
        0.0: 1,
        0.05: 6,
        0.25: 26,
        0.5: 51,
        0.75: 76,
        0.95: 96,
        1.0: 101,
    }


def test_the_variance_along_components_is_scikit_learns() -> None:
    x = cloud() + 3
    found, reference = summarize_centers(x), Reference(svd_solver="full").fit(x)
    np.testing.assert_allclose(found.explained, np.cumsum(reference.explained_variance_ratio_))
    assert found.explained[1] == pytest.approx(explained_variance(x))
    assert found.participation_ratio == pytest.approx(participation_ratio(x))
    shares = reference.explained_variance_ratio_
    assert found.effective_rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_equal_directions_are_counted(count: int) -> None:
    x = np.pad(np.concatenate([np.eye(count), -np.eye(count)]), ((0, 0), (0, 2)))
    found = summarize_centers(x)
    assert found.participation_ratio == pytest.approx(count)
    assert found.effective_rank == pytest.approx(count)
    assert found.mean_share == pytest.approx(0, abs=1e-12)


def test_weak_directions_count_more_for_the_effective_rank() -> None:
    found = summarize_centers(cloud())
    assert 1 < found.participation_ratio < found.effective_rank < 12


def test_the_share_of_the_mean() -> None:
    x = np.concatenate([np.eye(4), -np.eye(4)])  # of length 1 each, around 0
    for shift, expected in ((0.0, 0.0), (1.0, 0.5), (3.0, 0.9)):
        moved = x + shift * np.array([1.0, 0, 0, 0])
        assert summarize_centers(moved).mean_share == pytest.approx(expected, abs=1e-12)
    assert summarize_centers(np.ones((5, 3))).mean_share == pytest.approx(1)


@pytest.mark.parametrize("scale", [1e-150, 1e-3, 1e150])
def test_shares_do_not_depend_on_scale_or_direction(scale: float) -> None:
    x = cloud() + 1
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(12, 12)))[0]
    found, moved = summarize_centers(x), summarize_centers(scale * x @ turn)
    np.testing.assert_allclose(moved.explained, found.explained, rtol=1e-9)
    assert moved.mean_share == pytest.approx(found.mean_share)
    assert moved.effective_rank == pytest.approx(found.effective_rank)
    assert moved.participation_ratio == pytest.approx(found.participation_ratio)


def test_rows_that_are_all_the_same_use_no_direction() -> None:
    for value in (0.0, 2.0):
        found = summarize_centers(np.full((6, 3), value))
        assert found.explained.tolist() == [1, 1, 1]
        assert found.participation_ratio == found.effective_rank == 0


def test_components_found_before_are_used() -> None:
    x = cloud()
    np.testing.assert_array_equal(summarize_centers(x, fitted=pca(x)).explained, summarize_centers(x).explained)
    with pytest.raises(ValueError, match=r"features of `embedding`, got \(3,\); pass pca"):
        summarize_centers(x, fitted=pca(x[:, :3]))


@pytest.mark.parametrize(
    ("embedding", "tokens", "count", "message"),
    [
        (np.eye(3), [3], 1, r"`tokens` must be .*0 to 2, got \[3\]"),
        (np.eye(3), [-1], 1, "`tokens` must be .*0 to 2"),
        (np.eye(3), [0.5], 1, "must be whole numbers"),
        (np.eye(3), [], 1, "must be whole numbers"),
        (np.eye(3), [0], 0, "`count` must be at least 1"),
        (np.ones(3), [0], 1, r"shape \(tokens, features\) with 2 tokens or more, got \(3,\)"),
        (np.ones((1, 3)), [0], 1, "2 tokens or more"),
        (np.array([[0.0], [np.inf], [1.0]]), [0], 1, "NaN or infinity in 1 of 3 rows"),
    ],
)
def test_bad_input_is_refused(embedding: np.ndarray, tokens: list[float], count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nearest_tokens(embedding, tokens, count)
