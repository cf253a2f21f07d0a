"""The same numbers on a GPU: python -m pytest -m gpu."""

import pytest
import torch

from harmax import HarmonicHead, LossOptions, harmonic_loss, squared_distance
from harmax.heads import HEADS
from harmax.kernels import distance
from oracle import ANYWHERE

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def problem(dtype, rows=257, features=123, classes=507):
    torch.manual_seed(0)
    w = torch.randn(classes, features)
    x = torch.randn(rows, features)
    x[:20] = w[:20] * (1 + 1e-3)
    x[20:24] = w[20:24]
    target = torch.randint(classes, (rows,))
    target[:24:2] = torch.arange(24)[::2]
    target[30] = -100
    return x.to(dtype), w.to(dtype), target


def gradients(x, w, target, **options):
    x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    loss = harmonic_loss(x, w, target, **options)
    dx, dw = torch.autograd.grad(loss.sum(), (x, w))
    return loss.detach().cpu(), dx.cpu(), dw.cpu()


@pytest.mark.parametrize("impl", ANYWHERE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("tf32", [False, True])
def test_loss_and_gradients_agree_with_the_cpu(impl, dtype, reduction, tf32):
    x, w, target = problem(dtype)
    options = {"reduction": reduction, "label_smoothing": 0.1, "exponent": 3.0, "softening": 1e-3}
    want = gradients(x.double(), w.double(), target, impl="eager", **options)
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        got = gradients(x.cuda(), w.cuda(), target.cuda(), impl=impl, options=LossOptions(chunk_rows=100), **options)
    finally:
        torch.set_float32_matmul_precision("highest")
    unit = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(got[0].double(), want[0], rtol=min(unit, 1e-5), atol=1e-9)
    for a, b in zip(got[1:], want[1:], strict=True):
        assert ((a.double() - b).norm(dim=1) <= unit * b.norm(dim=1) + 1e-6).all()


def test_distance_is_exact_near_zero_with_tf32_and_autocast(monkeypatch):
    monkeypatch.setattr(distance, "DIRECT_ELEMENTS", 0)
    torch.manual_seed(1)
    w = torch.randn(500, 768)
    x = w[:100] + 1e-6 * w[:100].norm(dim=1, keepdim=True) * torch.nn.functional.normalize(torch.randn(100, 768))
    want = (x.double()[:, None] - w.double()).square().sum(-1)
    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            got = squared_distance(x.cuda(), w.cuda()).cpu()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert ((got - want).abs() <= 1e-5 * want).all()


@pytest.mark.parametrize("impl", ANYWHERE)
def test_compiles_with_inductor(impl):
    x, w, target = (tensor.cuda() for tensor in problem(torch.float32))
    options = {"impl": impl, "exponent": 3.0}
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: harmonic_loss(x, w, target, **options), fullgraph=True)
    torch.testing.assert_close(compiled(x, w), harmonic_loss(x, w, target, **options), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", HEADS)
def test_heads_agree_with_the_cpu(name):
    torch.manual_seed(2)
    head, x = HEADS[name](12, 7), torch.randn(5, 12)
    want = head(x)
    torch.testing.assert_close(head.cuda()(x.cuda()).cpu(), want, rtol=1e-4, atol=1e-4)


def test_bad_targets_are_found_when_asked():
    head = HarmonicHead(4, 3).cuda()
    x, target = torch.randn(2, 4).cuda(), torch.tensor([0, 3]).cuda()
    with pytest.raises(ValueError, match=r"from 0 to 2 or ignore_index \(-100\), got 3"):
        harmonic_loss(x, head.weight, target, options=LossOptions(check_targets=True))
