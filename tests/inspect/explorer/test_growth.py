"""What a page stores of an embedding's growth is what numpy computes."""

import numpy as np
import pytest

from harmax.inspect.explorer import grown_run, unpack
from harmax.inspect.explorer.growth import broken_run

NAMED = {
    "task": "lattice",
    "task_title": "Lattice",
    "protocol": "matched",
    "model": "mlp",
    "head": "harmonic",
    "seed": 0,
}


@pytest.fixture
def embedding() -> np.ndarray:
    """Nine snapshots of 25 tokens that grow a thousand times."""
    generator = np.random.default_rng(0)
    start, end = generator.normal(size=(2, 25, 16)) * np.array([0.01, 10.0])[:, None, None]
    return np.stack([(1 - part) * start + part * end for part in np.linspace(0, 1, 9)]).astype(np.float32)


def run(embedding: np.ndarray, curves: tuple[np.ndarray, np.ndarray] | None = None):
    labels = [f"token {number}" for number in range(embedding.shape[1])]
    curves = curves or (np.linspace(0, 1, 800), np.linspace(0, 0.5, 800))
    colors = ["#000000"] * len(labels)
    return grown_run(embedding, range(len(embedding)), curves, colors=colors, edges=[(0, 1)], labels=labels, **NAMED)


def test_every_snapshot_is_seen_along_the_axes_of_the_last(embedding: np.ndarray) -> None:
    found = run(embedding)
    points = unpack(found.points) * unpack(found.units)[:, None, None]
    last = embedding[-1].astype(np.float64)
    _, singular, axes = np.linalg.svd(last - last.mean(0), full_matrices=False)
    for snapshot, own in zip(embedding.astype(np.float64), points, strict=True):
        expected = (snapshot - last.mean(0)) @ axes[:3].T
        # The sign of an axis is free.
        signs = np.sign((own * expected).sum(0))
        assert np.abs(own - expected * signs).max() <= np.abs(expected).max() / 60_000
    np.testing.assert_allclose(found.shares, (singular**2 / (singular**2).sum())[:3], atol=1e-6)


def test_long_curves_are_thinned_and_keep_their_ends(embedding: np.ndarray) -> None:
    found = run(embedding)
    epochs, train = unpack(found.curve_epochs), unpack(found.train_accuracy)
    assert len(epochs) <= 160
    assert (epochs[0], epochs[-1], train[0], train[-1]) == (1, 800, 0, 1)
    np.testing.assert_allclose(train, (epochs - 1) / 799, atol=1e-6)


def test_tokens_that_coincide_are_shown_in_one_place() -> None:
    found = run(np.ones((3, 5, 4)))
    assert not unpack(found.points).any()
    assert found.shares == (0, 0, 0)


def test_snapshots_and_epochs_must_go_together(embedding: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"`embedding` must have shape \(2 snapshots"):
        grown_run(embedding, [0, 1], ([0], [0]), colors=[], labels=[], **NAMED)


def test_a_diverged_run_keeps_its_accuracies_and_says_why() -> None:
    found = broken_run("It diverged.", (np.full(10, 0.5), np.full(10, 0.25)), labels=["a"], **NAMED)
    assert (found.note, found.epochs, len(unpack(found.test_accuracy))) == ("It diverged.", (), 10)
