"""Every loss against its formula in loops, in value and gradient; what is known of some in limits."""

from typing import Any

import pytest
import torch
from torch import Tensor

from harmax.heads import HEADS, HarmonicHead
from harmax_lab.losses import LOSSES, training_loss
from losses.formulas import LOGITS, loss_by_formula

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "harmonic": [{}, {"exponent": 2.0, "softening": 1e-4}, {"exponent": 7.0}],
    "linear": [{}, {"bias": True}],
    "gaussian": [{}, {"precision": 2.0}],
    "spherical": [{}, {"epsilon": 0.5, "bias": True}],
    "stablemax": [{}, {"bias": True}],
    "normface": [{}, {"scale": 3.0}],
    "cosface": [{}, {"scale": 5.0, "margin": 0.1}],
    "arcface": [{}, {"scale": 5.0, "margin": 1.5}, {"margin": 0.0}],
    "large_margin": [{}, *({"margin": m, "step": 300.0, "annealing_rate": 1e-3} for m in (1, 2, 3, 4))],
    "isomax_plus": [{}, {"entropic_scale": 3.0}],
    "dismax": [{}, {"entropic_scale": 3.0}],
    "supcon": [{}, {"temperature": 0.7, "bias": True}],
    "infonce": [{}, {"temperature": 0.7, "bias": True}],
    "contrastive": [{}, {"margin": 3.0, "bias": True}],
    "center": [{}, {"pull": 2.0, "bias": True}],
    "contrastive_authors": [{}, {"exponent": 2.0, "softening": 1e-4, "margin": 3.0}],
    "spherical_authors": [{}, {"exponent": 2.0, "softening": 1e-4, "epsilon": 0.5}],
}
CASES = [(name, options) for name in LOSSES for options in OPTIONS.get(name, [{}])]


def problem(name: str, options: dict[str, Any], seed: int = 0) -> tuple[torch.nn.Module, Tensor, Tensor, Tensor | None]:
    """Return a head whose every parameter is at random, features, targets (the last one alone of its class), a step."""
    generator = torch.Generator().manual_seed(seed)
    own = {key: value for key, value in options.items() if key != "step"}
    head = LOSSES[name](4, 6, dtype=torch.float64, **own)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.7)
    x = torch.randn(7, 4, generator=generator, dtype=torch.float64).requires_grad_()
    step = torch.tensor(options["step"], dtype=torch.float64) if "step" in options else None
    return head, x, torch.tensor([0, 1, 1, 3, 0, 1, 4]), step


def test_every_loss_has_a_formula() -> None:
    assert list(LOGITS) == list(LOSSES)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_value_and_gradient_are_the_formulas(name: str, options: dict[str, Any]) -> None:
    head, x, y, step = problem(name, options)
    got = training_loss(head, x, y, step=step)
    want = loss_by_formula(name, x, y, dict(head.named_parameters()), options)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
    inputs = (x, *head.parameters())
    for one, other in zip(torch.autograd.grad(got, inputs), torch.autograd.grad(want, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_float32_is_as_right_as_float32_can_be(name: str, options: dict[str, Any]) -> None:
    head, x, y, step = problem(name, options)
    want = training_loss(head, x, y, step=step)
    got = training_loss(head.float(), x.float(), y, step=None if step is None else step.float())
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_rows_and_classes_that_are_padding_do_not_count(name: str) -> None:
    """A run that is smaller than its neighbors in a stack has both: rows of any content, weights of zeros."""
    head, x, y, _ = problem(name, {})
    padded = LOSSES[name](4, 9, dtype=torch.float64)
    with torch.no_grad():
        for key, parameter in padded.named_parameters():
            parameter.zero_()
            own = head.get_parameter(key)
            parameter[tuple(map(slice, own.shape))] = own
    more = torch.cat([x, torch.zeros(2, 4, dtype=torch.float64)])
    present = torch.tensor([1.0] * 7 + [0.0] * 2, dtype=torch.float64)
    targets = torch.cat([y, torch.tensor([0, 1])])
    got = training_loss(padded, more, targets, present=present, classes=torch.tensor(6.0))
    want = training_loss(head, x, y)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    (one,), (other,) = (torch.autograd.grad(loss, x, retain_graph=True) for loss in (got, want))
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    for key, gradient in zip(
        [key for key, _ in padded.named_parameters()], torch.autograd.grad(got, list(padded.parameters())), strict=True
    ):
        assert gradient.isfinite().all(), key
        if gradient.dim() and gradient.shape[0] == 9:
            assert not gradient[6:].any(), key


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in HEADS])
def test_a_batch_of_which_no_row_counts_costs_nothing(name: str) -> None:
    head, x, y, _ = problem(name, {})
    loss = training_loss(head, x, y, present=torch.zeros(7, dtype=torch.float64))
    assert loss == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(loss, (x, *head.parameters())))


