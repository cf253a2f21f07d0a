"""A prior is added to the logits: against float64, at the extremes, and through every transform. Every device alike."""

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings

from harmax import LossOptions, harmonic_logits, harmonic_loss
from harmax.kernels import autograd, distance
from oracle import (
    ANYWHERE,
    GRADIENT_UNIT,
    HITS,
    UNIT,
    assert_matches,
    assert_prior_gradients_match,
    brute_force,
    problems_with_prior,
    put_on_a_center,
)

every_impl = pytest.mark.parametrize("impl", ANYWHERE)


def gradients(x, w, target, *, exponent, prior, **options):
    """The loss, and the gradients of x, w, the exponent and the prior."""
    wide = torch.promote_types(x.dtype, torch.float32)
    exponent = torch.as_tensor(exponent, dtype=wide)
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (x, w, exponent, prior)]
    x, w, exponent, prior = inputs
    options = {"options": LossOptions(chunk_rows=4), **options}
    loss = harmonic_loss(x, w, target, exponent=exponent, prior=prior, **options)
    return loss.detach(), *torch.autograd.grad(loss.sum(), inputs)


def draw(dtype=torch.float64, rows=9, features=6, classes=7):
    torch.manual_seed(0)
    x, w, prior = torch.randn(rows, features), torch.randn(classes, features), 2 * torch.randn(classes)
    return x.to(dtype), w.to(dtype), torch.randint(classes, (rows,)), prior.to(dtype)


@pytest.mark.parametrize("path", [*ANYWHERE, "operator"])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(problem=problems_with_prior())
def test_loss_and_gradients_match_float64(path, problem):
    x, w, target, options = problem
    assume((x.double()[:, None] - w.double()).square().sum(-1).min() > 0)
    want = brute_force(x, w, target, **options)
    with patch.object(distance, "DIRECT_ELEMENTS", 0 if path == "operator" else distance.DIRECT_ELEMENTS):
        loss, dx, dw, dexponent, dprior = gradients(
            x, w, target, impl="eager" if path == "operator" else path, **options
        )
    smallest = 1e-7 if x.dtype == torch.float16 else 1e-36
    unit, gradient_unit = UNIT[x.dtype], GRADIENT_UNIT[x.dtype]
    assert_matches(want, loss, dx, dw, options=options, unit=unit, gradient_unit=gradient_unit, smallest=smallest)
    assert_prior_gradients_match(want, dexponent, dprior, options=options, unit=unit)


@every_impl
def test_adding_one_number_to_all_changes_nothing(impl):
    x, w, target, prior = draw()
    want = gradients(x, w, target, exponent=3.0, prior=prior, impl=impl)
    got = gradients(x, w, target, exponent=3.0, prior=prior + 50.0, impl=impl)
    torch.testing.assert_close(got, want)
    assert want[4].sum().abs() < 1e-12


@every_impl
def test_equal_weights_are_as_no_prior(impl):
    x, w, target, prior = draw()
    got = harmonic_loss(x, w, target, exponent=3.0, prior=torch.full_like(prior, -1.5), impl=impl)
    torch.testing.assert_close(got, harmonic_loss(x, w, target, exponent=3.0, impl=impl))


@every_impl
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_class_that_is_left_out_is_as_no_class(impl, dtype):
    x, w, target, prior = draw(dtype)
    target = target.clamp(max=4)
    x[0], x[1] = w[5], 1.0001 * w[6]  # even where it is the nearest
    want = gradients(x, w[:5], target, exponent=3.0, prior=prior[:5], impl=impl)
    prior[5:] = -torch.inf
    loss, dx, dw, dexponent, dprior = gradients(x, w, target, exponent=3.0, prior=prior, impl=impl)
    torch.testing.assert_close((loss, dx, dw[:5], dexponent, dprior[:5]), want, rtol=1e-5, atol=1e-6)
    assert not dw[5:].any()
    assert not dprior[5:].any()
    assert harmonic_logits(x, w, exponent=3.0, prior=prior).softmax(1)[:, 5:].sum() == 0


