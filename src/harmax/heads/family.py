"""Relatives of the harmonic head: other distances under HarMax, other normalizers of the distance.

Each head is a module with `weight` (V, D). Its forward maps (..., D) to logits (..., V), which are float32 for
half-precision inputs. A head takes only the arguments that its formula uses.
"""

# B rows, D features, V classes

import functools
import math
from typing import Unpack

import torch
from torch import Tensor, nn

from harmax.functional import harmonic_logits, squared_distance
from harmax.heads.centers import CenterHead, CenterOptions, safe_sqrt
from harmax.kernels.eager import above_floor, logits
from harmax.kernels.operators import without_autocast


def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors in one dtype, float32 or float64."""
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
    return tuple(tensor.to(dtype) for tensor in tensors)


class LinearHead(nn.Linear):
    r"""The standard head: inner product and softmax.

    .. math:: z_j = w_j \cdot x

    An `nn.Linear` whose bias is off by default.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Return logits z, (..., V)."""
        dtype = torch.promote_types(input.dtype, self.weight.dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        return wide(nn.functional.linear(input.to(dtype), self.weight.to(dtype), bias))[0]


class EuclideanHead(CenterHead):
    r"""L2 distance under softmax, one half of the paper's ablation.

    .. math:: z_j = -\|x - w_j\|

    It takes the distance itself. With the squared distance it would be `GaussianHead`, which is a linear head in
    disguise. There is no exponent and no softening.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Return logits z, (..., V)."""
        return -self.distance(input)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


class DotHarmaxHead(CenterHead):
    r"""Inner product under HarMax, the other half of the paper's ablation.

    .. math:: z_j = -\tfrac{n}{2} \log((w_j \cdot x)^2 + a)

    HarMax takes distances, but an inner product may be negative. So |w_j . x| replaces the distance. No other choice
    keeps p_j = d_j^-n / sum d^-n with a positive d and without a further constant. The most probable class is the one
    whose weight is closest to *orthogonal* to x. As always under HarMax, the scale of x does not matter.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return logits z, (..., V)."""
        x, w = wide(input, self.weight)
        with without_autocast(x.device):
            dot = nn.functional.linear(x, w)
        return logits(above_floor(dot.square()) + self.softening, self.exponent)


class StudentTHead(CenterHead):
    r"""A harmonic head with softening, 1 by default: Student's t kernel, with heavy tails and a flat center.

    .. math:: z_j = -\tfrac{n}{2} \log(\|x - w_j\|^2 + a), \qquad a > 0

    a = 1 and n = 2 is the kernel of t-SNE.
    """

    def __init__(self, in_features: int, out_features: int, **options: Unpack[CenterOptions]) -> None:
        if options.setdefault("softening", 1.0) == 0:
            raise ValueError(
                "`softening` must be positive for a Student-t head, got 0; use HarmonicHead for a softening of 0."
            )
        super().__init__(in_features, out_features, **options)


class GaussianHead(EuclideanHead):
    r"""Squared distance under softmax: equal Gaussians around the centers.

    .. math:: z_j = -\tfrac{b}{2} \|x - w_j\|^2

    This is exactly a linear head with weights b w_j and bias -b |w_j|^2 / 2, because |x|^2 cancels in the softmax. It
    is the limit of the Student-t kernel when n and a grow with n / a = b. There is no exponent and no softening.

    Args:
        precision: b, above 0.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        precision: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not 0 < precision < math.inf:
            raise ValueError(f"`precision` must be above 0 and finite, got {precision}; pass one over the variance.")
        super().__init__(in_features, out_features, device=device, dtype=dtype)
        self.precision = float(precision)

    def forward(self, input: Tensor) -> Tensor:
        """Return logits z, (..., V)."""
        return -0.5 * self.precision * squared_distance(input, self.weight)

    def extra_repr(self) -> str:
        """Return the sizes and the precision."""
        return f"{super().extra_repr()}, precision={self.precision:g}"


class CosineHarmaxHead(CenterHead):
    r"""The harmonic head on the unit sphere.

    .. math:: z_j = -\tfrac{n}{2} \log(\|\hat x - \hat w_j\|^2 + a), \qquad \|\hat x - \hat w_j\|^2 = 2 (1 - \cos)

    Hats are unit vectors. The code subtracts these vectors, because 1 - cos would lose small angles.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return logits z, (..., V)."""
        x, w = (nn.functional.normalize(tensor, dim=-1) for tensor in wide(input, self.weight))
        return harmonic_logits(x, w, exponent=self.exponent, softening=self.softening)


