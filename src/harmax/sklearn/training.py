"""Training of a harmonic head on a table that fits into memory."""

# N rows, D columns, V classes

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from harmax.heads import HarmonicHead

MINI_BATCH_ABOVE = 20_000
"""Number of rows above which batch_size="auto" trains on mini-batches."""
MINI_BATCH, EPOCHS, LEARNING_RATE = 1024, 20, 0.01
FEW = 3
"""Number of columns up to which rows on its way can stop a center, so that centers start farther out."""


@dataclass(frozen=True)
class Rows:
    """Standardized rows, their classes as numbers from 0, and their weights."""

    x_ND: Tensor
    y_N: Tensor
    weight_N: Tensor

    def take(self, places: np.ndarray) -> "Rows":
        """Return some of the rows."""
        return Rows(self.x_ND[places], self.y_N[places], self.weight_N[places])

    def __len__(self) -> int:
        return len(self.x_ND)


@dataclass(frozen=True)
class Fitting:
    """How a head is fitted."""

    classes: int
    pull: float
    hidden: int | None
    batch_size: int | None
    max_iter: int
    seed: int


class Model(nn.Module):
    """An optional hidden layer, and a harmonic head in float64."""

    def __init__(self, width: int, exponent: float, fitting: Fitting) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if fitting.hidden is not None:
            linear = nn.Linear(width, fitting.hidden, dtype=torch.float64)
            generator = torch.Generator().manual_seed(fitting.seed)
            reach = math.sqrt(3 / width)  # a variance of 1 for standardized columns
            nn.init.uniform_(linear.weight, -reach, reach, generator=generator)
            nn.init.uniform_(linear.bias, -1, 1, generator=generator)
            layers = [linear, nn.SiLU()]
            width = fitting.hidden
        self.layers = nn.Sequential(*layers)
        self.head = HarmonicHead(width, fitting.classes, exponent=exponent, scale=1.0, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """Return log-probabilities, (N, V)."""
        return self.head(self.layers(x))

    def decay(self) -> Tensor:
        """Return the sum of squared weights of the hidden layer."""
        return sum((p.square().sum() for p in self.layers.parameters()), self.head.weight.new_zeros(()))


def fit_model(rows: Rows, exponent: float, fitting: Fitting, *, loose: bool = False) -> tuple[Model, int, bool]:
    r"""Return a fitted model, the number of iterations, and whether it converged.

    .. math:: \min_w \; \sum_i a_i \ell_i + \tfrac{\lambda}{2} \sum_j \|w_j - m_j\|^2

    l_i is the harmonic loss, a_i the weight of the row, m_j the mean of class j, from where center j starts, and lambda
    the pull. A hidden layer has the same pull to 0.

    Args:
        rows: the training rows.
        exponent: n of the harmonic loss.
        fitting: everything else.
        loose: stop early, as a search can.
    """
    with torch.random.fork_rng(devices=[]):  # the head draws its centers before they move to the means
        model = Model(rows.x_ND.shape[1], exponent, fitting)
    with torch.no_grad():
        features_ND = model.layers(rows.x_ND)
        means_VD = class_means(features_ND, rows, fitting.classes)
        model.head.weight.copy_(
            means_VD if features_ND.shape[1] > FEW else _outward(features_ND, means_VD, rows, exponent)
        )
    objective = _Objective(model, rows, fitting, means_VD)
    if fitting.batch_size is not None and fitting.batch_size < len(rows):
        return model, _mini_batches(objective, fitting.batch_size), True
    tolerance = 1e-6 if loose or fitting.hidden is not None else 1e-9
    iterations, converged = _full_batch(objective, 50 if loose else fitting.max_iter, tolerance)
    return model, iterations, converged or loose


def class_means(x_ND: Tensor, rows: Rows, classes: int) -> Tensor:
    """Return the weighted mean of each class, (V, D)."""
    member_VN = torch.nn.functional.one_hot(rows.y_N, classes).T * rows.weight_N
    return member_VN @ x_ND / member_VN.sum(1, keepdim=True)


def _outward(x_ND: Tensor, means_VD: Tensor, rows: Rows, exponent: float) -> Tensor:
    r"""Return class means moved away from their middle, where they have nearly the logits of normal distributions.

    .. math:: w_j = m + c (m_j - m), \qquad c = n \sigma^2 / |m_j - m|^2, \text{ from 1 to 10}
    """
    middle_D = means_VD.mean(0)
    share_N = rows.weight_N / rows.weight_N.sum()
    within = share_N @ (x_ND - means_VD[rows.y_N]).square().mean(1)
    between = (means_VD - middle_D).square().sum(1).mean()
    factor = (exponent * within / between.clamp_min(1e-12)).clamp(1, 10)
    return middle_D + factor * (means_VD - middle_D)


class _Objective:
    def __init__(self, model: Model, rows: Rows, fitting: Fitting, means_VD: Tensor) -> None:
        self.model, self.rows, self.fitting = model, rows, fitting
        self.total = float(rows.weight_N.sum())
        self.means_VD = None if fitting.hidden is not None else means_VD

    def __call__(self, batch: Rows, share: float = 1.0) -> Tensor:
        """Return the loss of a batch, and this share of the pull."""
        features_ND = self.model.layers(batch.x_ND)
        loss_N = self.model.head(features_ND, batch.y_N, reduction="none")
        means_VD = self._means(features_ND, batch)
        pull = (self.model.head.weight - means_VD).square().sum() + self.model.decay()
        return (loss_N * batch.weight_N).sum() + 0.5 * share * self.fitting.pull * pull

    def _means(self, features_ND: Tensor, batch: Rows) -> Tensor:
        if self.means_VD is not None:
            return self.means_VD
        # Behind a hidden layer the means move. A class that a mini-batch lacks pulls nowhere.
        seen_V = torch.bincount(batch.y_N, minlength=self.fitting.classes) > 0
        found_VD = class_means(features_ND, batch, self.fitting.classes)
        return torch.where(seen_V[:, None], found_VD.nan_to_num(), self.model.head.weight)


def _full_batch(objective: _Objective, most: int, tolerance: float) -> tuple[int, bool]:
    parameters = list(objective.model.parameters())

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nn.utils.vector_to_parameters(torch.tensor(flat), parameters)
        loss = objective(objective.rows) / objective.total
        gradients = torch.autograd.grad(loss, parameters)
        return loss.item(), torch.cat([one.reshape(-1) for one in gradients]).numpy()

    start = nn.utils.parameters_to_vector(parameters).detach().numpy()
    options = {"maxiter": most, "ftol": tolerance, "gtol": 1e-2 * tolerance**0.5}
    found = minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options)
    nn.utils.vector_to_parameters(torch.tensor(found.x), parameters)
    return max(1, int(found.nit)), found.nit < most


def _mini_batches(objective: _Objective, size: int) -> int:
    rows, generator = objective.rows, torch.Generator().manual_seed(objective.fitting.seed)
    optimizer = torch.optim.Adam(objective.model.parameters(), lr=LEARNING_RATE)
    steps = EPOCHS * -(-len(rows) // size)
    schedule: Callable[[int], float] = lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))  # noqa: E731
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for _ in range(EPOCHS):
        for places in torch.randperm(len(rows), generator=generator).split(size):
            batch = rows.take(places.numpy())
            optimizer.zero_grad()
            (objective(batch, len(batch) / len(rows)) / float(batch.weight_N.sum())).backward()
            optimizer.step()
            decay.step()
    return EPOCHS
