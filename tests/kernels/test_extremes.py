"""Where floating point bites: exact hits, scales, exponents, empty and ignored batches. Every implementation alike."""

import pytest
import torch
import torch.nn.functional as F

from harmax import LossOptions, harmonic_logits, harmonic_loss
from harmax.kernels import distance
from oracle import ANYWHERE, HITS, put_on_a_center

EXPONENTS = [0.5, 1.0, 2.0, 28.0, 300.0, 2048.0]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]

every_impl = pytest.mark.parametrize("impl", ANYWHERE)
every_exponent = pytest.mark.parametrize("exponent", EXPONENTS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def backward(x, w, target, **options):
    x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    loss = harmonic_loss(x, w, target, options=LossOptions(chunk_rows=3), **options)
    return loss.detach(), *torch.autograd.grad(loss.sum(), (x, w))


@every_impl
@every_exponent
@every_dtype
@pytest.mark.parametrize("hit", HITS)
def test_an_exact_hit_is_finite(impl, exponent, dtype, hit):
    torch.manual_seed(0)
    w = torch.randn(6, 8).to(dtype)
    x = torch.randn(4, 8).to(dtype)
    target = torch.tensor([2, 1, 0, 5])
    put_on_a_center(x, w, hit)
    loss, dx, dw = backward(x, w, target, exponent=exponent, impl=impl, reduction="none")
    assert loss.isfinite().all()
    assert dx.isfinite().all()
    assert dw.isfinite().all()
    if hit in ("right", "origin"):
        assert loss[0] <= 5 * (1e-9 if dtype != torch.float64 else 1e-17) ** exponent
    elif hit == "twins":
        assert loss[0].item() == pytest.approx(0.6931471805599453, rel=1e-4)
    else:
        assert loss[0] > exponent * 10


@every_impl
def test_all_zero_is_uniform(impl):
    loss, dx, dw = backward(torch.zeros(2, 4), torch.zeros(3, 4), torch.tensor([0, 2]), impl=impl, exponent=2048.0)
    assert loss.item() == pytest.approx(torch.tensor(3.0).log().item())
    assert not dx.any()
    assert not dw.any()


@every_impl
@every_exponent
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("power", [-20, -10, 10, 20])
def test_scaling_input_and_centers_together_changes_nothing(impl, exponent, dtype, power):
    """c is a power of two (1e-6 to 1e6), so that c x rounds as x does; hits and near hits are included."""
    torch.manual_seed(1)
    c = 2.0**power
    w = torch.randn(6, 8).to(dtype)
    w[5] = 0.0
    x = torch.cat([torch.randn(3, 8), w[:2], w[2:4] * (1 + 1e-2), torch.zeros(1, 8)]).to(dtype)
    target = torch.tensor([0, 1, 2, 0, 3, 2, 5, 4])
    loss, dx, dw = backward(x, w, target, exponent=exponent, impl=impl)
    scaled_loss, scaled_dx, scaled_dw = backward(c * x, c * w, target, exponent=exponent, impl=impl)
    torch.testing.assert_close(scaled_loss, loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(scaled_dx * c, dx, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(scaled_dw * c, dw, rtol=1e-5, atol=1e-6)


@every_impl
@pytest.mark.parametrize("c", [1e-6, 1e-3, 1e3, 1e6])
def test_scaling_by_any_factor(impl, c):
    torch.manual_seed(2)
    x, w, target = torch.randn(5, 8), torch.randn(6, 8), torch.randint(6, (5,))
    loss, dx, dw = backward(x, w, target, exponent=3.0, impl=impl)
    scaled_loss, scaled_dx, scaled_dw = backward(c * x, c * w, target, exponent=3.0, impl=impl)
    torch.testing.assert_close(scaled_loss, loss, rtol=3e-6, atol=0)
    torch.testing.assert_close(scaled_dx * c, dx, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(scaled_dw * c, dw, rtol=1e-5, atol=1e-6)


@every_impl
@pytest.mark.parametrize("power", [-8, -4, 4, 8])
def test_scaling_float16_in_its_range(impl, power):
    torch.manual_seed(3)
    c = 2.0**power
    x, w, target = torch.randn(5, 8).half(), torch.randn(6, 8).half(), torch.randint(6, (5,))
    loss, dx, _ = backward(x, w, target, exponent=3.0, impl=impl)
    scaled_loss, scaled_dx, _ = backward(c * x, c * w, target, exponent=3.0, impl=impl)
    torch.testing.assert_close(scaled_loss, loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(scaled_dx.float() * c, dx.float(), rtol=1e-2, atol=1e-4)


@every_impl
@every_dtype
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_one_class_costs_nothing(impl, dtype, reduction):
    x, w = torch.randn(4, 3).to(dtype), torch.randn(1, 3).to(dtype)
    loss, dx, dw = backward(x, w, torch.zeros(4, dtype=torch.int64), impl=impl, reduction=reduction)
    assert not loss.any()
    assert not dx.any()
    assert not dw.any()


@every_impl
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", ["empty", "empty probabilities", "all ignored"])
def test_nothing_to_learn_from_gives_what_torch_gives(impl, reduction, case):
    rows = 0 if case.startswith("empty") else 4
    x, w = torch.randn(rows, 3), torch.randn(5, 3)
    target = torch.rand(0, 5) if case == "empty probabilities" else torch.full((rows,), -100)
    loss, dx, dw = backward(x, w, target, impl=impl, reduction=reduction)
    logits = torch.randn(rows, 5, requires_grad=True)
    want = F.cross_entropy(logits, target, reduction=reduction)
    torch.testing.assert_close(loss, want.detach(), equal_nan=True)
    assert not torch.autograd.grad(want.sum(), logits)[0].any()
    assert not dx.any()
    assert not dw.any()


@every_impl
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_ignored_row_may_hold_a_nan(impl, reduction):
    torch.manual_seed(4)
    x, w, target = torch.randn(4, 3), torch.randn(5, 3), torch.tensor([0, -100, 2, 3])
    want = harmonic_loss(x, w, target, impl=impl, reduction=reduction)
    x[1, 0] = float("nan")
    torch.testing.assert_close(harmonic_loss(x, w, target, impl=impl, reduction=reduction), want)


@every_impl
def test_one_far_center_does_not_blur_a_small_distance(impl):
    w = torch.tensor([[0.0, 0.0], [1e6, 0.0]])
    loss, dx, _ = backward(torch.tensor([[1e-6, 0.0]]), w, torch.tensor([0]), exponent=1.0, impl=impl)
    assert loss.item() == pytest.approx(1e-12, rel=1e-5)
    assert dx[0, 0].item() == pytest.approx(1e-6, rel=1e-5)


@every_impl
def test_a_nan_stays_a_nan(impl):
    x, w, target = torch.randn(4, 3), torch.randn(5, 3), torch.randint(5, (4,))
    x[1, 2] = float("nan")
    rows = harmonic_loss(x, w, target, impl=impl, reduction="none")
    assert rows.isnan().tolist() == [False, True, False, False]
    assert harmonic_loss(x, w, target, impl=impl).isnan()
    assert harmonic_logits(x, w)[1].isnan().all()


@pytest.mark.parametrize("impl", [*ANYWHERE, "operator"])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, 1e30])
@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_a_class_infinitely_far_has_no_probability(monkeypatch, impl, value, shift):
    """That is the limit of the loss for a center that goes away. So the loss is as without the class.

    The direction to an infinite center is not a number, and its gradient says so: a training step should stop there. A
    finite center whose norm overflows has a direction, and so has the gradient: zero for it.
    """
    if impl == "operator":
        monkeypatch.setattr(distance, "DIRECT_ELEMENTS", 0)
        impl = "eager"
    torch.manual_seed(5)
    x, w, target = torch.randn(4, 6) + shift, torch.randn(5, 6) + shift, torch.tensor([0, 1, 2, 3])
    want = backward(x, w[:4], target, exponent=3.0, impl=impl)
    w[4, 2] = value
    loss, dx, dw = backward(x, w, target, exponent=3.0, impl=impl)
    torch.testing.assert_close(loss, want[0])
    finite = torch.ones(6, dtype=torch.bool)
    finite[2] = abs(value) < torch.inf
    torch.testing.assert_close(dx[:, finite], want[1][:, finite], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dw[:4], want[2], rtol=1e-4, atol=1e-5)
    assert not dw[4, finite].any()
    assert dw[4, ~finite].isnan().all()
    assert dx[:, ~finite].isnan().all()
    assert harmonic_loss(x, w, torch.full((4,), 4), exponent=3.0, impl=impl).item() == torch.inf


@every_impl
def test_large_loss_does_not_overflow(impl):
    """Exponent 2048 a millionth of the way from a wrong center: a loss in the ten thousands, right to rounding."""
    w = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    loss, dx, _ = backward(torch.tensor([[1.0, 1e-6]]), w, torch.tensor([1]), exponent=2048.0, impl=impl)
    assert loss.item() == pytest.approx(1024 * torch.tensor(4e12).log().item(), rel=1e-5)
    assert dx[0, 1].item() == pytest.approx(-2048 * 1e6, rel=1e-4)
