"""Relatives of the harmonic head: other distances under HarMax, other normalizers over the distance.

Each is a module with `weight` (V, D) and a forward from (..., D) to logits (..., V), float32 for half-precision inputs.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from harmax.functional import harmonic_logits, squared_distance
from harmax.heads.harmonic import HarmonicHead, safe_sqrt
from harmax.kernels.eager import above_floor, logits
from harmax.kernels.operators import without_autocast


def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Bring tensors to one dtype, float32 at least."""
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
    return tuple(tensor.to(dtype) for tensor in tensors)


class LinearHead(nn.Linear):
    r"""The standard head: inner product and softmax.

    .. math:: z_j = w_j \cdot x

    An `nn.Linear`, without bias unless asked for. `exponent` and `softening` are accepted, so that every head is built
    alike, and mean nothing here.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        exponent: float | None = None,
        softening: float = 0.0,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        dtype = torch.promote_types(input.dtype, self.weight.dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        return wide(nn.functional.linear(input.to(dtype), self.weight.to(dtype), bias))[0]


class EuclideanHead(HarmonicHead):
    r"""L2 distance under softmax, one half of the paper's ablation.

    .. math:: z_j = -\|x - w_j\|

    The plain distance, not its square: the square is `GaussianHead`, which is a linear head in disguise. The exponent
    means nothing here.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        return -self.distance(input)


class DotHarmaxHead(HarmonicHead):
    r"""Inner product under HarMax, the other half of the paper's ablation.

    .. math:: z_j = -\tfrac{n}{2} \log((w_j \cdot x)^2 + a)

    HarMax takes distances, and an inner product may be negative. We put |w_j . x| in the distance's place: the only
    reading that keeps p_j = d_j^-n / sum d^-n with a positive d and no further constant. The most probable class is the
    one whose weight is closest to *orthogonal* to x; as under HarMax it should, the scale of x does not matter.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        x, w = wide(input, self.weight)
        with without_autocast(x.device):
            dot = nn.functional.linear(x, w)
        return logits(above_floor(dot.square()) + self.softening, self.exponent)


class StudentTHead(HarmonicHead):
    r"""A harmonic head with softening 1 unless told otherwise: Student's t kernel, heavy-tailed but flat at its center.

    .. math:: z_j = -\tfrac{n}{2} \log(\|x - w_j\|^2 + a), \qquad a > 0

    a = 1 and n = 2 is the kernel of t-SNE.
    """

    def __init__(self, in_features: int, out_features: int, *, softening: float = 1.0, **options: Any) -> None:
        if softening == 0:
            raise ValueError("`softening` must be positive for a Student-t head, got 0; that is HarmonicHead.")
        super().__init__(in_features, out_features, softening=softening, **options)


class GaussianHead(HarmonicHead):
    r"""Squared distance under softmax: equal Gaussians around the centers.

    .. math:: z_j = -\tfrac{b}{2} \|x - w_j\|^2

    Exactly a linear head with weights b w_j and bias -b |w_j|^2 / 2, since the |x|^2 term cancels in the softmax. It is
    the limit of the Student-t kernel for n and a growing with n / a = b. The exponent means nothing here.

    Args:
        precision: b, above 0.
    """

    def __init__(self, in_features: int, out_features: int, *, precision: float = 1.0, **options: Any) -> None:
        if not 0 < precision < math.inf:
            raise ValueError(f"`precision` must be above 0 and finite, got {precision}; it is one over the variance.")
        super().__init__(in_features, out_features, **options)
        self.precision = float(precision)

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        return -0.5 * self.precision * squared_distance(input, self.weight)


class CosineHarmaxHead(HarmonicHead):
    r"""The harmonic head on the unit sphere.

    .. math:: z_j = -\tfrac{n}{2} \log(\|\hat x - \hat w_j\|^2 + a), \qquad \|\hat x - \hat w_j\|^2 = 2 (1 - \cos)

    Hats are unit vectors. Taken as a distance, not as 1 - cos, which loses small angles.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        x, w = (nn.functional.normalize(tensor, dim=-1) for tensor in wide(input, self.weight))
        return harmonic_logits(x, w, exponent=self.exponent, softening=self.softening)


