"""What the `theory` experiment measures on a trained head: stationarity, hulls, growth."""

# B training points, K classes, D features, T recorded steps

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from harmax.functional import log_harmax, squared_distance


def pull(points: Tensor, target: Tensor, centers: Tensor, exponent: float) -> Tensor:
    r"""How strongly each point (B, D) holds each center (K, D) in the stationarity equation, (B, K).

    .. math:: a_{ik} = ([y_i = k] - p_{ik}) / s_{ik}, \qquad
        \frac{\partial \ell}{\partial w_k} = \frac{n}{B} \sum_i a_{ik} (w_k - x_i)

    Own class positive, other classes negative. 1 - p is taken from log p, so that it keeps its digits where p is close
    to 1. A point that lies on a center exerts no force there (exponent above 1), so its coefficient is set to 0.

    >>> x = torch.tensor([[0.0], [1.0], [4.0]])
    >>> pull(x, torch.tensor([0, 0, 1]), torch.tensor([[0.5], [3.0]]), 2.0).sign()
    tensor([[ 1., -1.],
            [ 1., -1.],
            [-1.,  1.]])
    """
    s_BK = squared_distance(points, centers)
    log_p_BK = log_harmax(s_BK.sqrt(), exponent)
    own_BK = torch.nn.functional.one_hot(target, len(centers)).bool()
    surplus_BK = torch.where(own_BK, -torch.expm1(log_p_BK), -log_p_BK.exp())
    return torch.where(s_BK > 0, surplus_BK / s_BK.clamp(min=torch.finfo(s_BK.dtype).tiny), 0.0)


class Stationarity(NamedTuple):
    """How well three readings of the stationary point give the centers back, in units of the classes' spread."""

    signed: float
    """Largest distance of a center from sum_i a_i x_i / sum_i a_i over all points, as the algebra gives."""
    own: float
    """The same with the other classes' (negative) terms dropped: a convex combination of members."""
    mean: float
    """Largest distance of a center from the plain mean of its class."""
    negative_mass: float
    """Sum of |a_i| over the other classes by that over the own class, mean over centers."""
    unsigned_mass: float
    """Share of the other classes if a_i were 1 / s_ik, without p and without a sign, as the paper's proof has it."""


def stationarity(points: Tensor, target: Tensor, centers: Tensor, exponent: float) -> Stationarity:
    """Measure the three readings for a harmonic head: points (B, D), target (B,), centers (K, D)."""
    a_BK = pull(points, target, centers, exponent)
    own_BK = torch.nn.functional.one_hot(target, len(centers)).to(a_BK.dtype)
    a_own_BK = a_BK * own_BK
    spread = class_spread(points, target)

    def farthest(weights_BK: Tensor) -> float:
        combined_KD = weights_BK.T @ points / weights_BK.sum(0)[:, None]
        return float((centers - combined_KD).norm(dim=1).max() / spread)

    masses = (a_BK - a_own_BK).abs().sum(0) / a_own_BK.sum(0)
    inverse_BK = 1 / squared_distance(points, centers)
    shares = ((1 - own_BK) * inverse_BK).sum(0) / inverse_BK.sum(0)
    return Stationarity(
        farthest(a_BK), farthest(a_own_BK), farthest(own_BK), float(masses.mean()), float(shares.mean())
    )


def class_spread(points: Tensor, target: Tensor) -> float:
    """Return the root mean square distance of the points from their class's mean."""
    own_BK = torch.nn.functional.one_hot(target).to(points.dtype)
    means_KD = own_BK.T @ points / own_BK.sum(0)[:, None]
    return float((points - means_KD[target]).square().sum(1).mean().sqrt())


def hull_distance(members: Tensor, point: Tensor, iterations: int = 500) -> float:
    r"""Distance of a point (D,) to the hull of members (P, D), certified from below; 0 if it may as well be inside.

    Accelerated projected gradient finds convex weights, hence a point h of the hull near it. The plane across
    r = point - h then separates the point from every member by

    .. math:: (r \cdot point - \max_i r \cdot x_i) / \|r\|,

    which no point of the hull can beat, however far from the optimum the weights are.

    >>> square = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    >>> round(hull_distance(square, torch.tensor([3.0, 0.5], dtype=torch.float64)), 6)
    2.0
    >>> hull_distance(square, torch.tensor([0.3, 0.5], dtype=torch.float64))
    0.0
    """
    shifted = members - point
    gram = shifted @ shifted.T
    rate = 1 / torch.linalg.matrix_norm(gram, 2)
    weights = ahead = members.new_full((len(members),), 1 / len(members))
    for iteration in range(iterations):
        before, weights = weights, onto_simplex(ahead - rate * (gram @ ahead))
        ahead = weights + iteration / (iteration + 3) * (weights - before)
    residual = -(weights @ shifted)
    length = residual.norm()
    # Next to the hull the certificate is rounding noise.
    if length <= 1e-9 * shifted.norm(dim=1).max():
        return 0.0
    return max(0.0, float(-(shifted @ residual).max() / length))


def onto_simplex(vector: Tensor) -> Tensor:
    """Return the nearest vector of non-negative entries that sum to 1.

    >>> onto_simplex(torch.tensor([0.5, 1.5, -3.0]))
    tensor([0., 1., 0.])
    """
    ordered = vector.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(vector) + 1)
    kept = int((ordered > excess).sum())
    return (vector - excess[kept - 1]).clamp(min=0)


class Growth(NamedTuple):
    """How a norm goes on over steps."""

    slope: float
    """Increase per tenfold steps, least squares over the last two decades."""
    straightness: float
    """R^2 of that straight line against the logarithm of the step; NaN for a constant."""
    late: float
    """Relative growth over the last decade."""


def growth(step: np.ndarray, norm: np.ndarray) -> Growth:
    """Fit norm = a + b log10(step) over the last two decades.

    >>> growth(np.array([1, 10, 100, 1000]), np.array([1.0, 2.0, 4.0, 6.0]))
    Growth(slope=2.0, straightness=1.0, late=0.5)
    """
    recent = step >= step[-1] / 100
    decades = np.log10(step[recent])
    slope, start = np.polyfit(decades, norm[recent], 1)
    scatter = np.square(norm[recent] - norm[recent].mean()).sum()
    left = np.square(norm[recent] - start - slope * decades).sum()
    straightness = 1 - left / scatter if scatter > 0 else np.nan
    late = norm[-1] / norm[np.searchsorted(step, step[-1] / 10)] - 1
    return Growth(round(float(slope), 12), round(float(straightness), 12), float(late))
