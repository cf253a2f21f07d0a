"""A harmonic head on features that stay as they are: its exponent and its length of training are cross-validated."""

# N pictures, B of a batch, D features, V classes, F folds, E epochs

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harmax.heads import HarmonicHead

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Exponents that are tried, in units of sqrt(D)."""
FOLDS = 5
MANY = 2000
"""Training pictures from which on one fold stands for all, and fewer epochs are tried."""
EPOCHS, EPOCHS_MANY = 60, 20
RATE = 0.02
"""Learning rate of Adam, in units of the typical size of a feature."""


class Fitted(NamedTuple):
    """A trained head, and how it was found."""

    head: HarmonicHead
    exponent: float
    epochs: int
    validated: float | None
    """Mean negative log likelihood in cross-validation, in nats; None: nothing was chosen."""


def fit_head(
    x_ND: Tensor,
    y_N: Tensor,
    classes: int,
    *,
    exponent: float | None = None,
    epochs: int | None = None,
    batch: int,
    lr: float | None = None,
    seed: int = 0,
) -> Fitted:
    """Train a harmonic head whose centers start at the class means.

    What is left out is chosen by cross-validation within these pictures: the mean negative log likelihood of pictures
    that a fold leaves out. Test pictures take no part.

    Args:
        x_ND: features, (N, D).
        y_N: classes, (N,), int64.
        classes: V.
        exponent: None: the best of `FACTORS` times sqrt(D).
        epochs: None: the best number up to 60, 0 being the class means themselves.
        batch: pictures per step.
        lr: learning rate, in units of the typical size of a feature.
        seed: of the order of the pictures and of the folds.
    """
    with _one_thread(x_ND):
        return _fit(x_ND, y_N, classes, exponent, epochs, batch, RATE if lr is None else lr, seed)


def _fit(
    x_ND: Tensor,
    y_N: Tensor,
    classes: int,
    exponent: float | None,
    epochs: int | None,
    batch: int,
    rate: float,
    seed: int,
) -> Fitted:
    usual = math.sqrt(x_ND.shape[1])
    exponents = [factor * usual for factor in FACTORS] if exponent is None else [exponent]
    most = epochs or (EPOCHS if len(y_N) <= MANY else EPOCHS_MANY)
    folds = _folds(y_N, classes, seed)
    validated = None
    if folds and (exponent is None or epochs is None):
        curves = torch.stack([_validate(x_ND, y_N, classes, one, most, batch, rate, seed, folds) for one in exponents])
        candidates = curves if epochs is None else curves[:, -1:]
        place = int(candidates.argmin())
        which, at = divmod(place, candidates.shape[1])
        exponent, epochs = exponents[which], at if epochs is None else epochs
        validated = float(candidates[which, at])
    # With one picture of a class nothing can be left out: the class means and the paper's rule.
    chosen, length = usual if exponent is None else exponent, 0 if epochs is None else epochs
    head = start_head(x_ND, y_N, classes, chosen)
    for _ in _train(head, x_ND, y_N, length, batch, rate, seed):
        pass
    return Fitted(head.eval(), chosen, length, validated)


@contextmanager
def _one_thread(x_ND: Tensor) -> Iterator[None]:
    """Use one thread for matrices as small as these on a CPU: several would wait for one another most of the time."""
    threads = torch.get_num_threads()
    if x_ND.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def start_head(x_ND: Tensor, y_N: Tensor, classes: int, exponent: float) -> HarmonicHead:
    """Return a head with its centers at the class means, in units of the features."""
    head = HarmonicHead(x_ND.shape[1], classes, exponent=exponent, scale=1.0, device=x_ND.device)
    head.init_from_class_means(x_ND, y_N)
    return head


def _train(
    head: HarmonicHead, x_ND: Tensor, y_N: Tensor, epochs: int, batch: int, rate: float, seed: int
) -> Iterator[None]:
    """Train a head, and yield after every epoch."""
    typical = float(x_ND.square().mean().sqrt()) or 1.0
    # Gradients fall with the size of the features, so that nothing depends on their unit.
    optimizer = torch.optim.Adam(head.train().parameters(), rate * typical, eps=1e-8 / typical)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(y_N), generator=order).split(batch):
            rows = rows.to(x_ND.device)
            optimizer.zero_grad()
            F.cross_entropy(head(x_ND[rows]), y_N[rows]).backward()
            optimizer.step()
        yield


def _validate(
    x_ND: Tensor,
    y_N: Tensor,
    classes: int,
    exponent: float,
    epochs: int,
    batch: int,
    rate: float,
    seed: int,
    folds: list[Tensor],
) -> Tensor:
    """Return the mean loss of left-out pictures before training and after each epoch, (E + 1,), float64."""
    total = torch.zeros(epochs + 1, dtype=torch.float64)
    for left_out_N in folds:
        x, y = x_ND[~left_out_N], y_N[~left_out_N]
        head = start_head(x, y, classes, exponent)
        losses = [_loss(head, x_ND[left_out_N], y_N[left_out_N])]
        for _ in _train(head, x, y, epochs, batch, rate, seed):
            losses.append(_loss(head, x_ND[left_out_N], y_N[left_out_N]))
        total += torch.tensor(losses, dtype=torch.float64)
    return total / sum(int(one.sum()) for one in folds)


@torch.no_grad()
def _loss(head: HarmonicHead, x_BD: Tensor, y_B: Tensor) -> float:
    return float(F.cross_entropy(head.eval()(x_BD), y_B, reduction="sum"))


def _folds(y_N: Tensor, classes: int, seed: int) -> list[Tensor]:
    """Return which pictures each fold leaves out, (N,) each; none if a class has a single picture."""
    labels = y_N.cpu().numpy()
    least = int(np.bincount(labels, minlength=classes).min())
    if least < 2:
        return []
    count = min(FOLDS, least)
    numbers = np.random.default_rng(seed)
    fold_N = np.empty(len(labels), int)
    for label in range(classes):
        own = numbers.permutation(np.flatnonzero(labels == label))
        fold_N[own] = np.arange(len(own)) % count
    folds = [torch.from_numpy(fold_N == number).to(y_N.device) for number in range(count)]
    return folds[:1] if len(labels) > MANY else folds
