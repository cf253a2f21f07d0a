"""A prior in the Triton implementation, in its interpreter where there is no GPU: values and all gradients."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings

from harmax import LossOptions, harmonic_loss
from harmax.kernels import MODES, autograd
from harmax.kernels.triton.launch import Launcher
from oracle import (
    HITS,
    assert_matches,
    assert_prior_gradients_match,
    brute_force,
    problems_with_prior,
    put_on_a_center,
)
from small_blocks import DEVICE, draw, error, small_blocks

__all__ = ["small_blocks"]  # a fixture

every_mode = pytest.mark.parametrize("mode", MODES)
NAMES = ("loss", "dx", "dw", "dexponent", "dprior")
# The interpreter cuts bfloat16 off where a GPU rounds it.
ERROR = {torch.float32: 3e-6, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def run(x, w, target, *, exponent, prior, mode="fast", impl="triton", **options):
    """The loss, and the gradients of x, w, the exponent and the prior."""
    exponent = torch.as_tensor(exponent, dtype=prior.dtype)
    inputs = [tensor.detach().to(DEVICE, copy=True).requires_grad_() for tensor in (x, w, exponent, prior)]
    options = {key: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    settings = {"exponent": inputs[2], "prior": inputs[3], "impl": impl, "options": LossOptions(mode=mode)}
    loss = harmonic_loss(*inputs[:2], target.to(DEVICE), **settings, **options)
    return tuple(v.cpu() for v in (loss.detach(), *torch.autograd.grad(loss.sum(), inputs)))


def draw_prior(classes=70, strength=3.0):
    return strength * torch.randn(classes, generator=torch.Generator().manual_seed(1))


def assert_close(got, want, tolerance):
    for name, one, other in zip(NAMES, got, want, strict=True):
        assert one.isfinite().all(), name
        assert error(one, other) < tolerance, name


def expected(x, w, target, **options):
    want = brute_force(x, w, target, **options)
    return want.loss, want.dx, want.dw, want.dexponent, want.dprior


@settings(max_examples=25, deadline=None, derandomize=True)
@given(problem=problems_with_prior(dtypes=(torch.float32,), probabilities=False))
def test_any_problem_in_float32_matches_float64(problem):
    x, w, target, options = problem
    assume((x.double()[:, None] - w.double()).square().sum(-1).min() > 0)
    # Only weights below e^(-30 n) of the largest may be wrong.
    prior = options["prior"]
    cut = prior.clamp(min=prior.max() - 29 * options["exponent"])
    options = {**options, "prior": cut.where(prior > -torch.inf, prior)}
    want = brute_force(x, w, target, **options)
    loss, dx, dw, dexponent, dprior = run(x, w, target, **options)
    assert_matches(want, loss, dx, dw, options=options, unit=1e-6)
    assert_prior_gradients_match(want, dexponent, dprior, options=options, unit=1e-6)


@every_mode
@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "reduction": "none"}, {"softening": 0.2}])
def test_every_mode_and_dtype(mode, dtype, options):
    x, w, target = draw(dtype=dtype)
    target[::7] = -100
    if dtype != torch.bfloat16 or "label_smoothing" not in options:  # there near pairs cost more, without a prior too
        x[1:5] = 1.0625 * w[(target[1:5] + 1) % 70]
    x[8:12] = 0.9375 * w[target[8:12]]
    options = {"exponent": 5.0, "weight": torch.rand(70) + 0.5, "prior": draw_prior(), **options}
    want = expected(x, w, target, **options)
    got = run(x, w, target, mode=mode, **options)
    assert_close(got, want, ERROR[dtype])
    # Gathered before weights are rounded, except for the errors of float16 products.
    assert error(got[4], want[4]) < (ERROR[dtype] if dtype == torch.float32 else 1e-3)


@every_mode
@pytest.mark.parametrize("strength", [3.0, 30.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("hit", HITS)
def test_an_exact_hit_is_as_in_eager_code(mode, strength, smoothing, hit):
    x, w, target = draw(rows=4, features=8, classes=40)
    target[0], prior = 2, draw_prior(40, strength)
    put_on_a_center(x, w, hit)
    options = {"exponent": 2.0, "prior": prior, "label_smoothing": smoothing, "reduction": "none"}
    assert_close(run(x, w, target, mode=mode, **options), run(x, w, target, impl="eager", **options), 2e-5)


@pytest.mark.parametrize("hit", HITS)
def test_statistics_follow_the_prior(hit):
    x, w, target = draw()
    put_on_a_center(x, w, hit)
    outputs = []
    for strength in (1.0, 30.0, 300.0):
        prior = draw_prior(strength=strength)
        prior[5] = -torch.inf
        target[7], target[8] = (prior - 4.0 * (x[7:9, None] - w).square().sum(2).log()).argmax(1)
        for impl in ("eager", "triton"):
            settings = {"exponent": 8.0, "prior": prior.to(DEVICE), "impl": impl, "return_stats": True}
            output = harmonic_loss(x.to(DEVICE), w.to(DEVICE), target.to(DEVICE), reduction="none", **settings)
            outputs.append([v.cpu() for v in output])
        eager, triton = outputs[-2:]
        torch.testing.assert_close(triton[:2], eager[:2], rtol=1e-5, atol=1e-4)
        assert torch.equal(triton[2], eager[2])
        assert eager[2][7:9].all()


@every_mode
def test_a_class_that_is_left_out_is_as_no_class(mode):
    x, w, target = draw()
    target, prior = target % 50, draw_prior()
    x[0], x[1] = w[60], 1.0001 * w[61]  # even where it is the nearest
    want = run(x, w[:50], target, exponent=3.0, prior=prior[:50], mode=mode)
    prior[50:] = -torch.inf
    loss, dx, dw, dexponent, dprior = run(x, w, target, exponent=3.0, prior=prior, mode=mode)
    assert not dw[50:].any()
    assert not dprior[50:].any()
    assert_close((loss, dx, dw[:50], dexponent, dprior[:50]), want, 1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_target_that_is_left_out_costs_infinitely_much(smoothing):
    x, w, target = draw()
    prior, target[3] = draw_prior(), 2
    prior[2] = -torch.inf
    options = {"exponent": 3.0, "prior": prior, "label_smoothing": smoothing, "reduction": "none"}
    loss, *got = run(x, w, target, **options)
    assert torch.equal(loss.isinf(), (target == 2) if not smoothing else torch.ones(40, dtype=torch.bool))
    _, *want = run(x, w, target, impl="eager", **options)
    assert_close((loss.isinf().float(), *got), (loss.isinf().float(), *want), 5e-5)


def test_adding_one_number_to_all_changes_nothing():
    x, w, target = draw()
    prior = draw_prior()
    want = run(x, w, target, exponent=3.0, prior=prior)
    assert_close(run(x, w, target, exponent=3.0, prior=prior + 64.0), want, 1e-5)
    assert want[4].sum().abs() < 1e-6


def test_a_weight_that_is_cut_off_is_exact_as_a_target():
    """Exponent 2 keeps weights down to e^-60 of the largest. Here those of odd classes are e^-100."""
    x, w, target = draw()
    prior = torch.zeros(70)
    prior[1::2] = -100.0
    options = {"exponent": 2.0, "prior": prior, "reduction": "none"}
    assert_close(run(x, w, target, **options), expected(x, w, target, **options), 3e-6)


def test_a_small_loss_keeps_its_relative_precision():
    x, w, target = draw()
    prior = torch.full((70,), -40.0)
    prior[3], target = 0.0, torch.full_like(target, 3)
    options = {"exponent": 2.0, "prior": prior, "reduction": "none"}
    loss, *_ = run(x, w, target, **options)
    s = (x.double()[:, None] - w.double()).square().sum(2)
    ratio = s[:, 3:4] / s
    want = (ratio.sum(1) - 1) * torch.tensor(-40.0).double().exp()
    assert want.max() < 1e-12
    torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=0)


def test_more_near_pairs_than_there_are_slots():
    x, w, target = draw(rows=20)
    w[10:40] = w[3] + 1e-2 * w[10:40]
    x[:5] = w[3] + 1e-2 * x[:5]
    options = {"exponent": 3.0, "prior": draw_prior()}
    assert_close(run(x, w, target, **options), expected(x, w, target, **options), 1e-4)


@every_mode
def test_only_the_prior_may_learn(mode):
    x, w, target = (v.to(DEVICE) for v in draw())
    for prior in (draw_prior().to(DEVICE), draw_prior().to(DEVICE).bfloat16()):
        prior.requires_grad_()
        settings = {"exponent": 3.0, "prior": prior, "options": LossOptions(mode=mode)}
        loss = harmonic_loss(x, w, target, impl="triton", **settings)
        want = F.cross_entropy(prior - 1.5 * (x[:, None] - w).square().sum(2).log(), target)
        got = torch.autograd.grad(2 * loss, prior)[0]
        assert got.dtype == prior.dtype
        torch.testing.assert_close(got, torch.autograd.grad(2 * want, prior)[0], rtol=1e-2, atol=1e-5)


def test_the_same_bits_every_time():
    x, w, target = draw(dtype=torch.bfloat16)
    x[:9] = w[:9]
    first, second = (run(x, w, target, exponent=3.0, prior=draw_prior()) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_constant_prior_is_as_none():
    x, w, target = draw()
    loss = harmonic_loss(x.to(DEVICE), w.to(DEVICE), target.to(DEVICE), exponent=3.0, impl="triton")
    torch.testing.assert_close(run(x, w, target, exponent=3.0, prior=torch.full((70,), -2.5))[0], loss.cpu())


def test_no_rows():
    x, w, target = draw(rows=0)
    loss, *rest = run(x, w, target, exponent=3.0, prior=draw_prior(), reduction="sum")
    assert loss == 0
    assert not any(gradient.any() for gradient in rest)


def test_operator_passes_opcheck_and_compiles():
    x, w, target = (tensor.to(DEVICE) for tensor in draw(6, 5, 4))
    x, w, prior = (v.to(DEVICE).requires_grad_() for v in (x, w, draw_prior(4)))
    exponent = torch.tensor(2.0, device=DEVICE, requires_grad=True)
    for reduction in ("mean", "none"):
        arguments = (x, w, target, exponent, None, 0.1, -100, 0.1, reduction, "triton", 6, 4, True, True, True, prior)
        torch.library.opcheck(autograd._loss_op, (*arguments, True))

    def step(prior):
        return harmonic_loss(x, w, target, impl="triton", prior=2 * prior)

    want = torch.autograd.grad(step(prior), prior)
    got = torch.autograd.grad(torch.compile(step, fullgraph=True, backend="aot_eager")(prior), prior)
    torch.testing.assert_close(got, want)


@every_mode
def test_a_prior_adds_one_launch_and_none_per_block(mode, monkeypatch):
    x, w, target = draw()
    launched, call = [], Launcher.__call__

    def record(self, kernel, *rest, **own):
        launched.append(kernel.__name__)
        call(self, kernel, *rest, **own)

    monkeypatch.setattr(Launcher, "__call__", record)
    inputs = [tensor.to(DEVICE).requires_grad_() for tensor in (x, w, draw_prior())]
    harmonic_loss(*inputs[:2], target.to(DEVICE), impl="triton", options=LossOptions(mode=mode)).backward()
    without, launched = launched, []
    options = {"prior": inputs[2], "options": LossOptions(mode=mode)}
    harmonic_loss(*inputs[:2], target.to(DEVICE), impl="triton", **options).backward()
    extra = [name for name in launched if name not in ("prepare_prior", "scale_in_place")]
    assert launched.count("prepare_prior") == 1
    assert extra == [name for name in without if name != "scale_in_place"]