@pytest.mark.parametrize("authors_n", [1.0, 28.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_twice_the_authors_exponent_with_softening_gives_their_layers_output(
    authors_n: float, dtype: torch.dtype
) -> None:
    """Theirs is (|x - w|^2 + 1e-4)^-n, normalized: exponent 2 n here."""
    generator = torch.Generator().manual_seed(3)
    head = HarmonicHead(16, 10, exponent=2 * authors_n, softening=1e-4, dtype=dtype)
    x = torch.randn(5, 16, generator=generator, dtype=dtype) / 4
    x[0] = head.weight[7].detach()  # a hit
    got = head(x).softmax(-1)
    for row, shares in zip(x.tolist(), got.tolist(), strict=True):
        kernel = []
        for center in head.centers.tolist():
            s = sum((a - b) ** 2 for a, b in zip(row, center, strict=True)) + 1e-4
            kernel.append(s**-authors_n)
        for share, weight in zip(shares, kernel, strict=True):
            # In float32 a logit of 28 times the size has 28 times the error.
            assert share == pytest.approx(weight / sum(kernel), abs=1e-6 if authors_n == 1 else 1e-5)


def test_dismax_trains_as_isomax_plus_with_a_smaller_scale_does() -> None:
    dismax, x, y, _ = problem("dismax", {})
    isomax = LOSSES["isomax_plus"](4, 6, entropic_scale=10 / 2**0.5, dtype=torch.float64)
    isomax.load_state_dict(dismax.state_dict())
    losses = training_loss(dismax, x, y), training_loss(isomax, x, y)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in losses))
    assert not torch.allclose(dismax(x), isomax(x) / 2**0.5)


def test_margins_of_zero_and_one_are_no_margins() -> None:
    x, y = torch.randn(7, 4, dtype=torch.float64), torch.tensor([0, 1, 1, 3, 0, 1, 4])
    plain = LOSSES["normface"](4, 6, scale=7.0, dtype=torch.float64)
    for name in ("cosface", "arcface"):
        head = LOSSES[name](4, 6, scale=7.0, margin=0.0, dtype=torch.float64)
        head.load_state_dict(plain.state_dict())
        torch.testing.assert_close(training_loss(head, x, y), training_loss(plain, x, y))
    linear, head = LOSSES["linear"](4, 6, dtype=torch.float64), LOSSES["large_margin"](4, 6, margin=1).double()
    head.load_state_dict(linear.state_dict())
    torch.testing.assert_close(training_loss(head, x, y), training_loss(linear, x, y))


def test_the_large_margin_comes_in_slowly() -> None:
    head, x, y, _ = problem("large_margin", {})
    linear = LOSSES["linear"](4, 6, dtype=torch.float64)
    linear.load_state_dict(head.state_dict())
    start, middle, late = (training_loss(head, x, y, step=torch.tensor(step)) for step in (0.0, 8000.0, 1e6))
    torch.testing.assert_close(start, training_loss(linear, x, y), rtol=1e-2, atol=0)
    assert start < middle < late
    torch.testing.assert_close(late, training_loss(head, x, y))


def test_a_read_out_does_not_train_the_features_nor_pairs_the_read_out() -> None:
    for name in ("supcon", "infonce", "contrastive"):
        head, x, y, _ = problem(name, {"bias": True})
        weight, bias = torch.autograd.grad(training_loss(head, x, y), (head.weight, head.bias))
        entropy = torch.nn.functional.cross_entropy(head(x), y)
        for got, want in zip((weight, bias), torch.autograd.grad(entropy, (head.weight, head.bias)), strict=True):
            torch.testing.assert_close(got, want)
        (before,) = torch.autograd.grad(training_loss(head, x, y), x)
        with torch.no_grad():
            head.weight.mul_(-3)
        (after,) = torch.autograd.grad(training_loss(head, x, y), x)
        torch.testing.assert_close(before, after)


def test_spherical_loss_on_log_probabilities_makes_the_right_class_the_least_probable() -> None:
    head = LOSSES["spherical_authors"](2, 4, exponent=2.0, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    near, far = torch.tensor([[0.9, 0.0], [-0.9, 0.0]], dtype=torch.float64)
    losses = [training_loss(head, x[None], torch.tensor([0])) for x in (near, far)]
    assert head(near).argmax() == 0
    assert losses[0] > 3 * losses[1]


def test_contrastive_loss_on_log_probabilities_does_not_know_which_class_is_which() -> None:
    head, x, y, _ = problem("contrastive_authors", {})
    renamed = torch.tensor([5, 3, 1, 2, 0, 4])[y]
    torch.testing.assert_close(training_loss(head, x, y), training_loss(head, x, renamed))
    moved = y.clone()
    moved[0] = 3
    assert not torch.isclose(training_loss(head, x, y), training_loss(head, x, moved))
