"""A trained Linear becomes a harmonic head with the same loss, and then a pure harmonic head without a jump."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from harmax import HarmonicHead
from harmax.heads import Hardening, LearnableHarmonicHead
from harmax.heads.scale import length


@pytest.fixture(scope="module")
def digits():
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)


@pytest.fixture(scope="module", params=[True, False], ids=["bias", "no bias"])
def trained(request, digits):
    x, y = digits
    torch.manual_seed(0)
    linear = nn.Linear(64, 10, bias=request.param)
    optimizer = torch.optim.Adam(linear.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(linear(x), y).backward()
        optimizer.step()
    return linear.requires_grad_(False)


def test_the_loss_and_the_probabilities_are_those_of_the_linear(trained, digits):
    x, y = digits
    head = HarmonicHead.from_linear(trained, match=True, feature_length=length(x))
    assert head.weight is trained.weight
    assert head.softening > 0
    assert abs(head(x, y) - F.cross_entropy(trained(x), y)) < 0.002
    assert (head(x).argmax(1) == trained(x).argmax(1)).float().mean() > 0.995
    torch.testing.assert_close(head(x).exp(), trained(x).softmax(1), rtol=0, atol=0.05)


def test_the_way_to_a_pure_head_has_no_jump(trained, digits):
    x, y = digits
    head = HarmonicHead.from_linear(trained, match=True, feature_length=length(x))
    hardening, losses = Hardening(head, steps=50), [head(x, y).item()]
    for _ in range(50):
        hardening.step()
        losses.append(head(x, y).item())
    assert (head.softening, head.exponent) == (0.0, hardening.exponent)
    assert max(abs(after - before) for before, after in pairwise(losses)) < 0.002
    assert losses[-1] < losses[0] + 0.02
    hardening.step()
    assert head.softening == 0.0


def test_hardening_goes_on_where_a_file_stopped(trained, digits):
    x, _ = digits
    whole = HarmonicHead.from_linear(trained, match=True, feature_length=length(x))
    part = HarmonicHead.from_linear(trained, match=True, feature_length=length(x))
    first, second = Hardening(whole, steps=7), Hardening(part, steps=7)
    for _ in range(3):
        first.step(), second.step()
    part = HarmonicHead.from_state_dict(part.state_dict())
    second = Hardening(part, steps=4)
    for _ in range(4):
        first.step(), second.step()
    assert part.exponent == pytest.approx(whole.exponent, rel=1e-9)
    assert part.softening == whole.softening == 0.0


def test_a_large_exponent_at_the_end_is_kept(trained, digits):
    x, y = digits
    head = HarmonicHead.from_linear(trained, 3000.0, match=True, feature_length=length(x))
    assert abs(head(x, y) - F.cross_entropy(trained(x), y)) < 0.002
    assert Hardening(head, steps=1).exponent == pytest.approx(3000.0)


def test_a_linear_with_the_same_argmax(digits):
    x, _ = digits
    torch.manual_seed(0)
    head = HarmonicHead(64, 10, scale=0.25)
    linear = head.to_argmax_linear()
    assert torch.equal(linear(x).argmax(1), head(x).argmax(1))
    assert not torch.allclose(linear(x).softmax(1), head(x).exp(), atol=1e-3)
    with pytest.raises(ValueError, match="must have no prior"):
        HarmonicHead(64, 10, prior=True).to_argmax_linear()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda linear: HarmonicHead.from_linear(linear, 4.0, match=True, feature_length=4.0), ValueError, "at least"),
        (lambda linear: HarmonicHead.from_linear(linear, match=True), TypeError, "`feature_length` must be given"),
        (lambda linear: HarmonicHead.from_linear(linear, feature_length=4.0), TypeError, "must go with match=True"),
        (
            lambda linear: HarmonicHead.from_linear(linear, match=True, feature_length=4.0, softening=1.0),
            TypeError,
            "follow from match=True",
        ),
        (
            lambda linear: HarmonicHead.from_linear(linear, match=True, feature_length=0.0),
            ValueError,
            "must have finite lengths above 0",
        ),
        (lambda linear: Hardening(HarmonicHead(4, 3), 5), ValueError, "`head` must have a softening to take away"),
        (lambda linear: Hardening(HarmonicHead(4, 3, softening=50.0), 5), ValueError, "must come from a match"),
        (lambda linear: Hardening(LearnableHarmonicHead(4, 3, softening=0.1), 5), TypeError, "fixed exponent"),
    ],
)
def test_what_cannot_be_matched_is_refused(trained, call, error, message):
    with pytest.raises(error, match=message):
        call(trained)
