"""compile(fullgraph), vmap, torch.func and export hold at sizes where the distance is a custom operator."""

import pytest
import torch

from harmax import HarmonicHead, LossOptions, harmonic_loss, squared_distance
from harmax.kernels import autograd, distance

ROWS, FEATURES, CLASSES = 64, 768, 20000


@pytest.fixture(scope="module")
def large():
    torch.manual_seed(0)
    w = torch.randn(CLASSES, FEATURES)
    x = torch.randn(ROWS, FEATURES)
    x[:8] = w[:8] * (1 + 1e-6)  # near pairs, and two hits
    x[8:10] = w[8:10]
    return x, w, torch.arange(ROWS)


def gradients(function, x, w):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    loss = function(x, w)
    return loss.detach(), *torch.autograd.grad(loss.sum(), (x, w))


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * b.abs().max().item())


@pytest.mark.parametrize("impl", ["eager", "chunked"])
def test_compile_fullgraph(large, impl):
    x, w, target = large

    def loss(x, w):
        return harmonic_loss(x, w, target, impl=impl)

    torch._dynamo.reset()
    assert_same(gradients(torch.compile(loss, fullgraph=True, backend="aot_eager"), x, w), gradients(loss, x, w))


def test_compile_a_head_with_inductor(large):
    x, w, _ = large
    head = HarmonicHead.from_linear(torch.nn.Linear(FEATURES, CLASSES, bias=False), scale=1.0)
    head.weight.data.copy_(w)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(head, fullgraph=True)(x), head(x))


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0)])
def test_vmap(large, in_dims):
    x, w, target = large
    stacks = [
        tensor if dim is None else torch.stack([tensor, 2 * tensor])
        for tensor, dim in zip((x, w), in_dims, strict=True)
    ]

    def loss(x, w):
        return harmonic_loss(x, w, target, impl="eager")

    def chunked_loss(x, w):
        return harmonic_loss(x, w, target, impl="chunked")

    pairs = [[t if dim is None else t[i] for t, dim in zip(stacks, in_dims, strict=True)] for i in range(2)]
    for function in (squared_distance, loss, chunked_loss):
        want = torch.stack([function(*pair) for pair in pairs])
        torch.testing.assert_close(torch.vmap(function, in_dims)(*stacks), want)


@pytest.mark.parametrize("impl", ["eager", "chunked"])
def test_functional_gradients(large, impl):
    x, w, target = large

    def loss(x, w):
        return harmonic_loss(x, w, target, impl=impl)

    want = gradients(loss, x, w)[1:]
    assert_same(torch.func.grad(loss, argnums=(0, 1))(x, w), want)
    both = torch.stack([x, x])
    stacked = torch.vmap(torch.func.grad(loss), in_dims=(0, None))(both, w)
    assert_same((stacked[1],), want[:1])
    outside = torch.func.grad(lambda xs: torch.vmap(loss, in_dims=(0, None))(xs, w).sum())(both)
    assert_same((outside[1],), want[:1])
    both.requires_grad_()
    torch.vmap(loss, in_dims=(0, None))(both, w).sum().backward()
    assert_same((both.grad[1],), want[:1])


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_batched_upstream_gradients(reduction):
    torch.manual_seed(4)
    x, w, target = torch.randn(6, 5, requires_grad=True), torch.randn(4, 5), torch.randint(4, (6,))
    loss = harmonic_loss(x, w, target, impl="chunked", reduction=reduction)
    upstream = torch.rand(3, *loss.shape)
    together = torch.autograd.grad(loss, x, upstream, is_grads_batched=True, retain_graph=True)[0]
    apart = [torch.autograd.grad(loss, x, row, retain_graph=True)[0] for row in upstream]
    torch.testing.assert_close(together, torch.stack(apart))


@pytest.mark.parametrize("impl", ["eager", "chunked"])
def test_compile_checks_targets_when_asked(impl):
    torch._dynamo.reset()
    x, w = torch.randn(3, 5), torch.randn(4, 5)
    options = LossOptions(check_targets=True)
    loss = torch.compile(
        lambda target: harmonic_loss(x, w, target, impl=impl, options=options), fullgraph=True, backend="aot_eager"
    )
    assert loss(torch.tensor([0, 1, 3])).isfinite()
    with pytest.raises(RuntimeError, match="from 0 to 3 or ignore_index"):
        loss(torch.tensor([0, 1, 4]))


def test_export_with_a_dynamic_batch(large):
    x, w, _ = large
    head = HarmonicHead(FEATURES, CLASSES, scale=1.0)
    head.weight.data.copy_(w)
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(head, (x,), dynamic_shapes={"input": {0: batch}})
    for rows in (1, 5, ROWS):
        torch.testing.assert_close(program.module()(x[:rows]), head(x[:rows]))


def test_export_of_a_small_head():
    head = HarmonicHead(8, 5, scale=1.0)
    x = torch.randn(3, 8)
    torch.testing.assert_close(torch.export.export(head, (x,)).module()(x), head(x))


def test_operators_pass_opcheck():
    """torch's own contract for operators: schema, fake tensors, autograd registration, AOT dispatch."""
    torch.manual_seed(1)
    x, w = torch.randn(6, 5, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    x.data[0] = w.data[0] * 1.001
    torch.library.opcheck(distance._distance_op, (x, w))
    s = squared_distance(x, w).detach()
    torch.library.opcheck(distance._gradient_op, (torch.randn(6, 4, requires_grad=True), s, x, w))
    exponent = torch.tensor(2.0, requires_grad=True)
    index, probability = torch.randint(4, (6,)), torch.rand(6, 4)
    for target in (index, probability):
        for reduction in ("mean", "none"):
            settings = (0.1, -100, 0.1, reduction, "chunked", 4, 4, True, True, True)
            torch.library.opcheck(autograd._loss_op, (x, w, target, exponent, None, *settings))
    # Its gradient is final by design, which opcheck's autograd tests cannot express.
    settings = (0.0, -100, 0.0, "chunked", 4, 4, True, True, True)
    tensors = (torch.rand(6), x.detach(), w.detach(), index, exponent.detach(), None)
    torch.library.opcheck(autograd._gradient_op, (*tensors, *settings), test_utils=("test_schema", "test_faketensor"))


def test_an_ensemble_of_heads_is_its_members():
    torch.manual_seed(2)
    heads = [HarmonicHead(8, 5, scale=1.0) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(heads)
    x = torch.randn(3, 7, 8)

    def call(parameters, buffers, x):
        return torch.func.functional_call(heads[0], (parameters, buffers), (x,))

    together = torch.vmap(call)(parameters, buffers, x)
    torch.testing.assert_close(together, torch.stack([head(row) for head, row in zip(heads, x, strict=True)]))


def test_an_ensemble_may_vary_its_exponent():
    torch.manual_seed(3)
    x, w, target = torch.randn(7, 8), torch.randn(5, 8), torch.randint(5, (7,))
    exponents = torch.tensor([0.5, 2.0, 30.0])
    together = torch.vmap(lambda n: harmonic_loss(x, w, target, exponent=n))(exponents)
    torch.testing.assert_close(together, torch.stack([harmonic_loss(x, w, target, exponent=n) for n in exponents]))


def test_compile_with_dynamic_shapes():
    torch._dynamo.reset()
    w = torch.randn(11, 6)

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def loss(x, target):
        return harmonic_loss(x, w, target, options=LossOptions(chunk_rows=4))

    for rows in (3, 9, 17):
        x, target = torch.randn(rows, 6), torch.randint(11, (rows,))
        torch.testing.assert_close(loss(x, target), harmonic_loss(x, w, target))
