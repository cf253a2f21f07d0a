"""Losses on angles: cosine softmax, and margins at the true class, whose logit alone differs in training."""

# B rows, V classes, D features

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from harmax.heads.family import wide
from harmax.heads.harmonic import safe_sqrt
from harmax_lab.losses.base import LossHead, RivalHead, is_target, positive, products, rows_of, unit


class NormFaceHead(RivalHead):
    r"""Cosine softmax.

    .. math:: z_j = s \cos\theta_j, \qquad \cos\theta_j = \hat w_j \cdot \hat x

    Hats are unit vectors. F. Wang, Xiang, Cheng and Yuille, "NormFace: L2 hypersphere embedding for face verification"
    (2017), section 3: softmax of normalized features and weights, times a scale. The scale is fixed, as pytorch-metric-
    learning's `NormalizedSoftmaxLoss` has it, with the same default of 20 (its temperature 0.05).

    Args:
        scale: s.
    """

    settings: ClassVar[tuple[str, ...]] = ("scale",)

    def __init__(self, in_features: int, out_features: int, *, scale: float = 20.0, **options: Any) -> None:
        super().__init__(in_features, out_features, **options)
        self.scale = positive("scale", scale)

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        x, w_VD = wide(input, self.weight)
        return self.scale * products(unit(x), unit(w_VD))


class CosFaceHead(LossHead, NormFaceHead):
    r"""Cosine softmax with a margin taken off the true class's cosine.

    .. math:: z_j = s (\cos\theta_j - m [j = c])

    H. Wang et al., "CosFace: large margin cosine loss for deep face recognition" (2018), equation 4. Prediction is
    without the margin.

    Args:
        scale: s.
        margin: m, from 0 to 2.
    """

    settings = ("scale", "margin")

    def __init__(
        self, in_features: int, out_features: int, *, scale: float = 64.0, margin: float = 0.35, **options: Any
    ) -> None:
        super().__init__(in_features, out_features, scale=scale, **options)
        self.margin = positive("margin", margin, least=0)

    def training_logits(self, features: Tensor, target: Tensor, step: Tensor | None = None) -> Tensor:
        """Logits with the margin, (B, V)."""
        z_BV = self(features)
        return z_BV - self.scale * self.margin * is_target(target, self.out_features).to(z_BV.dtype)


class ArcFaceHead(CosFaceHead):
    r"""Cosine softmax with a margin added to the true class's angle.

    .. math:: z_c = s \cos(\theta_c + m), \qquad z_j = s \cos\theta_j \quad (j \ne c)

    Deng, Guo, Xue and Zafeiriou, "ArcFace: additive angular margin loss for deep face recognition" (2019), equation 3.
    Where angle and margin together pass 180 degrees, the cosine would rise again; the logit there is s (cos - m sin m),
    as in the authors' code and in pytorch-metric-learning.

    Args:
        scale: s.
        margin: m, in radians, below pi.
    """

    def __init__(self, in_features: int, out_features: int, *, margin: float = 0.5, **options: Any) -> None:
        super().__init__(in_features, out_features, margin=margin, **options)
        if margin >= math.pi:
            raise ValueError(f"`margin` must be an angle in radians below pi, got {margin}; the published one is 0.5.")

    def training_logits(self, features: Tensor, target: Tensor, step: Tensor | None = None) -> Tensor:
        """Logits with the margin, (B, V)."""
        x_BD, w_VD = (unit(tensor) for tensor in wide(features, self.weight))
        z_BV = self.scale * products(x_BD, w_VD)
        own_BD = rows_of(w_VD, target)
        cos_B = (x_BD * own_BD).sum(-1)
        # The length of what is not along w, instead of sqrt(1 - cos^2): right for small angles, with a finite gradient.
        sin_B = safe_sqrt((x_BD - cos_B[..., None] * own_BD).square().sum(-1))
        turned_B = cos_B * math.cos(self.margin) - sin_B * math.sin(self.margin)
        beyond_B = cos_B - self.margin * math.sin(self.margin)
        own_B = torch.where(cos_B >= math.cos(math.pi - self.margin), turned_B, beyond_B)
        return torch.where(is_target(target, self.out_features), self.scale * own_B[..., None], z_BV)


