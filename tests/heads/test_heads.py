"""One contract for every head in the registry, then what is particular to some."""

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from harmax import HEADS, HarmonicHead, LearnableHarmonicHead, squared_distance
from harmax.heads import (
    CosineHarmaxHead,
    DotHarmaxHead,
    EuclideanHead,
    FullMahalanobisHead,
    GaussianHead,
    MinkowskiHead,
    StudentTHead,
)

every_head = pytest.mark.parametrize("name", HEADS)


@every_head
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6), (0, 6)])
def test_shapes(name, shape):
    head = HEADS[name](6, 5)
    assert head.weight.shape == (5, 6)
    assert head(torch.randn(shape)).shape == (*shape[:-1], 5)


@every_head
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_logits_are_float32_at_least_and_gradients_come_back_in_kind(name, dtype):
    torch.manual_seed(0)
    head = HEADS[name](6, 5, dtype=dtype)
    x = torch.randn(4, 6, dtype=dtype, requires_grad=True)
    logits = head(x)
    assert logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    F.cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
    assert x.grad.dtype == head.weight.grad.dtype == dtype
    for tensor in (x, *head.parameters()):
        assert tensor.grad.isfinite().all()


@every_head
def test_gradcheck(name):
    torch.manual_seed(1)
    head = HEADS[name](5, 4, dtype=torch.float64)
    names = [key for key, _ in head.named_parameters()]
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def call(x, *parameters):
        return torch.func.functional_call(head, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (x, *head.parameters()))


@every_head
def test_on_a_center_logits_and_gradients_are_finite(name):
    head = HEADS[name](6, 5)
    x = head.weight.detach()[:3].clone().requires_grad_()
    logits = head(x)
    assert logits.isfinite().all()
    F.cross_entropy(logits, torch.tensor([0, 2, 1])).backward()
    assert x.grad.isfinite().all()
    assert head.weight.grad.isfinite().all()


@every_head
def test_transforms(name):
    torch.manual_seed(2)
    heads = [HEADS[name](6, 5) for _ in range(2)]
    x = torch.randn(2, 3, 6)
    parameters, buffers = torch.func.stack_module_state(heads)

    def call(parameters, buffers, x):
        return torch.func.functional_call(heads[0], (parameters, buffers), (x,))

    want = torch.stack([head(rows) for head, rows in zip(heads, x, strict=True)])
    torch.testing.assert_close(torch.vmap(call)(parameters, buffers, x), want)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(heads[0], fullgraph=True, backend="aot_eager")(x[0]), want[0])
    torch.testing.assert_close(torch.export.export(heads[0], (x[0],)).module()(x[0]), want[0])


@every_head
def test_state_copy_and_meta(name):
    head, x = HEADS[name](6, 5), torch.randn(3, 6)
    twin = HEADS[name](6, 5)
    twin.load_state_dict(head.state_dict())
    torch.testing.assert_close(twin(x), head(x))
    torch.testing.assert_close(copy.deepcopy(head)(x), head(x))
    meta = HEADS[name](6, 5, device="meta")
    assert meta.weight.is_meta
    assert "out_features=5" in repr(meta)
    assert meta(torch.empty(3, 6, device="meta")).shape == (3, 5)
    filled = meta.to_empty(device="cpu")
    filled.load_state_dict(head.state_dict())
    torch.testing.assert_close(filled(x), head(x))


@every_head
def test_a_nan_is_not_hidden(name):
    head = HEADS[name](3, 4)
    x = torch.randn(2, 3)
    x[1, 0] = float("nan")
    assert head(x).isnan().tolist() == [[False] * 4, [True] * 4]
    if hasattr(head, "distance"):
        assert head.distance(x).isnan().tolist() == [[False] * 4, [True] * 4]


@every_head
def test_starts_afresh_after_to_empty(name):
    """Built on meta, given memory, reset: what sharded training does."""
    head = HEADS[name](6, 5, device="meta").to_empty(device="cpu")
    for parameter in head.parameters():
        parameter.data.fill_(77.0)
    torch.manual_seed(0)
    head.reset_parameters()
    torch.manual_seed(0)
    fresh = HEADS[name](6, 5)
    for key, value in fresh.state_dict().items():
        torch.testing.assert_close(head.state_dict()[key], value)


@every_head
def test_from_linear_shares_the_weight_and_runs(name):
    if not issubclass(HEADS[name], HarmonicHead):
        return
    linear = nn.Linear(6, 5, bias=False, dtype=torch.float64)
    state = torch.get_rng_state()
    head = HEADS[name].from_linear(linear)
    assert torch.equal(torch.get_rng_state(), state)
    assert head.weight is linear.weight
    assert head(torch.randn(2, 6, dtype=torch.float64)).isfinite().all()


@every_head
def test_mixed_dtypes_are_promoted(name):
    head, x = HEADS[name](6, 5, dtype=torch.float32), torch.randn(2, 6, dtype=torch.float64)
    assert head(x).dtype == torch.float64


