"""Losses that replace the exponential of the softmax, or the inner product under it."""

# B rows, V classes, D features

import math
from typing import Any

import torch
from torch import Tensor, nn

from harmax.functional import squared_distance
from harmax.heads.family import wide
from harmax.heads.harmonic import safe_sqrt
from harmax_lab.losses.base import LossHead, RivalHead, positive, unit


class SphericalHead(RivalHead):
    r"""Spherical softmax: probabilities in proportion to squares.

    .. math:: z_j = \log(o_j^2 + \epsilon), \qquad o_j = w_j \cdot x

    so that softmax(z) is (o^2 + epsilon) / sum (o^2 + epsilon). De Brebisson and Vincent, "An exploration of softmax
    alternatives belonging to the spherical loss family" (2016), log-spherical softmax. The paper leaves epsilon to be
    tuned; the harmonic-loss authors' code has 1e-4, there after dividing the vector o by its length.

    Args:
        epsilon: above 0.
        bias: whether to add one to o.
    """

    takes_bias = True
    settings = ("epsilon",)

    def __init__(self, in_features: int, out_features: int, *, epsilon: float = 1e-4, **options: Any) -> None:
        super().__init__(in_features, out_features, **options)
        self.epsilon = positive("epsilon", epsilon)

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        o = super().forward(input)
        # Not log(o^2 + epsilon), whose square overflows long before o does.
        return 2 * torch.hypot(o, torch.full_like(o, math.sqrt(self.epsilon))).log()


class StableMaxHead(RivalHead):
    r"""StableMax: a normalizer that grows linearly where the softmax grows exponentially.

    .. math:: z_j = \log s(o_j), \qquad s(o) = 1 + o \; (o \ge 0), \; \frac{1}{1 - o} \; (o < 0), \qquad
        o_j = w_j \cdot x

    Prieto, Barsbey, Mediano and Birdal, "Grokking at the edge of numerical stability" (2025), the definition of
    StableMax. In logarithms it is sign(o) log(1 + abs(o)).

    Args:
        bias: whether to add one to o.
    """

    takes_bias = True

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        o = super().forward(input)
        return o.clamp(min=0).log1p() - (-o).clamp(min=0).log1p()


class IsoMaxPlusHead(LossHead):
    r"""IsoMax+: distances on the unit sphere, scaled up in training only.

    .. math:: z_j = -|d| \, \|\hat x - \hat w_j\|, \qquad \text{training logits } E z_j

    d (`distance_scale`) is learned and starts at 1. Macedo and Ludermir, "Enhanced isotropy maximization loss" (2021),
    the IsoMax+ loss, with its entropic scale E = 10, which prediction leaves out.

    Args:
        entropic_scale: E.
    """

    settings = ("entropic_scale",)

    def __init__(self, in_features: int, out_features: int, *, entropic_scale: float = 10.0, **options: Any) -> None:
        super().__init__(in_features, out_features, **options)
        self.entropic_scale = positive("entropic_scale", entropic_scale)
        self.distance_scale = nn.Parameter(self.weight.new_ones(()))

    def reset_parameters(self) -> None:
        """Draw the weight as `nn.Linear` does, and start from distances as they are."""
        super().reset_parameters()
        if "distance_scale" in self._parameters:  # nn.Linear draws its weight before there is one
            nn.init.ones_(self.distance_scale)

    def distance(self, input: Tensor) -> Tensor:
        """Scaled distance of directions to every prototype's direction, (..., V)."""
        x, w_VD, scale = wide(input, self.weight, self.distance_scale)
        return scale.abs() * safe_sqrt(squared_distance(unit(x), unit(w_VD)))

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        return -self.distance(input)

    def training_logits(self, features: Tensor, target: Tensor, step: Tensor | None = None) -> Tensor:
        """Logits times the entropic scale, (B, V), without what all of a row share."""
        return -self.entropic_scale * self.distance(features)


class DisMaxHead(IsoMaxPlusHead):
    r"""DisMax: each logit counts the distances to all prototypes.

    .. math:: z_j = -\Big(D_j + \frac{1}{V} \sum_k D_k\Big), \qquad D_j = |d| \, \|\hat x - \hat w_j\| / \sqrt 2

    Macedo, Zanchettin and Ludermir, "Distinction maximization loss" (2022), enhanced logits, with the square root of 2
    of the authors' code. Their fractional probability regularization, which cuts four *images* into one, is left out:
    it has no meaning for tokens, and their code has a variant without it too. A term that all logits of a row share
    cancels in the softmax, so this head **trains as IsoMax+ does with an entropic scale of 10 / sqrt(2)**. It differs
    in scores that look at the logits themselves, such as those for outliers.
    """

    def distance(self, input: Tensor) -> Tensor:
        """Scaled distance of directions to every prototype's direction, (..., V)."""
        return super().distance(input) / math.sqrt(2)

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        d = self.distance(input)
        return -(d + d.mean(-1, keepdim=True))
