"""Shapes of parallelograms: what planted ones look like, and that size, place and direction do not count."""

# Q quadruples, R components

import numpy as np
import pytest

from harmax.analysis import ParallelogramShape, parallelogram_shape, parallelogram_space, sample_quadruples
from planted_words import PAIRS

Corners = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def corners(degrees: float, side: float = 1.0, components: int = 2) -> Corners:
    """Return one parallelogram with sides 1 and `side` at an angle, in the first two of some components."""
    angle = np.radians(degrees)
    u, v = np.zeros((2, 1, components))
    u[0, 0] = 1.0
    v[0, :2] = side * np.cos(angle), side * np.sin(angle)
    return np.zeros_like(u), u, v, u + v


def drawn(count: int = 40, components: int = 2) -> Corners:
    a, b, c, d = np.random.default_rng(0).normal(size=(4, count, components))
    return a, b, c, d


def assert_same(one: ParallelogramShape, other: ParallelogramShape) -> None:
    for left, right in zip(one, other, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("components", [2, 5])
@pytest.mark.parametrize("side", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("degrees", [0.0, 3.0, 30.0, 90.0, 150.0, 180.0])
def test_planted_shapes_are_found(degrees: float, side: float, components: int) -> None:
    found = parallelogram_shape(*corners(degrees, side, components))
    assert found.sine[0] == pytest.approx(np.sin(np.radians(degrees)), abs=1e-9)
    u, _, v = (corners(degrees, side)[place] for place in (1, 0, 2))
    extents = np.linalg.svd(np.concatenate([u, v]), compute_uv=False)
    assert found.width[0] == pytest.approx(extents[1] / extents[0], abs=1e-7)


def test_a_rectangle_a_square_and_a_flat_one() -> None:
    assert parallelogram_shape(*corners(90, 1 / 3)).sine[0] == pytest.approx(1)
    assert parallelogram_shape(*corners(90, 1 / 3)).width[0] == pytest.approx(1 / 3)
    assert parallelogram_shape(*corners(90)).width[0] == pytest.approx(1)
    assert parallelogram_shape(*corners(0.0)) == (0, 0)


def test_sides_of_no_length_are_flat() -> None:
    nowhere, point = np.zeros((1, 2)), np.ones((1, 2))
    assert parallelogram_shape(nowhere, nowhere, point, point) == (0, 0)
    assert parallelogram_shape(nowhere, point, nowhere, point) == (0, 0)
    assert parallelogram_shape(nowhere, nowhere, nowhere, nowhere) == (0, 0)


@pytest.mark.parametrize("components", [2, 3])
def test_size_place_direction_and_mirroring_do_not_count(components: int) -> None:
    turned = np.linalg.qr(np.random.default_rng(1).normal(size=(components, components)))[0]
    plain = drawn(components=components)
    for scale in (1e-6, 1.0, 1e6):
        moved = [scale * (corner @ turned + 5) for corner in plain]
        assert_same(parallelogram_shape(*moved), parallelogram_shape(*plain))


def test_the_order_of_the_pairs_and_of_their_words_does_not_count() -> None:
    a, b, c, d = drawn()
    for order in ((c, d, a, b), (b, a, d, c), (a, c, b, d)):
        assert_same(parallelogram_shape(*order), parallelogram_shape(a, b, c, d))


def test_a_gap_changes_the_shape_as_little_as_it_can() -> None:
    a, b, c, d = corners(40, 2.0)
    gap = np.array([[0.3, -0.2]])
    # Moved by a quarter of the gap each, the corners form the parallelogram whose shape is given.
    open_corners = (a + gap / 4, b - gap / 4, c - gap / 4, d + gap / 4)
    assert_same(parallelogram_shape(*open_corners), parallelogram_shape(a, b, c, d))


def test_the_space_of_an_embedding_gives_the_shapes_that_are_drawn() -> None:
    x = np.random.default_rng(0).normal(size=(400, 8))
    quadruples = sample_quadruples(PAIRS, 100)
    space = parallelogram_space(x, quadruples.tokens)
    assert_same(space.shapes(quadruples), parallelogram_shape(*space.coordinates(quadruples.tokens).transpose(1, 0, 2)))


def test_random_directions_have_the_sine_of_chance() -> None:
    found = parallelogram_shape(*drawn(20_000))
    assert found.sine.mean() == pytest.approx(2 / np.pi, abs=0.01)
    assert ((found.width >= 0) & (found.width <= 1) & (found.width <= found.sine + 1e-12)).all()


def test_corners_of_different_shapes_are_refused() -> None:
    a, b, c, d = drawn()
    with pytest.raises(ValueError, match="must have one shape"):
        parallelogram_shape(a, b, c, d[:3])
