"""The mathematics of a training step and of a test, for all runs at once: plain functions of tensors.

They are traced once (`torch.func` disappears on the way) and handed to torch.compile, or run as they are.
"""

# S runs, B rows, T tokens, V vocabulary

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from harmax.ensemble.plan import Plan
from harmax.ensemble.stack import exponent_names, open_exponents
from harmax.kernels.distance import direct_distances
from harmax.losses import WithLoss


class State(NamedTuple):
    """Everything that training changes; `step` works in place."""

    parameters: list[Tensor]
    first_moments: list[Tensor]
    second_moments: list[Tensor]
    updates: Tensor
    """Updates each run has had, (S,)."""
    sums: Tensor
    """Of this epoch: batches' losses, batches, right answers, rows, (4, S)."""


class Settings(NamedTuple):
    """What differs between runs but stays the same throughout, (S,) each."""

    learning_rate: Tensor
    weight_decay: Tensor
    classes: Tensor
    exponent: Tensor


class Batch(NamedTuple):
    """Rows with their answers last (S, B, T + 1), their weights (S, B): 1, or 0 for padding, and a key a run (S,)."""

    rows: Tensor
    weight: Tensor
    key: Tensor


class Functions(NamedTuple):
    """A training step, which changes the state and returns nothing, and a test: (2, S) loss and accuracy."""

    step: Callable[[State, Settings, Batch], None]
    test: Callable[[State, Settings, Batch], Tensor]


def make_functions(model: nn.Module, plan: Plan, *, padded: bool) -> Functions:
    """Write the step and the test for models shaped like `model`.

    Args:
        model: the largest of the ensemble.
        plan: how to train.
        padded: whether some runs have fewer classes than the model, which must then never win.
    """
    model = WithLoss(copy.deepcopy(model))
    names = [name for name, _ in model.named_parameters()]
    exponents = [] if plan.exponent is None else exponent_names(model)
    if exponents:
        open_exponents(model)

    def measure(
        parameters: Sequence[Tensor],
        settings: Settings,
        batch: Batch,
        key: Tensor | None,
        updates: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mean loss over the rows that count, and the number of right answers among them; a test has no `updates`."""
        given = {**dict(zip(names, parameters, strict=True)), **dict.fromkeys(exponents, settings.exponent)}
        target_B = batch.rows[..., -1]
        options = {
            "target": target_B,
            "present": batch.weight,
            "classes": settings.classes if padded else None,
            "step": updates,
            "testing": updates is None,
        }
        with direct_distances():
            z_BV, loss = functional_call(model, given, (batch.rows[..., :-1], key), options)
        return loss, ((z_BV.argmax(-1) == target_B) * batch.weight).sum()

    def penalty(parameters: Sequence[Tensor], settings: Settings) -> Tensor:
        embedding_VD = parameters[names.index("model.embedding")]
        return (embedding_VD.square().sum(0) / settings.classes).sqrt().mean()

    def objective(
        parameters: list[Tensor], settings: Settings, batch: Batch, updates: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        loss, right = measure(parameters, settings, batch, batch.key, updates)
        total = loss + plan.penalty * penalty(parameters, settings) if plan.penalty else loss
        return total, (loss, right, batch.weight.sum())

    gradients = vmap(grad(objective, has_aux=True))

    def step(state: State, settings: Settings, batch: Batch) -> None:
        grads, (loss, right, rows) = gradients(state.parameters, settings, batch, state.updates)
        active = (rows > 0).to(loss.dtype)
        state.sums.add_(torch.stack([loss, active, right, rows]))
        adamw(state, grads, settings, plan, active)

    def test_one(parameters: list[Tensor], settings: Settings, batch: Batch) -> tuple[Tensor, Tensor]:
        key = batch.key if plan.dropout_in_tests else None
        loss, right = measure(parameters, settings, batch, key)
        return loss, right / batch.weight.sum().clamp(min=1)

    def test(state: State, settings: Settings, batch: Batch) -> Tensor:
        return torch.stack(vmap(test_one)(state.parameters, settings, batch))

    return Functions(step, test)


def adamw(state: State, gradients: Sequence[Tensor], settings: Settings, plan: Plan, active: Tensor) -> None:
    """Update every run in place as `torch.optim.AdamW` would; runs that are not active stand still.

    On lists of tensors at once, which compile to one kernel instead of one a parameter. Standing still is a matter of
    the factors (nothing decays, nothing is added), so that both kinds of run go the same way.
    """
    first, second = plan.betas
    updates = state.updates + active
    # Before its first update a run has nothing to correct; 1 keeps the quotients finite.
    counted = updates.clamp(min=1)
    rate = active * settings.learning_rate / (1 - first**counted)
    spread = (1 - second**counted).rsqrt()
    decay = 1 - active * settings.learning_rate * settings.weight_decay
    p, m, v, g = state.parameters, state.first_moments, state.second_moments, list(gradients)

    def along(values_S: Tensor) -> list[Tensor]:
        return [values_S.reshape(-1, *[1] * (tensor.dim() - 1)) for tensor in p]

    def mixed(old: list[Tensor], new: list[Tensor], beta: float) -> list[Tensor]:
        kept = torch._foreach_mul(old, along(1 - active * (1 - beta)))
        return list(torch._foreach_add(kept, torch._foreach_mul(new, along(active * (1 - beta)))))

    new_m, new_v = mixed(m, g, first), mixed(v, list(torch._foreach_mul(g, g)), second)
    root = torch._foreach_add(torch._foreach_mul(torch._foreach_sqrt(new_v), along(spread)), plan.epsilon)
    change = torch._foreach_div(torch._foreach_mul(new_m, along(rate)), root)
    new_p = torch._foreach_sub(torch._foreach_mul(p, along(decay)), change)
    for old, new in ((p, new_p), (m, new_m), (v, new_v)):
        torch._foreach_copy_(old, new)
    state.updates.copy_(updates)
