"""The mathematics of a training step and of a test, for all runs at once: plain functions of tensors.

They are traced once, which removes `torch.func`, and then compiled or run as they are. A step consists of two
functions: gradients and update. The update of all tensors is compiled to one kernel, whose parts run at the same time.
In a single function, inductor would let one part compute what others read.
"""

# S runs, B rows, T tokens, V vocabulary

import copy
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from harmax.kernels.distance import direct_distances
from harmax_lab.ensemble.plan import Plan
from harmax_lab.ensemble.stack import exponent_names, open_exponents
from harmax_lab.losses import WithLoss

F = TypeVar("F")


class State(NamedTuple):
    """Everything that training changes, in place."""

    parameters: list[Tensor]
    first_moments: list[Tensor]
    second_moments: list[Tensor]
    updates: Tensor
    """Number of updates of each run, (S,)."""
    sums: Tensor
    """Sums over this epoch: losses of batches, batches, right answers, rows, (4, S)."""


class Settings(NamedTuple):
    """Constants that differ between runs, (S,) each."""

    learning_rate: Tensor
    weight_decay: Tensor
    classes: Tensor
    exponent: Tensor


class Batch(NamedTuple):
    """One batch per run."""

    rows: Tensor
    """Questions with their answers last, (S, B, T + 1)."""
    weight: Tensor
    """1, or 0 for padding, (S, B)."""
    key: Tensor
    """(S,)."""


class Functions(NamedTuple, Generic[F]):
    """The two halves of a training step, and a test."""

    gradients: F
    """(state, settings, batch) to one gradient per parameter and, last, `factors_of`; counts the batch in the state."""
    update: F
    """(state, what `gradients` returned): changes parameters and moments."""
    test: F
    """(state, settings, batch) to loss and accuracy, (2, S)."""


def make_functions(model: nn.Module, plan: Plan, *, padded: bool) -> Functions[Callable[..., Any]]:
    """Return the step and the test for models of one kind.

    Args:
        model: the largest of the ensemble.
        plan: how to train.
        padded: whether some runs have fewer classes than the model. Classes that a run does not have never win.
    """
    model = WithLoss(copy.deepcopy(model), exact=plan.exact)
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
        """Return the mean loss of the rows and the number of right answers, without padding. Tests give no updates."""
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

    differentiate = vmap(grad(objective, has_aux=True))

    def gradients(state: State, settings: Settings, batch: Batch) -> list[Tensor]:
        grads, (loss, right, rows) = differentiate(state.parameters, settings, batch, state.updates)
        active = (rows > 0).to(loss.dtype)
        state.sums.add_(torch.stack([loss, active, right, rows]))
        updates = state.updates + active
        state.updates.copy_(updates)
        return [*grads, factors_of(updates, active, settings, plan)]

    def update(state: State, found: list[Tensor]) -> None:
        *grads, factors = found
        adamw(state, grads, factors, plan)

    def test_one(parameters: list[Tensor], settings: Settings, batch: Batch) -> tuple[Tensor, Tensor]:
        key = batch.key if plan.dropout_in_tests else None
        loss, right = measure(parameters, settings, batch, key)
        return loss, right / batch.weight.sum().clamp(min=1)

    def test(state: State, settings: Settings, batch: Batch) -> Tensor:
        return torch.stack(vmap(test_one)(state.parameters, settings, batch))

    return Functions(gradients, update, test)


def factors_of(updates: Tensor, active: Tensor, settings: Settings, plan: Plan) -> Tensor:
    """Return the factors of the next update of each run, (4, S).

    They are: whether the run is active, its learning rate and the factor of the second moments, both with Adam's bias
    correction, and what weight decay leaves of the parameters.
    """
    first, second = plan.betas
    # 1 keeps the quotients finite before the first update of a run.
    counted = updates.clamp(min=1)
    rate = active * settings.learning_rate / (1 - first**counted)
    spread = (1 - second**counted).rsqrt()
    return torch.stack([active, rate, spread, 1 - active * settings.learning_rate * settings.weight_decay])


def adamw(state: State, gradients: Sequence[Tensor], factors: Tensor, plan: Plan) -> None:
    """Update every active run in place, as `torch.optim.AdamW` does. The factors of other runs change nothing.

    Operations on lists of tensors compile to one kernel instead of one per parameter.
    """
    first, second = plan.betas
    active, rate, spread, decay = factors.unbind()
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