class MinkowskiHead(CenterHead):
    r"""HarMax over the Minkowski distance of order p.

    .. math:: z_j = -\tfrac{n}{2} \log(d_j^2 + a), \qquad d_j = \Big(\sum_k |x_k - w_{jk}|^p\Big)^{1/p}

    Args:
        order: p, at least 1. 1 is the city-block distance, 2 the Euclidean, inf the largest coordinate.
    """

    def __init__(
        self, in_features: int, out_features: int, *, order: float = 1.0, **options: Unpack[CenterOptions]
    ) -> None:
        if not order >= 1:
            raise ValueError(
                f"`order` must be at least 1, got {order}; orders below 1 give no distance, so pass 1 or more."
            )
        super().__init__(in_features, out_features, **options)
        self.order = float(order)

    def distance(self, input: Tensor) -> Tensor:
        """Return the Minkowski distance to every center, (..., V)."""
        x, w = wide(input, self.weight)
        # torch.cdist never forms (B, V, D). This mode subtracts, so p = 2 is exact near a center too.
        mode = "donot_use_mm_for_euclid_dist"
        d_BV = torch.cdist(x.reshape(-1, self.in_features), w, p=self.order, compute_mode=mode)
        return d_BV.reshape(*input.shape[:-1], self.out_features)

    def forward(self, input: Tensor) -> Tensor:
        """Return logits z, (..., V)."""
        return logits(above_floor(self.distance(input).square()) + self.softening, self.exponent)


class _MappedHead(CenterHead):
    """A harmonic head that maps vectors and centers linearly before it measures their distance."""

    def distance(self, input: Tensor) -> Tensor:
        """Return the Mahalanobis distance to every center, (..., V)."""
        return safe_sqrt(squared_distance(*self._mapped(input)))

    def forward(self, input: Tensor) -> Tensor:
        """Return logits z, (..., V)."""
        return harmonic_logits(*self._mapped(input), exponent=self.exponent, softening=self.softening)

    def _mapped(self, input: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class DiagonalMahalanobisHead(_MappedHead):
    r"""A harmonic head that learns a weight per feature.

    .. math:: z_j = -\tfrac{n}{2} \log\Big(\sum_k e^{2 \lambda_k} (x_k - w_{jk})^2 + a\Big)

    lambda (`log_scale`, D numbers in the state_dict) starts at 0, where the head equals the harmonic head.
    """

    def __init__(self, in_features: int, out_features: int, **options: Unpack[CenterOptions]) -> None:
        super().__init__(in_features, out_features, **options)
        self.log_scale = nn.Parameter(torch.empty_like(self.weight[0]))
        self.reset_extras()

    def reset_extras(self) -> None:
        """Give every feature the same weight."""
        nn.init.zeros_(self.log_scale)

    def _mapped(self, input: Tensor) -> tuple[Tensor, Tensor]:
        x, w, log_scale_D = wide(input, self.weight, self.log_scale)
        return x * log_scale_D.exp(), w * log_scale_D.exp()


class FullMahalanobisHead(_MappedHead):
    r"""A harmonic head that learns a metric.

    .. math:: z_j = -\tfrac{n}{2} \log\big((x - w_j)^\top L L^\top (x - w_j) + a\big)

    L (`metric`, D x D in the state_dict, of which the lower triangle is used) starts as the identity, where the head
    equals the harmonic head.
    """

    def __init__(self, in_features: int, out_features: int, **options: Unpack[CenterOptions]) -> None:
        super().__init__(in_features, out_features, **options)
        self.metric = nn.Parameter(self.weight.new_empty(in_features, in_features))
        self.reset_extras()

    def reset_extras(self) -> None:
        """Start from the Euclidean distance."""
        nn.init.eye_(self.metric)

    def _mapped(self, input: Tensor) -> tuple[Tensor, Tensor]:
        x, w, metric_DD = wide(input, self.weight, self.metric)
        with without_autocast(x.device):
            return x @ metric_DD.tril(), w @ metric_DD.tril()
