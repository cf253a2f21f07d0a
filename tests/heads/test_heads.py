"""One contract for every head in the registry `HEADS`."""

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from harmax.heads import HEADS, CenterHead, HarmonicHead

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
    heads = [HEADS[name](6, 5).eval() for _ in range(2)]  # in training the first batch would decide a scale
    x = torch.randn(2, 3, 6)
    parameters, buffers = torch.func.stack_module_state(heads)

    def call(parameters, buffers, x):
        return torch.func.functional_call(heads[0], (parameters, buffers), (x,))

    want = torch.stack([head(rows) for head, rows in zip(heads, x, strict=True)])
    torch.testing.assert_close(torch.vmap(call)(parameters, buffers, x), want)
    torch.compiler.reset()
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
    if not issubclass(HEADS[name], CenterHead):
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
    head, x = HEADS[name](64, 5).eval(), torch.randn(3, 64)
    if isinstance(head, HarmonicHead):  # rounds its operands as a Linear does, and is exact from there on
        head.weight.data, x = (v.to(torch.bfloat16).float() for v in (head.weight.data, x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = head(x)
    torch.testing.assert_close(inside, head(x), rtol=1e-6, atol=1e-6)
