"""A head on features: what is chosen is chosen within the training pictures, and given numbers are kept."""

import math

import pytest
import torch
from torch import Tensor

from harmax.train.pictures.head import FACTORS, fit_head, start_head


def clouds(count: int, spread: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes around fixed points of a space of 9 dimensions."""
    numbers = torch.Generator().manual_seed(seed)
    points = 5 * torch.eye(9)[:3]
    y = torch.arange(3).repeat_interleave(count)
    return points[y] + spread * torch.randn(3 * count, 9, generator=numbers), y


def test_the_exponent_follows_the_noise() -> None:
    exponents = {}
    for spread in (0.5, 3.0):
        x, y = clouds(10, spread)
        fitted = fit_head(x, y, 3, batch=30, epochs=3)
        assert fitted.exponent in [factor * 3 for factor in FACTORS]
        assert fitted.epochs == 3
        exponents[spread] = fitted.exponent
    assert exponents[3.0] < exponents[0.5]  # doubtful pictures want soft answers


def test_epochs_are_chosen_and_new_pictures_are_classified() -> None:
    x, y = clouds(15, 1.0)
    fitted = fit_head(x, y, 3, batch=45, exponent=6.0)
    assert fitted.exponent == 6.0
    assert fitted.validated is not None
    new, labels = clouds(100, 1.0, seed=1)
    assert (fitted.head(new).argmax(1) == labels).double().mean() > 0.97
    before = torch.nn.functional.cross_entropy(start_head(x, y, 3, 6.0).eval()(new), labels)
    assert torch.nn.functional.cross_entropy(fitted.head(new), labels) <= before + 0.01


def test_the_scale_of_the_features_does_not_matter() -> None:
    x, y = clouds(10, 1.0)
    one, other = (fit_head(factor * x, y, 3, batch=30, exponent=6.0, epochs=4).head for factor in (1.0, 1024.0))
    torch.testing.assert_close(1024 * one.centers, other.centers, rtol=1e-3, atol=1e-2)


def test_with_a_single_picture_of_a_class_nothing_is_left_out() -> None:
    x, y = clouds(1, 0.5)
    fitted = fit_head(x, y, 3, batch=3)
    assert (fitted.exponent, fitted.epochs, fitted.validated) == (math.sqrt(9), 0, None)
    torch.testing.assert_close(fitted.head.centers, x)


def test_the_same_pictures_give_the_same_head() -> None:
    x, y = clouds(10, 1.0)
    one, other = (fit_head(x, y, 3, batch=8, epochs=3, seed=4) for _ in range(2))
    assert one.exponent == other.exponent
    assert one.head.weight.equal(other.head.weight)
    assert not one.head.weight.equal(fit_head(x, y, 3, batch=8, epochs=3, seed=5).head.weight)


@pytest.mark.parametrize("threads", [2])
def test_threads_are_given_back(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        fit_head(*clouds(3, 0.5), 3, batch=9, exponent=6.0, epochs=1)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
