"""One contract for every loss in the registry, and what is refused."""

import copy
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harmax.heads import HEADS
from harmax_lab.losses import LOSSES, LossHead, WithLoss, training_loss
from harmax_lab.models import MLP

every_loss = pytest.mark.parametrize("name", LOSSES)
RIVALS = [name for name in LOSSES if name not in HEADS]
every_rival = pytest.mark.parametrize("name", RIVALS)
TARGET = torch.tensor([0, 2, 1, 1, 4, 0])


def features(*shape: int, seed: int = 0, **options: Any) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **options)


@every_rival
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_losses_are_float32_at_least_and_gradients_come_back_in_kind(name: str, dtype: torch.dtype) -> None:
    head = LOSSES[name](3, 5, dtype=dtype)
    x = features(6, 3).to(dtype).requires_grad_()
    loss = training_loss(head, x, TARGET)
    assert head(x).shape == (6, 5)
    assert head(x[0]).shape == (5,)
    assert (loss.shape, loss.dtype) == ((), torch.promote_types(dtype, torch.float32))
    loss.backward()
    for tensor in (x, *head.parameters()):
        assert tensor.grad.dtype == dtype
        assert tensor.grad.isfinite().all()


def hits(head: nn.Linear) -> Tensor:
    return head.weight.detach()[TARGET].clone()


PLACES: dict[str, Callable[[nn.Linear], Tensor]] = {
    "on the right weights": hits,
    "on wrong weights": lambda head: hits(head).roll(1, 0),
    "opposite the right weights": lambda head: -hits(head),
    "zero": lambda head: torch.zeros(6, 3),
    "all the same": lambda head: torch.ones(6, 3),
    "huge": lambda head: 1e12 * features(6, 3),
    "tiny": lambda head: 1e-12 * features(6, 3),
}


@every_loss
@pytest.mark.parametrize("place", PLACES)
def test_losses_and_gradients_are_finite_at_the_extremes(name: str, place: str) -> None:
    torch.manual_seed(0)
    head = LOSSES[name](3, 5)
    x = PLACES[place](head).requires_grad_()
    loss = training_loss(head, x, TARGET)
    assert loss.isfinite()
    assert head(x).isfinite().all()
    loss.backward()
    for tensor in (x, *head.parameters()):
        assert tensor.grad is None or tensor.grad.isfinite().all()


@every_loss
def test_stacked_is_alone_in_value_and_gradient(name: str) -> None:
    torch.manual_seed(0)
    heads = [LOSSES[name](3, 5, dtype=torch.float64) for _ in range(3)]
    x = features(3, 6, 3, dtype=torch.float64)
    targets = torch.stack([TARGET, TARGET.flip(0), TARGET.roll(1)])
    steps = torch.tensor([0.0, 3000.0, 1e6], dtype=torch.float64)
    parameters, _ = torch.func.stack_module_state(heads)
    model = WithLoss(heads[0])

    def loss(parameters: dict[str, Tensor], x: Tensor, target: Tensor, step: Tensor) -> Tensor:
        own = {f"model.{key}": value for key, value in parameters.items()}
        return torch.func.functional_call(model, own, (x,), {"target": target, "step": step})[1]

    both = torch.vmap(torch.func.grad_and_value(loss, argnums=(0, 1)))
    (weight_gradients, x_gradients), got = both(parameters, x, targets, steps)
    for run, head in enumerate(heads):
        own = x[run].clone().requires_grad_()
        want = training_loss(head, own, targets[run], step=steps[run])
        torch.testing.assert_close(got[run], want)
        want.backward()
        torch.testing.assert_close(x_gradients[run], own.grad)
        for key, parameter in head.named_parameters():
            torch.testing.assert_close(weight_gradients[key][run], parameter.grad)


@every_rival
def test_state_copies_resets_and_starts_on_meta(name: str) -> None:
    head, x = LOSSES[name](3, 5), features(6, 3)
    for twin in (copy.deepcopy(head), LOSSES[name](3, 5)):
        twin.load_state_dict(head.state_dict())
        torch.testing.assert_close(training_loss(twin, x, TARGET), training_loss(head, x, TARGET))
    empty = LOSSES[name](3, 5, device="meta").to_empty(device="cpu")
    for parameter in empty.parameters():
        parameter.data.fill_(77.0)
    torch.manual_seed(0)
    empty.reset_parameters()
    torch.manual_seed(0)
    for key, value in LOSSES[name](3, 5).state_dict().items():
        torch.testing.assert_close(empty.state_dict()[key], value)