@every_head
def test_is_documented_with_its_formula(name):
    assert "math:: z_j =" in inspect.getdoc(HEADS[name])


@every_head
def test_learns_three_blobs(name):
    torch.manual_seed(3)
    means = 4 * F.normalize(torch.randn(3, 6), dim=1)
    target = torch.arange(120) % 3
    x = means[target] + 0.3 * torch.randn(120, 6)
    head = HEADS[name](6, 3)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(head(x), target).backward()
        optimizer.step()
    assert (head(x).argmax(1) == target).float().mean() > 0.97


@every_head
def test_autocast_changes_no_distance(name):
    if name == "linear":
        return  # its inner product is torch's own, and follows autocast as torch's does
    torch.manual_seed(4)
    head, x = HEADS[name](64, 5), torch.randn(3, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = head(x)
    assert torch.equal(inside, head(x))


def test_a_linear_state_dict_loads():
    linear, head = nn.Linear(6, 5, bias=False), HarmonicHead(6, 5)
    head.load_state_dict(linear.state_dict())
    assert torch.equal(head.weight, linear.weight)
    assert list(head.state_dict()) == ["weight"]
    assert isinstance(head, nn.Linear)
    assert head.bias is None


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
    assert "exponent" not in head.state_dict()


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


def test_gaussian_head_is_a_linear_head_with_bias():
    torch.manual_seed(7)
    head = GaussianHead(6, 5, precision=0.7).double()
    x = torch.randn(8, 6).double()
    linear = F.linear(x, 0.7 * head.weight, -0.35 * head.weight.square().sum(1))
    torch.testing.assert_close(head(x).log_softmax(-1), linear.log_softmax(-1))


def test_student_t_tends_to_gaussian():
    torch.manual_seed(8)
    gaussian = GaussianHead(6, 5, precision=0.7).double()
    student = StudentTHead(6, 5, exponent=0.7e7, softening=1e7).double()
    student.load_state_dict(gaussian.state_dict())
    x = torch.randn(8, 6).double()
    torch.testing.assert_close(student(x).log_softmax(-1), gaussian(x).log_softmax(-1), atol=1e-4, rtol=1e-4)


def test_formulas_of_the_relatives():
    torch.manual_seed(9)
    x = torch.randn(4, 6, dtype=torch.float64)

    def made(cls, **options):
        return cls(6, 5, exponent=3.0, **options).double()

    head = made(EuclideanHead)
    torch.testing.assert_close(head(x), -(x[:, None] - head.weight).norm(dim=-1))
    head = made(DotHarmaxHead)
    torch.testing.assert_close(head(x), -3.0 * (x @ head.weight.T).abs().log())
    head = made(CosineHarmaxHead)
    cosine = F.cosine_similarity(x[:, None], head.weight, dim=-1)
    torch.testing.assert_close(head(x), -1.5 * (2 - 2 * cosine).log())
    for order in (1.0, 1.5, 2.0, float("inf")):
        head = made(MinkowskiHead, order=order)
        distance = torch.linalg.vector_norm(x[:, None] - head.weight, ord=order, dim=-1)
        torch.testing.assert_close(head.distance(x), distance)
        torch.testing.assert_close(head(x), -3.0 * distance.log())
    head = made(FullMahalanobisHead)
    head.metric.data.copy_(torch.randn(6, 6))
    metric = head.metric.tril() @ head.metric.tril().T
    difference = x[:, None] - head.weight
    want = torch.einsum("bvd,de,bve->bv", difference, metric, difference)
    torch.testing.assert_close(head.distance(x).square(), want)
    head = HEADS["mahalanobis_diagonal"](6, 5, exponent=3.0).double()
    head.log_scale.data.copy_(torch.randn(6))
    want = (x[:, None] - head.weight).square() @ (2 * head.log_scale).exp()
    torch.testing.assert_close(head(x), -1.5 * want.log())


def test_learnable_exponent_learns_and_is_saved():
    torch.manual_seed(10)
    head = LearnableHarmonicHead(6, 5, exponent=3.0)
    assert head.exponent.item() == pytest.approx(3.0)
    plain = HarmonicHead(6, 5, exponent=3.0)
    plain.load_state_dict({"weight": head.weight})
    x = torch.randn(4, 6)
    torch.testing.assert_close(head(x), plain(x))
    F.cross_entropy(head(x), torch.tensor([0, 1, 2, 3])).backward()
    assert head.log_exponent.grad.abs() > 0
    assert "log_exponent" in head.state_dict()


def test_softened_head_gives_the_published_layer():
    """The published layer is 1 / (squared distance + 1e-4)^k, normalized: exponent 2k with softening 1e-4."""
    torch.manual_seed(11)
    head, x = HarmonicHead(6, 5, exponent=2.0, softening=1e-4).double(), torch.randn(4, 6).double()
    inverse = 1 / (squared_distance(x, head.weight) + 1e-4)
    torch.testing.assert_close(head(x).softmax(-1), inverse / inverse.sum(-1, keepdim=True), atol=1e-12, rtol=1e-12)