@every_impl
def test_a_target_that_is_left_out_costs_infinitely_much_and_keeps_its_gradient_finite(impl):
    x, w, target, prior = draw()
    prior[2], target[0] = -torch.inf, 2
    loss, *rest = gradients(x, w, target, exponent=3.0, prior=prior, impl=impl, reduction="none")
    assert loss.isinf().tolist() == (target == 2).tolist()
    assert all(gradient.isfinite().all() for gradient in rest)
    want = gradients(x, w, target, exponent=3.0, prior=prior, impl="eager", reduction="none")
    torch.testing.assert_close(rest, list(want[1:]))
    probabilities = torch.rand(9, 7, dtype=torch.float64)
    probabilities[:, 2] = 0.0
    keep = torch.tensor([0, 1, 3, 4, 5, 6])
    got = gradients(x, w, probabilities, exponent=3.0, prior=prior, impl=impl)
    want = gradients(x, w[keep], probabilities[:, keep], exponent=3.0, prior=prior[keep], impl=impl)
    torch.testing.assert_close(got[:2], want[:2])


@every_impl
@pytest.mark.parametrize("strength", [0.0, 5.0, 200.0])
@pytest.mark.parametrize("exponent", [0.5, 2.0, 300.0])
@pytest.mark.parametrize("hit", HITS)
def test_an_exact_hit_is_finite_and_the_prior_counts(impl, strength, exponent, hit):
    x, w, target, prior = draw(torch.float32)
    target[0] = 2
    put_on_a_center(x, w, hit)
    prior = strength * prior
    got = gradients(x, w, target, exponent=exponent, prior=prior, impl=impl, reduction="none")
    assert all(value.isfinite().all() for value in got)
    wide, rounding = [v.double() for v in (x, w)], 1e-5 + 2e-7 * exponent  # of a logarithm, times the exponent
    s = (wide[0][:, None] - wide[1]).square().sum(-1)
    nearest = s.masked_fill(s == 0, torch.inf).amin(1, keepdim=True)
    z = prior.double() - 0.5 * exponent * torch.maximum(s, 2.0**-63 * nearest).log()
    torch.testing.assert_close(got[0].double(), F.cross_entropy(z, target, reduction="none"), rtol=rounding, atol=1e-12)


@every_impl
def test_a_small_loss_keeps_its_relative_precision(impl):
    """The prior alone makes the other class rare: log-sum-exp minus logit would give 0."""
    x, w = torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    for rare in (-30.0, -60.0):
        prior = torch.tensor([0.0, rare])
        loss, *_, dprior = gradients(x, w, torch.tensor([0]), exponent=5.0, prior=prior, impl=impl)
        want = prior[1].double().exp().float()
        torch.testing.assert_close(loss, want, rtol=1e-5, atol=0)
        torch.testing.assert_close(dprior, torch.stack([-want, want]), rtol=1e-5, atol=0)


@every_impl
def test_statistics(impl):
    x, w, target, prior = draw()
    logits = harmonic_logits(x, w, exponent=3.0, prior=prior)
    torch.testing.assert_close(logits, harmonic_logits(x, w, exponent=3.0) + prior)
    target[:4] = logits[:4].argmax(1)
    output = harmonic_loss(x, w, target, exponent=3.0, prior=prior, impl=impl, return_stats=True)
    torch.testing.assert_close(output.logsumexp, logits.logsumexp(1))
    assert torch.equal(output.hit, logits.argmax(1) == target)
    assert not torch.equal(output.hit, harmonic_logits(x, w, exponent=3.0).argmax(1) == target)