@every_rival
def test_one_seed_starts_every_loss_from_the_same_network(name: str) -> None:
    """Runs of two losses can be paired by seed: what a loss has besides draws no random numbers."""
    models = []
    for head in ("linear", name):
        torch.manual_seed(5)
        models.append(MLP(7, 2, head=head, tied=False))
    for key, parameter in models[0].named_parameters():
        assert torch.equal(models[1].get_parameter(key), parameter)


@every_rival
def test_a_nan_is_not_hidden(name: str) -> None:
    head, x = LOSSES[name](3, 5), features(6, 3)
    x[1, 0] = float("nan")
    assert head(x).isnan().all(1).tolist() == [row == 1 for row in range(6)]
    assert training_loss(head, x, TARGET).isnan()


@every_rival
def test_is_documented_with_its_formula_and_source_and_shows_its_settings(name: str) -> None:
    text = inspect.getdoc(LOSSES[name])
    assert re.search(r"math:: (z|\\ell)", text)
    assert re.search(r"\((20\d\d)\)", text)
    head = LOSSES[name](3, 5)
    assert all(f"{setting}=" in repr(head) for setting in head.settings)


def test_a_model_without_such_a_head_is_trained_by_cross_entropy() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5)), features(6, 3)
    logits, loss = WithLoss(model)(x, target=TARGET)
    assert torch.equal(logits, model(x))
    assert torch.equal(loss, nn.functional.cross_entropy(model(x), TARGET))


def test_a_model_with_such_a_head_is_trained_on_the_features_that_enter_it() -> None:
    body, head, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), LOSSES["center"](4, 5, pull=1.0), features(6, 3)
    model = WithLoss(nn.Sequential(body, head))
    logits, loss = model(x, target=TARGET)
    assert torch.equal(loss, training_loss(head, body(x), TARGET))
    assert torch.equal(model(x, target=TARGET, testing=True)[1], nn.functional.cross_entropy(logits, TARGET))
    assert not head._forward_pre_hooks


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "unknown loss": (lambda: MLP(5, 2, head="arcfaces"), ValueError, "did you mean 'arcface'"),
    "unknown option": (
        lambda: MLP(5, 2, head="arcface", margn=0.3),
        TypeError,
        "`option of arcface` must be one of margin, scale, bias, device, dtype, got 'margn'; did you mean 'margin'",
    ),
    "option of another": (lambda: MLP(5, 2, head="supcon", exponent=2.0), TypeError, "`option of supcon` must be one"),
    "no scale": (lambda: LOSSES["normface"](3, 5, scale=0), ValueError, "`scale` must be finite and above 0, got 0"),
    "no number": (lambda: LOSSES["normface"](3, 5, scale="s"), TypeError, "`scale` must be a number, got 's'"),
    "negative margin": (
        lambda: LOSSES["cosface"](3, 5, margin=-0.1),
        ValueError,
        "`margin` must be finite and at least 0, got -0.1",
    ),
    "degrees": (lambda: LOSSES["arcface"](3, 5, margin=28.6), ValueError, "`margin` must be an angle in radians"),
    "half a multiple": (
        lambda: LOSSES["large_margin"](3, 5, margin=1.5),
        ValueError,
        "`margin` must be a whole number of at least 1, got 1.5",
    ),
    "infinite": (
        lambda: LOSSES["supcon"](3, 5, temperature=float("inf")),
        ValueError,
        "`temperature` must be finite and above 0, got inf",
    ),
    "bias": (lambda: LOSSES["isomax_plus"](3, 5, bias=True), ValueError, "`bias` must be False for IsoMaxPlusHead"),
    "no features": (lambda: LOSSES["spherical"](0, 5), ValueError, "must be at least 1, got 0 and 5"),
    "two heads": (
        lambda: WithLoss(nn.Sequential(LOSSES["arcface"](3, 3), LOSSES["arcface"](3, 5))),
        ValueError,
        "`model` must have at most one head with a loss of its own, got ['0', '1']",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case: str) -> None:
    call, error, message = BAD[case]
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_a_head_that_is_called_twice_is_refused() -> None:
    head = LOSSES["cosface"](3, 3)
    with pytest.raises(ValueError, match="`model` must call its head once, got 2 calls"):
        WithLoss(nn.Sequential(head, head))(features(2, 3), target=torch.tensor([0, 1]))
    assert isinstance(head, LossHead)
    assert not head._forward_pre_hooks