class LargeMarginHead(LossHead):
    r"""Large-margin softmax: the true class's angle counts several times.

    .. math:: z_c = \|w_c\| \|x\| \frac{\lambda \cos\theta_c + \psi(\theta_c)}{1 + \lambda}, \qquad
        \psi(\theta) = (-1)^k \cos(m \theta) - 2 k \quad (k \pi / m \le \theta \le (k + 1) \pi / m)

    and z_j = w_j . x otherwise. W. Liu, Wen, Yu and Yang, "Large-margin softmax loss for convolutional neural networks"
    (2016), equations 4 and 6. Lambda, of its section on experiments, falls with the number t of updates as in the
    authors' code, max(least, base (1 + rate t)^-power), with that code's values. It needs some 20,000 steps to reach
    1e-3; use a larger rate for shorter trainings, or base 0 for no annealing.

    Args:
        margin: m, a whole number; 1 is the standard softmax.
        annealing_base, annealing_rate, annealing_power, annealing_least: of lambda.
    """

    settings = ("margin", "annealing_base", "annealing_rate", "annealing_power", "annealing_least")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        margin: int = 4,
        annealing_base: float = 1000.0,
        annealing_rate: float = 2.5e-5,
        annealing_power: float = 35.0,
        annealing_least: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(in_features, out_features, **options)
        if not (isinstance(margin, int | float) and margin >= 1 and margin == int(margin)):
            raise ValueError(f"`margin` must be a whole number of at least 1, got {margin!r}; 2 to 4 are published.")
        self.margin = int(margin)
        self.annealing_base = positive("annealing_base", annealing_base, least=0)
        self.annealing_rate = positive("annealing_rate", annealing_rate, least=0)
        self.annealing_power = positive("annealing_power", annealing_power, least=0)
        self.annealing_least = positive("annealing_least", annealing_least, least=0)

    def training_logits(self, features: Tensor, target: Tensor, step: Tensor | None = None) -> Tensor:
        """Logits with the margin, (B, V)."""
        x_BD, w_VD = wide(features, self.weight)
        z_BV = products(x_BD, w_VD)
        own_BD = rows_of(w_VD, target)
        cos_B = (unit(x_BD) * unit(own_BD)).sum(-1)
        length_B = safe_sqrt(x_BD.square().sum(-1)) * safe_sqrt(own_BD.square().sum(-1))
        share = self._softmax_share(step)
        own_B = length_B * (share * cos_B + (1 - share) * self._psi(cos_B))
        return torch.where(is_target(target, self.out_features), own_B[..., None], z_BV)

    def _softmax_share(self, step: Tensor | None) -> Tensor | float:
        """Return lambda / (1 + lambda)."""
        if step is None:
            return self.annealing_least / (1 + self.annealing_least)
        annealed = self.annealing_base * (1 + self.annealing_rate * step) ** -self.annealing_power
        smoothed = annealed.clamp(min=self.annealing_least)
        return smoothed / (1 + smoothed)

    def _psi(self, cos_B: Tensor) -> Tensor:
        # cos(m theta) as a polynomial of the cosine (Chebyshev's), and k by comparing cosines: no angle is needed.
        before_B, multiple_B = torch.ones_like(cos_B), cos_B
        for _ in range(self.margin - 1):
            before_B, multiple_B = multiple_B, 2 * cos_B * multiple_B - before_B
        k_B = torch.zeros_like(cos_B)
        for place in range(1, self.margin):
            k_B = k_B + (cos_B < math.cos(place * math.pi / self.margin)).to(cos_B.dtype)
        return (1 - 2 * (k_B % 2)) * multiple_B - 2 * k_B
