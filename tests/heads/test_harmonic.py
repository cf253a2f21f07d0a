"""The harmonic head itself: weights, centers, exponents, initial values."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from harmax import HarmonicHead, HarmonicLoss, LearnableHarmonicHead, squared_distance
from harmax.heads import CenterHead


def test_a_linear_state_dict_loads():
    linear, head = nn.Linear(6, 5, bias=False), HarmonicHead(6, 5)
    head.load_state_dict(linear.state_dict())
    assert torch.equal(head.weight, linear.weight)
    assert list(head.state_dict()) == ["weight", "settings"]
    assert not isinstance(head, nn.Linear)
    assert not hasattr(head, "bias")


def test_ties_with_an_embedding_both_ways():
    for direction in ("to head", "to embedding"):
        embedding, head = nn.Embedding(5, 6), HarmonicHead(6, 5)
        if direction == "to head":
            head.weight = embedding.weight
        else:
            embedding.weight = head.weight
        head(embedding(torch.tensor([1, 2]))).sum().backward()
        assert embedding.weight.grad is head.weight.grad
        assert head.weight.grad.abs().sum() > 0


def test_distance_has_a_finite_gradient_at_zero():
    head = HarmonicHead(4, 3)
    x = head.centers[:2].clone().requires_grad_()
    distance = head.distance(x)
    torch.testing.assert_close(distance, torch.cdist(x, head.weight), atol=1e-6, rtol=1e-5)
    distance.sum().backward()
    assert x.grad.isfinite().all()
    assert head.weight.grad.isfinite().all()
    assert distance[0, 0] == 0


def test_exponent_defaults_to_the_root_of_the_width_and_shows():
    head = HarmonicHead(16, 3)
    assert head.exponent == 4
    assert "exponent=4" in repr(head)


def test_class_means():
    torch.manual_seed(5)
    x, target = torch.randn(2, 30, 6), torch.randint(3, (2, 30))
    head = HarmonicHead(6, 4)
    kept = head.centers[3].clone()
    head.init_from_class_means(x, target)
    for label in range(3):
        torch.testing.assert_close(head.centers[label], x[target == label].mean(0))
    assert torch.equal(head.centers[3], kept)  # no example: left where it was


def test_initialization():
    torch.manual_seed(6)
    head = HarmonicHead(400, 300)
    assert head.weight.abs().max() <= 1 / 20
    assert head.centers.std() == pytest.approx(1 / 20 / 3**0.5, rel=0.02)
    head.reset_parameters(std=0.5)
    assert head.centers.std() == pytest.approx(0.5, rel=0.02)


def test_learnable_exponent_learns_and_is_saved():
    torch.manual_seed(10)
    head = LearnableHarmonicHead(6, 5, exponent=3.0)
    assert head.exponent.item() == pytest.approx(3.0)
    plain = HarmonicHead(6, 5, exponent=3.0, scale=0.5)
    plain.load_state_dict({"weight": head.weight})
    x = torch.randn(4, 6)
    head.scale = 0.5
    torch.testing.assert_close(head(x), plain(x))
    F.cross_entropy(head(x), torch.tensor([0, 1, 2, 3])).backward()
    assert head.log_exponent.grad.abs() > 0
    assert "log_exponent" in head.state_dict()


def test_softened_head_gives_the_published_layer():
    """The published layer is 1 / (squared distance + 1e-4)^k, normalized: exponent 2k with softening 1e-4."""
    torch.manual_seed(11)
    head, x = CenterHead(6, 5, exponent=2.0, softening=1e-4).double(), torch.randn(4, 6).double()
    inverse = 1 / (squared_distance(x, head.weight) + 1e-4)
    torch.testing.assert_close(head(x).softmax(-1), inverse / inverse.sum(-1, keepdim=True), atol=1e-12, rtol=1e-12)


x, target = torch.randn(4, 6), torch.tensor([0, 1, 2, 3])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: HarmonicHead(0, 3), ValueError, "`in_features` and `out_features` must be at least 1, got 0 and 3"),
        (lambda: HarmonicHead(4, 3, exponent=-2), ValueError, "`exponent` must be a positive"),
        (lambda: HarmonicHead(4, 3, exponent=1e300), ValueError, r"`exponent` .*got 1e\+300"),
        (lambda: HarmonicHead(4, 3, softening=-2), ValueError, "`softening` must be .*got -2"),
        (lambda: CenterHead.from_linear(nn.Linear(4, 3)), ValueError, "`linear` must have no bias.*bias=False"),
        (lambda: HarmonicHead(6, 3).init_from_class_means(x, target[:2]), ValueError, "`features` must have shape"),
        (lambda: HarmonicHead(6, 3).init_from_class_means(x, target), ValueError, "from 0 to 2, got 0 to 3"),
        (lambda: HarmonicHead(6, 5).init_from_class_means(x, target.float()), TypeError, "`target` .*int64"),
        (lambda: HarmonicLoss(4, 3, reduction="men"), ValueError, "`reduction` must be one of mean, sum, none.*'men'"),
    ],
)
def test_an_error_names_the_argument_and_what_came(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_head_without_memory_refuses_real_vectors():
    with pytest.raises(ValueError, match=r"`weight` must be on the device of `input` \(cpu\), got meta"):
        HarmonicHead(6, 5, device="meta")(x)
