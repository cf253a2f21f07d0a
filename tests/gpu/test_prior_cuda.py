"""A prior on a GPU, at real sizes: python -m pytest -m gpu."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F

from harmax import LossOptions, harmonic_loss
from harmax.kernels import MODES

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
every_mode = pytest.mark.parametrize("mode", MODES)


def draw(rows=512, features=192, classes=5003, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(0)
    x, w = (torch.randn(n, features, device="cuda", generator=generator).to(dtype) for n in (rows, classes))
    prior = -torch.arange(1, classes + 1, device="cuda").float().log()  # as words are distributed
    target = torch.randint(classes, (rows,), device="cuda", generator=generator)
    return x, (0.5 * w).to(dtype), prior, target


def in_float64(x, w, prior, target, exponent):
    x, w, n, prior = (torch.as_tensor(v).detach().double().requires_grad_() for v in (x, w, exponent, prior))
    s = torch.stack([(row - w).square().sum(1) for row in x])
    loss = F.cross_entropy(prior - 0.5 * n * s.log(), target)
    return loss.detach(), *torch.autograd.grad(loss, (x, w, n, prior))


def error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def gradients(x, w, prior, target, exponent, mode=None):
    exponent = torch.tensor(exponent, device="cuda")
    inputs = [v.detach().clone().requires_grad_() for v in (x, w, exponent, prior)]
    x, w, exponent, prior = inputs
    settings = {"exponent": exponent, "prior": prior, "options": LossOptions(mode=mode)}
    loss = harmonic_loss(x, w, target, impl="triton", **settings)
    return loss.detach(), *torch.autograd.grad(loss, inputs)


@every_mode
@pytest.mark.parametrize("exponent", [2.0, 13.9, 384.0])
def test_errors_are_those_of_rounding_the_gradients(mode, exponent):
    x, w, prior, target = draw()
    want = in_float64(x, w, prior, target, exponent)
    loss, dx, dw, dexponent, dprior = gradients(x, w, prior, target, exponent, mode)
    slack = exponent * 2**-12
    assert error(loss, want[0]) < 1e-5 + 0.01 * slack
    assert error(dx, want[1]) < 2e-3 + 0.3 * slack
    assert error(dw, want[2]) < 2.6e-3 + 0.3 * slack
    assert error(dexponent, want[3]) < 1e-4 + 0.01 * slack
    assert error(dprior, want[4]) < 1e-4 + 0.3 * slack  # gathered before weights are rounded


@every_mode
def test_near_pairs_hits_and_classes_left_out(mode):
    x, w, prior, target = draw()
    x[:8] = w[target[:8]]  # on the right center
    x[8:16] = 1.03125 * w[target[8:16]]
    x[16:24] = 0.9375 * w[(target[16:24] + 1) % len(w)]
    prior[3000:3100] = -math.inf
    target = torch.where((target >= 3000) & (target < 3100), 0, target)
    want = in_float64(x[8:], w, prior, target[8:], 13.9)
    got = gradients(x[8:], w, prior, target[8:], 13.9, mode)
    for one, other, bound in zip(got, want, (1e-5, 3e-3, 4e-3, 1e-4, 1e-3), strict=True):
        assert error(one, other) < bound
    assert not got[2][3000:3100].any()
    assert not got[4][3000:3100].any()
    assert all(v.isfinite().all() for v in gradients(x, w, prior, target, 13.9, mode))


@every_mode
def test_nothing_waits_and_the_bits_stay_the_same(mode):
    inputs = draw()
    first = gradients(*inputs, 13.9, mode)
    torch.cuda.synchronize()
    x, w, prior, target = inputs
    exponent = torch.tensor(13.9, device="cuda", requires_grad=True)
    leaves = [v.requires_grad_() for v in (x, w, exponent, prior)]
    settings = {"exponent": exponent, "prior": prior, "options": LossOptions(mode=mode)}
    with warnings.catch_warnings(action="ignore"):  # that this way of looking is new
        torch.cuda.set_sync_debug_mode("error")
    try:
        loss = harmonic_loss(x, w, target, impl="triton", **settings)
        second = (loss.detach(), *torch.autograd.grad(loss, leaves))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_prior_that_is_no_number_is_no_loss(value):
    x, w, prior, target = draw()
    prior[7] = value
    assert gradients(x, w, prior, target, 13.9)[0].isnan()


@pytest.mark.parametrize("impl", ["eager", "chunked"])
def test_other_implementations_agree_with_the_cpu(impl):
    x, w, prior, target = draw(64, 32, 500, torch.float32)
    results = []
    for device in ("cpu", "cuda"):
        inputs = [v.detach().to(device, copy=True).requires_grad_() for v in (x, w, prior)]
        loss = harmonic_loss(*inputs[:2], target.to(device), exponent=3.0, prior=inputs[2], impl=impl)
        results.append([v.cpu() for v in (loss.detach(), *torch.autograd.grad(loss, inputs))])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)
