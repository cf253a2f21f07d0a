"""harmonic_loss treats targets, weights, smoothing, reductions and shapes exactly as F.cross_entropy does."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from harmax import HarmonicHead, HarmonicLoss, LossOptions, LossOutput, harmonic_logits, harmonic_loss
from harmax.kernels import choose
from oracle import ANYWHERE

every_impl = pytest.mark.parametrize("impl", [*ANYWHERE, "auto"])
OPTIONS = list(itertools.product(["mean", "sum", "none"], [0.0, 0.2], [False, True], ["index", "probability"]))


@every_impl
@pytest.mark.parametrize(("reduction", "smoothing", "weighted", "kind"), OPTIONS)
def test_agrees_with_cross_entropy_of_the_head(impl, reduction, smoothing, weighted, kind):
    torch.manual_seed(0)
    head = HarmonicHead(6, 5, exponent=3.0, scale=1).double()
    x = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    target = torch.randint(5, (11,))
    target[3] = 4 if kind == "probability" else 1
    options = {"reduction": reduction, "label_smoothing": smoothing}
    if weighted:
        options["weight"] = torch.rand(5, dtype=torch.float64)
    if kind == "probability":
        target = torch.rand(11, 5, dtype=torch.float64)
    else:
        options["ignore_index"] = 1
    want = F.cross_entropy(head(x), target, **options)
    got = harmonic_loss(x, head.weight, target, exponent=3.0, impl=impl, options=LossOptions(chunk_rows=4), **options)
    torch.testing.assert_close(got, want)
    upstream = torch.rand_like(want)
    inputs = (x, head.weight)
    torch.testing.assert_close(torch.autograd.grad(got, inputs, upstream), torch.autograd.grad(want, inputs, upstream))


@every_impl
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4), (2, 0)])
def test_any_leading_shape(impl, shape):
    torch.manual_seed(1)
    x, w = torch.randn(*shape, 6), torch.randn(7, 6)
    index, probability = torch.randint(7, shape), torch.rand(*shape, 7)
    rows = harmonic_logits(x, w).reshape(-1, 7)
    for target, flat in ((index, index.reshape(-1)), (probability, probability.reshape(-1, 7))):
        got = harmonic_loss(x, w, target, impl=impl, reduction="none")
        torch.testing.assert_close(got, F.cross_entropy(rows, flat, reduction="none").reshape(shape))


@every_impl
def test_non_contiguous_input(impl):
    torch.manual_seed(2)
    x, w, target = torch.randn(6, 9).T, torch.randn(6, 4).T, torch.randint(4, (9,))
    got = harmonic_loss(x, w, target, impl=impl)
    torch.testing.assert_close(got, harmonic_loss(x.contiguous(), w.contiguous(), target, impl="eager"))


@every_impl
@pytest.mark.parametrize("kind", ["index", "probability"])
def test_statistics(impl, kind):
    torch.manual_seed(3)
    x, w = torch.randn(2, 8, 6, requires_grad=True), torch.randn(5, 6)
    target = torch.randint(5, (2, 8)) if kind == "index" else torch.rand(2, 8, 5)
    logits = harmonic_logits(x, w, exponent=3.0)
    output = harmonic_loss(x, w, target, exponent=3.0, impl=impl, return_stats=True)
    assert isinstance(output, LossOutput)
    torch.testing.assert_close(output.loss, harmonic_loss(x, w, target, exponent=3.0, impl=impl))
    torch.testing.assert_close(output.logsumexp, logits.logsumexp(-1).detach())
    best = target if kind == "index" else target.argmax(-1)
    assert torch.equal(output.hit, logits.argmax(-1) == best)
    assert not output.logsumexp.requires_grad


@every_impl
def test_statistics_of_an_ignored_row_are_no_hit(impl):
    x, w = torch.randn(3, 4), torch.randn(2, 4)
    output = harmonic_loss(x, w, torch.full((3,), -100), impl=impl, return_stats=True)
    assert not output.hit.any()


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("chunk_rows", [1, 7, 64, 1000])
def test_the_chunk_size_changes_nothing(reduction, chunk_rows):
    torch.manual_seed(4)
    x, w, target = torch.randn(65, 12), torch.randn(30, 12), torch.randint(30, (65,))
    x[:9] = w[:9] + 1e-3
    results = []
    for rows in (65, chunk_rows):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        loss = harmonic_loss(a, b, target, impl="chunked", reduction=reduction, options=LossOptions(chunk_rows=rows))
        results.append((loss.detach(), *torch.autograd.grad(loss.sum(), (a, b))))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)


def test_gradient_accumulation_scales_the_stored_gradient():
    """The chunked gradient is made in forward and scaled in backward: scaled, repeated and retained uses must agree."""
    torch.manual_seed(5)
    x, w, target = torch.randn(9, 4, requires_grad=True), torch.randn(5, 4), torch.randint(5, (9,))
    want = torch.autograd.grad(harmonic_loss(x, w, target, impl="eager"), x)[0]
    loss = harmonic_loss(x, w, target, impl="chunked")
    tripled = torch.autograd.grad(3 * loss, x, retain_graph=True)[0]
    once = torch.autograd.grad(loss, x, retain_graph=True)[0]
    doubled = torch.autograd.grad(2 * loss, x)[0]
    for got, factor in ((tripled, 3), (once, 1), (doubled, 2)):
        torch.testing.assert_close(got, factor * want)
    (harmonic_loss(x, w, target, impl="chunked") / 2).backward()
    harmonic_loss(x, w, target, impl="chunked").backward()
    torch.testing.assert_close(x.grad, 1.5 * want)


def test_without_gradients_none_are_made():
    x, w, target = torch.randn(9, 4, requires_grad=True), torch.randn(5, 4), torch.randint(5, (9,))
    with torch.no_grad():
        loss = harmonic_loss(x, w, target, impl="chunked")
    assert not loss.requires_grad
    torch.testing.assert_close(loss, harmonic_loss(x.detach(), w, target, impl="eager"))


def test_probability_targets_that_learn_go_through_eager():
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    target = torch.rand(3, 5, requires_grad=True)
    harmonic_loss(x, w, target).backward()
    want = -harmonic_logits(x, w).log_softmax(-1) / 3
    torch.testing.assert_close(target.grad, want)
    with pytest.raises(ValueError, match="must not require a gradient with impl='chunked'"):
        harmonic_loss(x, w, target, impl="chunked")


@pytest.mark.parametrize(("reduction", "products"), [("mean", 3), ("none", 4)])
def test_number_of_large_products(reduction, products):
    x, w = torch.randn(64, 40, requires_grad=True), torch.randn(500, 40, requires_grad=True)
    target = torch.randint(500, (64,))
    with torch.profiler.profile() as profile:
        harmonic_loss(x, w, target, impl="chunked", reduction=reduction).sum().backward()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts.get("aten::mm", 0) + counts.get("aten::addmm_", 0) == products


def test_learned_class_weights_go_through_eager():
    x, w, target = torch.randn(3, 4), torch.randn(5, 4), torch.rand(3, 5)
    weight = torch.rand(5, requires_grad=True)
    harmonic_loss(x, w, target, weight=weight).backward()
    assert weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="`weight` must not require a gradient"):
        harmonic_loss(x, w, target, weight=weight, impl="chunked")


def test_chunked_refuses_a_second_derivative_and_says_what_to_do():
    x, w, target = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4), torch.randint(5, (3,))
    for reduction in ("mean", "none"):
        loss = harmonic_loss(x, w, target, impl="chunked", reduction=reduction).sum()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        with pytest.raises(RuntimeError, match="pass impl='eager'"):
            gradient.sum().backward()


@every_impl
def test_a_learned_exponent_has_its_gradient(impl):
    torch.manual_seed(6)
    x, w, target = torch.randn(9, 4).double(), torch.randn(5, 4).double(), torch.randint(5, (9,))
    exponent = torch.tensor(2.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda n: harmonic_loss(x, w, target, exponent=n, impl=impl), (exponent,))


def test_the_module_is_the_function():
    torch.manual_seed(7)
    weight = torch.rand(5)
    module = HarmonicLoss(4, 5, exponent=3.0, softening=0.1, weight=weight, label_smoothing=0.1, reduction="sum")
    x, target = torch.randn(6, 4), torch.randint(5, (6,))
    options = {"exponent": 3.0, "softening": 0.1, "weight": weight, "label_smoothing": 0.1, "reduction": "sum"}
    torch.testing.assert_close(module(x, target), harmonic_loss(x, module.head.weight, target, **options))
    assert list(module.state_dict()) == ["head.weight", "head.settings"]
    assert module(x, target, return_stats=True).hit.shape == (6,)


def test_auto_keeps_small_problems_whole_and_cuts_large_ones():
    assert choose(tokens=32, features=16, classes=31)[0] == "eager"
    name, reason = choose(tokens=16384, features=768, classes=50304)
    assert name == "chunked"
    assert "3144 MiB" in reason
