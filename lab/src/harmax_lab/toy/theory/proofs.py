"""Two formulas of the proof of theorem 3, compared with what they should be equal to. Neither needs a run."""

# B points, K classes, D features

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from harmax.functional import log_harmax, squared_distance
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.results import Results
from harmax_lab.toy.theory.measures import class_spread, pull

EXPONENT, MATCHES, AT_REST = 2.0, 1e-6, 1e-9


class Example(NamedTuple):
    """Points of three classes in the plane, and weights at a critical point of their harmonic loss."""

    points_BD: Tensor
    target_B: Tensor
    centers_KD: Tensor


def loss_of(points_BD: Tensor, target_B: Tensor, centers_KD: Tensor) -> Tensor:
    """Return the sum of the losses, as in the theorem."""
    log_p_BK = log_harmax((points_BD[:, None] - centers_KD).norm(dim=2), EXPONENT)
    return -log_p_BK.gather(1, target_B[:, None]).sum()


@cache
def example() -> Example:
    """Draw points, and go down from the means of their classes until the gradient is 0."""
    generator = torch.Generator().manual_seed(0)
    target_B = torch.arange(24) % 3
    means_KD = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]], dtype=torch.float64)
    points_BD = means_KD[target_B] + torch.randn(24, 2, dtype=torch.float64, generator=generator) / 2
    moving = means_KD.clone().requires_grad_()
    descent = torch.optim.LBFGS(
        [moving], max_iter=2000, tolerance_grad=AT_REST, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        descent.zero_grad()
        loss = loss_of(points_BD, target_B, moving)
        loss.backward()
        return loss

    descent.step(closure)
    return Example(points_BD, target_B, moving.detach())


def own_derivative(points_BD: Tensor, target_B: Tensor, centers_KD: Tensor) -> Tensor:
    r"""The derivative of the loss of a class's own members by its center (K, D), as the proof writes it.

    .. math:: -\sum_{i: y_i = k} \beta \frac{w_k - x_i}{\|x_i - w_k\|^2} p_{ik}

    >>> x, w = torch.tensor([[2.0], [5.0]]), torch.tensor([[0.0], [4.0]])
    >>> own_derivative(x, torch.tensor([0, 1]), w)
    tensor([[0.5000],
            [1.9231]])
    """
    s_BK = squared_distance(points_BD, centers_KD)
    own_BK = one_hot(target_B, len(centers_KD)).to(points_BD.dtype)
    force_BK = -EXPONENT * own_BK * log_harmax(s_BK.sqrt(), EXPONENT).exp() / s_BK
    return force_BK.sum(0)[:, None] * centers_KD - force_BK.T @ points_BD


def averages(points_BD: Tensor, target_B: Tensor, centers_KD: Tensor) -> Tensor:
    r"""The centers at a critical point as the proof gives them, with the samples of all classes (K, D).

    .. math:: \frac{\sum_i x_i / \|x_i - w_k\|^2}{\sum_i 1 / \|x_i - w_k\|^2}
    """
    return _averaged(1 / squared_distance(points_BD, centers_KD), points_BD)


def _averaged(weights_BK: Tensor, points_BD: Tensor) -> Tensor:
    return weights_BK.T @ points_BD / weights_BK.sum(0)[:, None]


def _judge_derivative(results: Results) -> Finding:
    points_BD, target_B, centers_KD = example()
    true = []
    for k in range(len(centers_KD)):
        moving, own = centers_KD.clone().requires_grad_(), target_B == k
        (found_KD,) = torch.autograd.grad(loss_of(points_BD[own], target_B[own], moving), moving)
        true.append(found_KD[k])
    apart = float((own_derivative(*example()) - torch.stack(true)).norm() / torch.stack(true).norm())
    return Finding(
        apart < MATCHES,
        f"For {len(points_BD)} drawn points of {len(true)} classes it differs from the automatic derivative by "
        f"{apart:.2g} of its length. The derivative has 1 - p in the place of -p: samples attract the center of their "
        "class, and in the formula they repel it.",
        {"apart": apart},
    )


def _judge_averages(results: Results) -> Finding:
    points_BD, target_B, centers_KD = example()
    spread = class_spread(points_BD, target_B)
    signed_KD = _averaged(pull(points_BD, target_B, centers_KD, EXPONENT), points_BD)
    written, signed = (
        float((one - centers_KD).norm(dim=1).max() / spread) for one in (averages(*example()), signed_KD)
    )
    return Finding(
        written < MATCHES,
        f"At the critical point of {len(points_BD)} drawn points it misses the farthest weight by {written:.2g} of the "
        "class's spread. With the weights ([y_i = k] - p_ik) / |x_i - w_k|^2, which are negative for the other "
        f"classes, it misses by {signed:.0e}.",
        {"apart": written, "apart_signed": signed},
    )


CLAIMS = (
    Claim(
        "derivative_of_own_class",
        "The derivative of the harmonic loss by w_k has the part - sum beta / |x_i - w_k|^2 (w_k - x_i) p_ik from the "
        "samples of class k. Compared with the automatic derivative of an example. Exact.",
        sentences=("G/37",),
        judge=_judge_derivative,
        exact=True,
    ),
    Claim(
        "formula_of_centers",
        "At a critical point each weight of the harmonic loss is the average of all training points, weighted by "
        "1 / |x_i - w_k|^2. Compared with an example; a single one contradicts it. Exact.",
        sentences=("G/39",),
        judge=_judge_averages,
        exact=True,
    ),
)
