"""Heads on points instead of a network's output: first weights, losses, descent of many seeds at once, a table."""

# S seeds, B points, K classes, D features, T recorded steps

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from harmax.figures import HEAD_STYLES
from harmax.functional import harmonic_logits, harmonic_loss
from harmax_lab.ensemble.rows import Record, descend
from harmax_lab.kit.experiment import Progress
from harmax_lab.kit.results import Results
from harmax_lab.kit.tables import Column, Table, median_of, tabulate


def initial_weight(classes: int, features: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw nn.Linear's default weights (K, D) from a seed: the same for every head."""
    bound, generator = 1 / math.sqrt(features), torch.Generator().manual_seed(seed)
    return torch.empty(classes, features, dtype=dtype).uniform_(-bound, bound, generator=generator)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy as log1p(sum over wrong classes of exp(z_j - z_c)).

    This is `F.cross_entropy`, but as exact near zero as the harmonic loss is, so that neither head gains or loses by
    rounding when the curves are compared.
    """
    margin = logits - logits.gather(1, target[:, None])
    wrong = ~functional.one_hot(target, logits.shape[1]).bool()
    return torch.log1p((margin.exp() * wrong).sum(1)).mean()


def logits_of(arm: str, exponent: float, points: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return one head's logits (B, K) of points (B, D)."""
    if arm.startswith("harmonic"):
        return harmonic_logits(points, weight, exponent=exponent)
    return points @ weight.T + bias


def loss_of(arm: str, exponent: float, points: Tensor, target: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return one head's mean loss on points (B, D)."""
    if arm.startswith("harmonic"):
        return harmonic_loss(points, weight, target, exponent=exponent)
    return cross_entropy(points @ weight.T + bias, target)


def margins(scores: Tensor, target: Tensor) -> Tensor:
    """Return each row's score of its class minus the best other score: (..., B, K), (B,) -> (..., B)."""
    own = functional.one_hot(target, scores.shape[-1]).bool()
    return scores.masked_fill(~own, -math.inf).amax(-1) - scores.masked_fill(own, -math.inf).amax(-1)


class Trajectory(NamedTuple):
    """Recorded steps (T,), and at each of them losses (T, S), weights, their gradients (T, S, K, D) and biases."""

    step: Tensor
    loss: Tensor
    weight: Tensor
    gradient: Tensor
    bias: Tensor

    def alone(self, place: int) -> "Trajectory":
        """Return the trajectory of one seed, by its place among all."""
        return Trajectory(self.step, *(series[:, place] for series in self[1:]))


def train(
    arm: str,
    exponent: float,
    points: Tensor,
    target: Tensor,
    weight: Tensor,
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
    steps: Collection[int],
    progress: Progress,
    message: str,
) -> Trajectory:
    """Train every seed at once, full batch.

    Optimizers work element by element and the seeds' losses are summed, so stacking changes no run.

    Args:
        arm: a key of `HEAD_STYLES`; "cross_entropy_bias" alone has a bias.
        exponent: of a harmonic head.
        points: (B, D), or (S, B, D) where each seed has its own.
        target: classes, (B,).
        weight: first weights, (S, K, D).
        optimizer: returns the optimizer of some parameters.
        steps: which are recorded; the last of them is the last that is taken.
        progress: called with the fraction done and the message.
        message: for `progress`.
    """
    weight = weight.clone().requires_grad_()
    bias = weight.new_zeros(weight.shape[:2]).requires_grad_(arm == "cross_entropy_bias")
    parameters = [weight, bias] if bias.requires_grad else [weight]
    losses_of = torch.func.vmap(
        lambda points, weight, bias: loss_of(arm, exponent, points, target, weight, bias),
        in_dims=(0 if points.ndim == 3 else None, 0, 0),
    )
    record = Record(steps, lambda losses: (losses, weight, cast(Tensor, weight.grad), bias), progress, message)
    descend(range(max(steps) + 1), lambda step: losses_of(points, weight, bias), optimizer(parameters), record)
    return Trajectory(torch.tensor(record.steps), *record.stacked())


def tabulate_last_step(
    results: Results, rows: Sequence[Any], first: dict[str, Column], medians: dict[str, str]
) -> Table:
    """Tabulate medians over seeds at the last step.

    Args:
        results: all results.
        rows: what `places` lists, with the head as its `arm`.
        first: columns before the head and the number of seeds.
        medians: metrics by their headings.
    """
    columns: dict[str, Column] = {
        **first,
        "head": lambda at: HEAD_STYLES[at.arm].label,
        "seeds": lambda at: len(at.own),
        **{heading: median_of(metric) for heading, metric in medians.items()},
    }
    return tabulate(f"At step {results.spec.steps}, median over seeds", rows, columns)
