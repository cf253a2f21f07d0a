"""Every implementation against float64 brute force over drawn shapes and options, and mpmath at the extremes."""

from functools import partial
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings

from harmax import LossOptions, harmonic_loss
from harmax.kernels import distance
from oracle import (
    ANYWHERE,
    GRADIENT_UNIT,
    UNIT,
    assert_matches,
    assert_right_next_to_a_center,
    brute_force,
    precise,
    problems,
)

# "operator" sends even small distances through the custom operator that large ones take.
PATHS = [*ANYWHERE, "operator"]


def compute(path, x, w, target, **options):
    limit = 0 if path == "operator" else distance.DIRECT_ELEMENTS
    with patch.object(distance, "DIRECT_ELEMENTS", limit):
        x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
        impl = "eager" if path == "operator" else path
        loss = harmonic_loss(x, w, target, impl=impl, options=LossOptions(chunk_rows=4), **options)
        dx, dw = torch.autograd.grad(loss.sum(), (x, w))
    return loss.detach(), dx, dw


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(problem=problems())
def test_loss_and_gradients_match_float64(path, problem):
    x, w, target, options = problem
    # An exact hit has no finite value to compare with; a hit within rounding is tested apart, with mpmath.
    gaps = (x.double()[:, None] - w.double()).square().sum(-1)
    if gaps.min() == 0:
        return
    want = brute_force(x, w, target, **options)
    loss, dx, dw = compute(path, x, w, target, **options)

    unit, gradient_unit = UNIT[x.dtype], GRADIENT_UNIT[x.dtype]
    smallest = 1e-7 if x.dtype == torch.float16 else 1e-36  # below it a float32 probability underflows
    assert loss.dtype == (torch.float64 if x.dtype == torch.float64 else torch.float32)
    assert (dx.dtype, dw.dtype) == (x.dtype, x.dtype)
    assert_matches(want, loss, dx, dw, options=options, unit=unit, gradient_unit=gradient_unit, smallest=smallest)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 28.0, 512.0])
@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("right", [True, False])
def test_next_to_a_center_matches_mpmath(path, exponent, gap, right):
    assert_right_next_to_a_center(partial(compute, path), exponent, gap, right)


@pytest.mark.parametrize("path", PATHS)
def test_a_confident_loss_keeps_relative_precision(path):
    """1e-12 is 1e-12: log-sum-exp minus logit would give 0 or 1e-7."""
    w = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    x = torch.tensor([[1e-6, 0.0], [1.0, 1e-5]])
    loss, dx, _ = compute(path, x, w, torch.tensor([0, 1]), exponent=2.0, reduction="none")
    for row, target in enumerate((0, 1)):
        want_loss, want_grad = precise(x[row], w, target, 2.0)
        assert want_loss < 1e-9
        assert loss[row].item() == pytest.approx(want_loss, rel=1e-5)
        torch.testing.assert_close(dx[row].double(), want_grad, rtol=1e-5, atol=0)


@pytest.mark.parametrize("path", PATHS)
def test_gradcheck(path):
    torch.manual_seed(0)
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    exponent = torch.tensor(3.3, dtype=torch.float64, requires_grad=True)
    target, weight = torch.tensor([0, 1, 2, 3, -100, 1]), torch.rand(4, dtype=torch.float64)
    impl = "eager" if path == "operator" else path
    with patch.object(distance, "DIRECT_ELEMENTS", 0 if path == "operator" else distance.DIRECT_ELEMENTS):
        for reduction in ("mean", "none"):

            def loss(x, w, exponent, reduction=reduction):
                options = {"weight": weight, "label_smoothing": 0.1, "reduction": reduction, "impl": impl}
                return harmonic_loss(x, w, target, exponent=exponent, softening=0.2, **options)

            assert torch.autograd.gradcheck(loss, (x, w, exponent))
            if impl == "eager":
                assert torch.autograd.gradgradcheck(loss, (x, w, exponent))
