import pytest
import torch

from harmax import harmonic_loss, squared_distance
from harmax.kernels import distance


@pytest.fixture(params=["direct", "operator"])
def path(request, monkeypatch):
    if request.param == "operator":
        monkeypatch.setattr(distance, "DIRECT_ELEMENTS", 0)
    return request.param


def exact(x, w):
    return (x.double()[:, None] - w.double()).square().sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ratio", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_relative_error_down_to_a_millionth_of_the_norm(path, dtype, ratio):
    torch.manual_seed(0)
    w = torch.randn(50, 768, dtype=torch.float64)
    x = w[:20] + ratio * w[:20].norm(dim=1, keepdim=True) * torch.nn.functional.normalize(torch.randn(20, 768).double())
    x, w = x.to(dtype), w.to(dtype)
    want, got = exact(x, w), squared_distance(x, w)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert ((got - want).abs() <= 1e-5 * want).all()  # where rounding made x equal to w, both are exactly 0


@pytest.mark.parametrize("offset", [0.0, 30.0, 1e4])
def test_a_common_shift_costs_no_precision(path, offset):
    torch.manual_seed(1)
    x, w = torch.randn(30, 64) + offset, torch.randn(40, 64) + offset
    want = exact(x, w)
    assert ((squared_distance(x, w) - want).abs() <= 1e-5 * want).all()


def test_two_far_clusters_are_exact(path):
    """Centering cannot help here: half of all pairs are near and go through subtraction."""
    torch.manual_seed(2)
    side = torch.tensor([1e3, -1e3]).repeat(20)[:, None]
    x, w = torch.randn(40, 16) + side, torch.randn(40, 16) + side
    want = exact(x, w)
    assert ((squared_distance(x, w) - want).abs() <= 1e-5 * want).all()


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6])
def test_gradient_is_as_exact_as_the_distance(path, gap):
    torch.manual_seed(3)
    w = torch.randn(30, 768)
    x = (w[:10] + gap * torch.randn(10, 768)).requires_grad_()
    w.requires_grad_()
    upstream = torch.zeros(10, 30)
    upstream[range(10), range(10)] = 1.0
    dx, dw = torch.autograd.grad(squared_distance(x, w), (x, w), upstream)
    want = 2 * (x.double() - w[:10].double())
    assert ((dx - want).norm(dim=1) <= 1e-6 * want.norm(dim=1)).all()
    assert ((dw[:10] + want).norm(dim=1) <= 1e-6 * want.norm(dim=1)).all()


def test_autocast_does_not_reach_inside(path):
    torch.manual_seed(4)
    w = torch.randn(20, 128)
    x = w[:5] + 0.01 * torch.randn(5, 128)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = squared_distance(x, w)
    assert torch.equal(inside, squared_distance(x, w))


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_lower_matmul_precision_does_not_reach_inside(monkeypatch, precision):
    monkeypatch.setattr(distance, "DIRECT_ELEMENTS", 0)
    torch.manual_seed(5)
    x, w = torch.randn(40, 256), torch.randn(60, 256)
    before = squared_distance(x, w)
    torch.set_float32_matmul_precision(precision)
    try:
        assert torch.equal(squared_distance(x, w), before)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


def test_no_tensor_of_all_differences_beyond_the_budget():
    """Two far clusters make half of all pairs near: their differences would take 131 MB, the result takes 2."""
    torch.manual_seed(6)
    rows, classes, features = 256, 2000, 128
    x, w = torch.randn(rows, features), torch.randn(classes, features)
    x[::2] += 1e3
    w[::2] += 1e3
    with torch.profiler.profile(profile_memory=True) as profile:
        squared_distance(x.requires_grad_(), w.requires_grad_()).sum().backward()
    largest = max(event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]")
    assert largest <= max(4 * distance.PAIR_ELEMENTS, 16 * rows * classes)  # one block, or an index of every pair


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (0, 7), (2, 0, 7)])
def test_any_leading_shape(path, shape):
    x, w = torch.randn(shape), torch.randn(5, 7)
    got = squared_distance(x, w)
    assert got.shape == (*shape[:-1], 5)
    torch.testing.assert_close(got, (x[..., None, :] - w).square().sum(-1))


def test_mixed_dtypes_meet_in_float32(path):
    x, w = torch.randn(4, 6, dtype=torch.bfloat16), torch.randn(3, 6)
    x.requires_grad_()
    got = squared_distance(x, w)
    torch.testing.assert_close(got, squared_distance(x.float(), w))
    got.sum().backward()
    assert x.grad.dtype == torch.bfloat16


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="this torch has one setting only")
def test_the_newer_precision_setting_is_respected_and_restored(monkeypatch):
    monkeypatch.setattr(distance, "DIRECT_ELEMENTS", 0)
    x, w = torch.randn(40, 256), torch.randn(60, 256)
    before = squared_distance(x, w)
    torch.backends.mkldnn.matmul.fp32_precision, torch.backends.cuda.matmul.fp32_precision = "bf16", "tf32"
    try:
        assert torch.equal(squared_distance(x, w), before)
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = torch.backends.cuda.matmul.fp32_precision = "ieee"


def test_second_derivatives_keep_their_precision_under_autocast_and_shift(monkeypatch):
    monkeypatch.setattr(distance, "DIRECT_ELEMENTS", 0)
    torch.manual_seed(8)
    x, w, direction = torch.randn(20, 16), torch.randn(30, 16), torch.randn(20, 16)

    def curvature(x, w):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(squared_distance(x, w).log().sum(), x, create_graph=True)
        return torch.autograd.grad((gradient * direction.to(x.dtype)).sum(), x)[0]

    want = curvature(x.double(), w.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = curvature(x + 100.0, w + 100.0)
    assert (got - want).norm() <= 1e-3 * want.norm()  # the shift itself rounds the inputs by 1e-5


def test_double_backward(path):
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(squared_distance, (x, w))


def test_translation_and_rotation_leave_the_loss_alone(path):
    torch.manual_seed(7)
    x, w, target = torch.randn(9, 12).double(), torch.randn(6, 12).double(), torch.randint(6, (9,))
    rotation, _ = torch.linalg.qr(torch.randn(12, 12).double())
    loss = harmonic_loss(x, w, target)
    torch.testing.assert_close(harmonic_loss(x @ rotation + 3.0, w @ rotation + 3.0, target), loss)
    order = torch.randperm(6)
    torch.testing.assert_close(harmonic_loss(x, w[order], order.argsort()[target]), loss)