@every_impl
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("of_prior", [torch.bfloat16, torch.float32, torch.float64])
def test_the_prior_may_have_another_dtype(impl, dtype, of_prior):
    x, w, target, prior = draw(dtype)
    prior = prior.to(torch.bfloat16).to(of_prior)
    loss, dx, _, _, dprior = gradients(x, w, target, exponent=3.0, prior=prior, impl=impl)
    assert (loss.dtype, dx.dtype, dprior.dtype) == (torch.float32, dtype, of_prior)
    want = brute_force(x, w, target, exponent=3.0, prior=prior)
    torch.testing.assert_close(loss.double(), want.loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(dprior.double(), want.dprior, rtol=1e-2, atol=1e-3)


@every_impl
def test_first_and_second_derivatives(impl):
    x, w, target, prior = draw(rows=4, features=3, classes=5)
    target = target.clamp(max=3)
    exponent = torch.tensor(3.3, dtype=torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (x, w, exponent, prior)]
    for reduction in ("mean", "none"):

        def loss(x, w, exponent, prior, reduction=reduction):
            options = {"label_smoothing": 0.1, "reduction": reduction, "impl": impl, "softening": 0.2}
            return harmonic_loss(x, w, target, exponent=exponent, prior=prior, **options)

        assert torch.autograd.gradcheck(loss, inputs)
        if impl == "eager":
            assert torch.autograd.gradgradcheck(loss, inputs)


@every_impl
def test_only_the_prior_may_learn(impl):
    x, w, target, prior = draw()
    loss = harmonic_loss(x, w, target, exponent=3.0, prior=prior.requires_grad_(), impl=impl)
    want = F.cross_entropy(harmonic_logits(x, w, exponent=3.0) + prior, target)
    torch.testing.assert_close(torch.autograd.grad(2 * loss, prior), torch.autograd.grad(2 * want, prior))


@every_impl
def test_transforms(impl):
    x, w, target, prior = draw(torch.float32)

    def loss(prior):
        return harmonic_loss(x, w, target, exponent=3.0, prior=prior, impl=impl)

    want = gradients(x, w, target, exponent=3.0, prior=prior, impl=impl)[4]
    torch.testing.assert_close(torch.func.grad(loss)(prior), want)
    both = torch.stack([prior, -prior])
    torch.testing.assert_close(torch.vmap(loss)(both), torch.stack([loss(prior), loss(-prior)]))
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(both)[0], want)
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    leaf = prior.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(compiled(leaf), leaf)[0], want)


def test_operator_passes_opcheck():
    x, w, target, prior = draw(rows=6, features=5, classes=4)
    x, w, prior = (tensor.requires_grad_() for tensor in (x, w, prior))
    exponent = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    for reduction in ("mean", "none"):
        settings = (0.1, -100, 0.1, reduction, "chunked", 4, 4, True, True, True)
        torch.library.opcheck(autograd._loss_op, (x, w, target, exponent, None, *settings, prior, True))


@every_impl
def test_meta_tensors_have_shapes(impl):
    *tensors, exponent = (tensor.to("meta") for tensor in (*draw(torch.float32), torch.tensor(2.0)))
    x, w, target, prior = tensors
    got = gradients(x, w, target, exponent=exponent, prior=prior, impl=impl)
    assert [v.shape for v in got] == [v.shape for v in (exponent, x, w, exponent, prior)]


@pytest.mark.parametrize(
    ("prior", "error", "message"),
    [
        ([0.0] * 7, TypeError, "`prior` must be a tensor, got list"),
        (torch.zeros(7).long(), TypeError, "`prior` must be a .*float32.*got torch.int64"),
        (torch.zeros(7).to(torch.float8_e4m3fn), TypeError, "`prior` must be .*got torch.float8"),
        (torch.zeros(7).to_sparse(), TypeError, "`prior` must be a dense tensor"),
        (torch.zeros(6), ValueError, r"`prior` must have shape \(7,\), got \(6,\); give one log-weight per class"),
        (torch.zeros(1, 7), ValueError, r"`prior` must have shape \(7,\), got \(1, 7\)"),
        (torch.zeros(7, device="meta"), ValueError, r"`prior` must be on the device of `input` \(cpu\), got meta"),
        (torch.full((7,), torch.nan), ValueError, "`prior` must hold finite log-weights or -inf, got nan; take"),
        (torch.full((7,), torch.inf), ValueError, "`prior` must hold finite log-weights or -inf, got inf"),
        (torch.full((7,), -torch.inf), ValueError, "`prior` must leave at least one class, got -inf for all 7; give"),
    ],
)
def test_a_wrong_prior_is_named(prior, error, message):
    x, w, target, _ = draw()
    for call in (lambda: harmonic_loss(x, w, target, prior=prior), lambda: harmonic_logits(x, w, prior=prior)):
        with pytest.raises(error, match=message):
            call()
