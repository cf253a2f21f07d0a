"""The fused loss where it belongs: real sizes, no waiting for the device, CUDA graphs. python -m pytest -m gpu."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F

from harmax import LossOptions, harmonic_loss
from harmax.kernels import MODES, choose

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
every_mode = pytest.mark.parametrize("mode", MODES)


def draw(rows=512, features=192, classes=5003, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(0)
    x, w = (torch.randn(n, features, device="cuda", generator=generator).to(dtype) for n in (rows, classes))
    target = torch.randint(classes, (rows,), device="cuda", generator=generator)
    return x.requires_grad_(), (0.5 * w).detach().requires_grad_(), target


def in_float64(x, w, target, exponent):
    x, w = (v.detach().double().requires_grad_() for v in (x, w))
    s = torch.stack([(row - w).square().sum(1) for row in x])
    loss = F.cross_entropy(-0.5 * exponent * s.log(), target)
    return loss.detach(), *torch.autograd.grad(loss, (x, w))


def error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def gradients(x, w, target, mode=None, **options):
    loss = harmonic_loss(x, w, target, impl="triton", options=LossOptions(mode=mode), **options)
    return loss.detach(), *torch.autograd.grad(loss, (x, w))


@every_mode
@pytest.mark.parametrize("exponent", [2.0, 13.9, 384.0])
def test_errors_are_those_of_rounding_the_gradients(mode, exponent):
    x, w, target = draw()
    want = in_float64(x, w, target, exponent)
    loss, dx, dw = gradients(x, w, target, mode, exponent=exponent)
    # A bfloat16 is off by 1.7e-3; G in bfloat16 adds as much again to dw; at large exponents the products' own error
    # of 2^-12 |x| |w| counts, times the exponent.
    slack = exponent * 2**-12
    assert error(loss, want[0]) < 1e-5 + 0.01 * slack
    assert error(dx, want[1]) < 2e-3 + 0.3 * slack
    assert error(dw, want[2]) < 2.6e-3 + 0.3 * slack


@every_mode
def test_hits_and_near_pairs_among_thousands(mode):
    x, w, target = draw()
    with torch.no_grad():
        x[:8] = w[target[:8]]  # on the right center
        x[8:16] = 1.03125 * w[target[8:16]]  # next to it
        w[100:104] = w[99]  # twins
        x[16:20] = 0.9375 * w[99]
        wrong = (target[20:28] + 1) % len(w)
        x[20:28] = 1.0625 * w[wrong]
    want = in_float64(x[8:], w, target[8:], 13.9)
    loss, dx, dw = gradients(x[8:].detach().requires_grad_(), w, target[8:], mode, exponent=13.9)
    assert error(loss, want[0]) < 1e-5
    assert error(dx, want[1]) < 3e-3
    assert error(dw, want[2]) < 4e-3
    assert all(v.isfinite().all() for v in gradients(x, w, target, mode, exponent=13.9))


@every_mode
def test_nothing_waits_and_a_graph_can_hold_it(mode):
    x, w, target = draw()

    def step():
        x.grad = w.grad = None
        loss = harmonic_loss(x, w, target, impl="triton", options=LossOptions(mode=mode))
        loss.backward()
        return loss.detach()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    with warnings.catch_warnings(action="ignore"):  # that this way of looking is new
        torch.cuda.set_sync_debug_mode("error")
    try:
        want = step().clone()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = x.grad.clone(), w.grad.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    with torch.no_grad():
        kept = x.clone()
        x.mul_(0.5)
        graph.replay()
        assert not torch.equal(loss, want)
        x.copy_(kept)
    graph.replay()
    torch.testing.assert_close(loss, want, rtol=0, atol=0)
    for got, right in zip((x.grad, w.grad), expected, strict=True):
        assert torch.equal(got, right)


def test_the_same_bits_every_time():
    x, w, target = draw()
    first = gradients(x, w, target)
    assert all(torch.equal(a, b) for a, b in zip(first, gradients(x, w, target), strict=True))


@pytest.mark.parametrize("features", [5, 100, 1500])
@pytest.mark.parametrize("classes", [1, 3, 50257])
def test_any_width(features, classes):
    x, w, target = draw(70, features, classes)
    want = in_float64(x, w, target, 3.0)
    loss, dx, dw = gradients(x, w, target, exponent=3.0)
    torch.testing.assert_close(loss.double(), want[0], rtol=1e-4, atol=1e-12)
    if classes > 1:
        assert max(error(dx, want[1]), error(dw, want[2])) < 4e-3


def test_offsets_beyond_32_bits():
    tokens, classes = 8192, 2**18 + 8
    x, w, target = draw(tokens, 32, classes)
    last = slice(-64, None)
    dx = gradients(x, w, target, "fast", exponent=4.0)[1]
    rows = x[last].detach().requires_grad_()
    want = gradients(rows, w, target[last], "lean", exponent=4.0)[1]
    assert tokens * classes > 2**31
    assert error(dx[last] * (tokens / 64), want.double()) < 4e-3


def test_evaluation_makes_no_gradients():
    x, w, target = draw(4096, 256, 50257)
    _ = x @ x.T  # cuBLAS takes 32 MiB for itself the first time that it is called
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        output = harmonic_loss(x, w, target, return_stats=True, reduction="none", options=LossOptions(mode="lean"))
    assert torch.cuda.max_memory_allocated() - before < 80 * 2**20
    s = torch.cdist(x[:64].float(), w.float()).square()
    assert torch.equal(output.hit[:64], s.argmin(1) == target[:64])
    logsumexp = torch.logsumexp(-0.5 * math.sqrt(256) * s.double().log(), 1)
    torch.testing.assert_close(output.logsumexp[:64].double(), logsumexp, rtol=1e-3, atol=1e-2)


def test_auto_takes_it():
    assert choose(tokens=4096, features=64, classes=50257, dtype=torch.bfloat16, device="cuda")[0] == "triton"
    x, w, target = draw(4096, 64, 20000)
    want = gradients(x, w, target)
    loss = harmonic_loss(x, w, target)
    assert torch.equal(loss, want[0])
    assert torch.equal(torch.autograd.grad(loss, x)[0], want[1])