class MinkowskiHead(HarmonicHead):
    r"""HarMax over the Minkowski distance of order p.

    .. math:: z_j = -\tfrac{n}{2} \log(d_j^2 + a), \qquad d_j = \Big(\sum_k |x_k - w_{jk}|^p\Big)^{1/p}

    Args:
        order: p, at least 1. 1 is the city-block distance, 2 the Euclidean, inf the largest coordinate.
    """

    def __init__(self, in_features: int, out_features: int, *, order: float = 1.0, **options: Any) -> None:
        if not order >= 1:
            raise ValueError(f"`order` must be at least 1, got {order}; below 1 it is no distance.")
        super().__init__(in_features, out_features, **options)
        self.order = float(order)

    def distance(self, input: Tensor) -> Tensor:
        """Minkowski distance to every center, (..., V)."""
        x, w = wide(input, self.weight)
        # torch.cdist never forms (B, V, D); this mode subtracts, so it is exact near a center for p = 2 as well.
        mode = "donot_use_mm_for_euclid_dist"
        d_BV = torch.cdist(x.reshape(-1, self.in_features), w, p=self.order, compute_mode=mode)
        return d_BV.reshape(*input.shape[:-1], self.out_features)

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        return logits(above_floor(self.distance(input).square()) + self.softening, self.exponent)


class DiagonalMahalanobisHead(HarmonicHead):
    r"""A harmonic head that learns how much each feature counts.

    .. math:: z_j = -\tfrac{n}{2} \log\Big(\sum_k e^{2 \lambda_k} (x_k - w_{jk})^2 + a\Big)

    lambda (`log_scale`, D numbers in the state_dict) starts at 0, which is the harmonic head.
    """

    def __init__(self, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__(in_features, out_features, **options)
        self.log_scale = nn.Parameter(torch.empty_like(self.weight[0]))
        self.reset_extras()

    def reset_extras(self) -> None:
        """Let every feature count alike."""
        if "log_scale" in self._parameters:
            nn.init.zeros_(self.log_scale)

    def distance(self, input: Tensor) -> Tensor:
        """Mahalanobis distance to every center, (..., V)."""
        return safe_sqrt(squared_distance(*self._scaled(input)))

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        return harmonic_logits(*self._scaled(input), exponent=self.exponent, softening=self.softening)

    def _scaled(self, input: Tensor) -> tuple[Tensor, Tensor]:
        x, w, log_scale_D = wide(input, self.weight, self.log_scale)
        return x * log_scale_D.exp(), w * log_scale_D.exp()


class FullMahalanobisHead(HarmonicHead):
    r"""A harmonic head that learns a metric.

    .. math:: z_j = -\tfrac{n}{2} \log\big((x - w_j)^\top L L^\top (x - w_j) + a\big)

    L (`metric`, D x D in the state_dict, its lower triangle used) starts as the identity, which is the harmonic head.
    """

    def __init__(self, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__(in_features, out_features, **options)
        self.metric = nn.Parameter(self.weight.new_empty(in_features, in_features))
        self.reset_extras()

    def reset_extras(self) -> None:
        """Start from the Euclidean distance."""
        if "metric" in self._parameters:
            nn.init.eye_(self.metric)

    def distance(self, input: Tensor) -> Tensor:
        """Mahalanobis distance to every center, (..., V)."""
        return safe_sqrt(squared_distance(*self._mapped(input)))

    def forward(self, input: Tensor) -> Tensor:
        """Logits z, (..., V)."""
        return harmonic_logits(*self._mapped(input), exponent=self.exponent, softening=self.softening)

    def _mapped(self, input: Tensor) -> tuple[Tensor, Tensor]:
        x, w, metric_DD = wide(input, self.weight, self.metric)
        with without_autocast(x.device):
            return x @ metric_DD.tril(), w @ metric_DD.tril()
