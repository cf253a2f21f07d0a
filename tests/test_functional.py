"""HarMax itself: distances in, probabilities out."""

import pytest
import torch

from harmax import harmax, harmonic_logits, log_harmax, squared_distance


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 7.5])
def test_is_the_definition(exponent):
    torch.manual_seed(0)
    distance = torch.rand(4, 6, dtype=torch.float64) + 0.1
    weight = distance**-exponent
    torch.testing.assert_close(harmax(distance, exponent), weight / weight.sum(-1, keepdim=True))
    torch.testing.assert_close(log_harmax(distance, exponent), (weight / weight.sum(-1, keepdim=True)).log())


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_any_dimension(dim):
    distance = torch.rand(3, 4, 5) + 0.1
    probability = harmax(distance, 3.0, dim=dim)
    assert probability.shape == distance.shape
    torch.testing.assert_close(probability.sum(dim), torch.ones_like(probability.sum(dim)))
    torch.testing.assert_close(probability, harmax(distance.movedim(dim, -1), 3.0).movedim(-1, dim))


def test_scale_does_not_matter():
    distance = torch.rand(3, 4) + 0.1
    for power in (-40, 40):
        torch.testing.assert_close(harmax(2.0**power * distance, 5.0), harmax(distance, 5.0))


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 100.0])
def test_zeros_share_everything_and_gradients_stay_finite(exponent):
    distance = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 0.0]], requires_grad=True)
    probability = harmax(distance, exponent)
    want = torch.tensor([[0.5, 0.0, 0.5], [1 / 3, 1 / 3, 1 / 3], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(probability, want, atol=1e-6, rtol=1e-5)
    probability[:, 2].sum().backward()
    assert distance.grad.isfinite().all()


def test_an_infinite_distance_has_no_probability():
    assert harmax(torch.tensor([1.0, float("inf"), 1.0]), 2.0).tolist() == [0.5, 0.0, 0.5]


def test_a_probability_close_to_one_keeps_its_logarithm():
    log_p = log_harmax(torch.tensor([1e-15, 1.0, 2.0]), 1.0)
    assert log_p[0].item() == pytest.approx(-1.5e-15, rel=1e-5)


def test_matches_the_logits_of_the_head():
    torch.manual_seed(1)
    x, w = torch.randn(4, 6), torch.randn(5, 6)
    got = harmax(squared_distance(x, w).sqrt(), 3.0)
    torch.testing.assert_close(got, harmonic_logits(x, w, exponent=3.0).softmax(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtype(dtype):
    got = harmax(torch.ones(3, dtype=dtype), 2.0)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_gradcheck():
    distance = (torch.rand(3, 4, dtype=torch.float64) + 0.1).requires_grad_()
    exponent = torch.tensor(2.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(harmax, (distance, exponent))
    assert torch.autograd.gradgradcheck(harmax, (distance, exponent))
