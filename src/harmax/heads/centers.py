"""What all heads of class centers share: the weight, its start, and the distance to it."""

# B rows, D features, V classes

import math
from typing import Any, Self, TypedDict

import torch
from torch import Tensor, nn

from harmax.checks import is_quantized
from harmax.functional import check_softening, harmonic_logits, resolve_exponent, squared_distance
from harmax.sharding import is_distributed


class CenterOptions(TypedDict, total=False):
    """Keyword arguments of `CenterHead`, for heads that pass them on."""

    exponent: float | None
    softening: float
    device: torch.device | str | None
    dtype: torch.dtype | None


def numbers_of(weight: Tensor) -> Tensor:
    """Return centers as ordinary numbers, also where a quantizer stores them in its own way."""
    return weight.dequantize() if is_quantized(weight) else weight


def safe_sqrt(s: Tensor) -> Tensor:
    """Return the square root, with a gradient of 0 at 0: no direction in which the distance grows is preferred."""
    zero = s == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, s).sqrt())


class CenterHead(nn.Module):
    r"""The layer of the paper: logits whose softmax is HarMax, from features as they are.

    .. math:: z_j = -\tfrac{n}{2} \log(\|x - w_j\|^2 + a), \qquad \mathrm{softmax}(z)_j \propto \|x - w_j\|^{-n}

    `HarmonicHead` is this layer with what training a large model needs. The small models of the paper and the relatives
    of the harmonic head are built on this one.

    Args:
        in_features: D.
        out_features: V, the number of classes.
        exponent: n, the power of the distance; None means sqrt(D). `repr` shows the number.
        softening: a, added to the squared distance.

    Shape: (..., D) to (..., V). Logits are float32 for half-precision inputs.

    >>> CenterHead(16, 3)
    CenterHead(in_features=16, out_features=3, exponent=4, softening=0)
    """

    weight: nn.Parameter
    exponent: float | Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        exponent: float | None = None,
        softening: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1:
            raise ValueError(
                f"`in_features` and `out_features` must be at least 1, got {in_features} and {out_features}; "
                "give the width of the input and the number of classes."
            )
        self.in_features, self.out_features = in_features, out_features
        self.softening = check_softening(softening)
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self._draw_centers()
        self._keep_exponent(resolve_exponent(exponent, in_features))

    def _keep_exponent(self, exponent: float | Tensor) -> None:
        self.exponent = exponent

    @classmethod
    def from_linear(cls, linear: nn.Linear, exponent: float | None = None, **options: Any) -> Self:
        """Return a head that shares the weight of a Linear without bias.

        Args:
            linear: the layer whose rows become centers.
            exponent: as for the head; None means its default.
            options: further arguments of the head.
        """
        if linear.bias is not None:
            raise ValueError(
                f"`linear` must have no bias, because {cls.__name__} has only centers, got one; train it with "
                "bias=False, or drop the bias first (linear.bias = None)."
            )
        return cls._on_weight_of(linear, exponent, **options)

    @classmethod
    def _on_weight_of(cls, linear: nn.Linear, exponent: float | None, **options: Any) -> Self:
        if not isinstance(linear.weight, nn.Parameter):
            raise TypeError(
                "`linear` must hold its weight as a parameter, got a parametrized weight; "
                "remove the parametrization first (torch.nn.utils.parametrize.remove_parametrizations)."
            )
        # On the meta device a weight costs neither memory nor random numbers. It is replaced below.
        weight = linear.weight
        if exponent is not None:
            options["exponent"] = exponent
        head = cls(linear.in_features, linear.out_features, device="meta", dtype=weight.dtype, **options)
        head.weight = weight
        if not weight.is_meta:
            for name, tensor in list(head.named_parameters()):
                if tensor.is_meta:
                    setattr(head, name, nn.Parameter(torch.empty_like(tensor, device=weight.device)))
            for name, buffer in list(head.named_buffers()):
                setattr(head, name, torch.empty_like(buffer, device=weight.device))
        head.reset_extras()
        return head.train(linear.training)

    def _draw_centers(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # as nn.Linear: U(-1/sqrt(D), 1/sqrt(D))

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw new centers, as `nn.Linear` does or from N(0, std^2), and reset everything else."""
        if std is None:
            self._draw_centers()
        else:
            nn.init.normal_(self.weight, std=std)
        self.reset_extras()

    def reset_extras(self) -> None:
        """Set everything but the centers to its start; here there is nothing else."""

    @torch.no_grad()
    def init_from_class_means(self, features: Tensor, target: Tensor) -> None:
        """Move each center to the mean of its class; a class without features keeps its center.

        Args:
            features: inputs of the head, (..., D).
            target: class indices, (...), int64.

        >>> head = CenterHead(2, 2)
        >>> head.init_from_class_means(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0, 1]))
        >>> head.centers
        tensor([[2., 0.],
                [0., 5.]])
        """
        if is_distributed(self.weight):  # ranks may have other features, and would disagree on the means
            raise TypeError(
                "the weight of a head must be whole to start from class means, got a DTensor; call "
                "init_from_class_means before parallelize_module or fully_shard."
            )
        if target.dtype != torch.int64:
            raise TypeError(f"`target` must hold class indices as int64, got {target.dtype}; convert it with .long().")
        if features.shape[:-1] != target.shape or features.shape[-1] != self.in_features:
            raise ValueError(
                f"`features` must have shape {(*target.shape, self.in_features)} to match `target`, "
                f"got {tuple(features.shape)}; give one feature vector per class index."
            )
        x_BD, y_B = features.reshape(-1, self.in_features).double(), target.reshape(-1)
        if y_B.numel() and not 0 <= int(y_B.min()) <= int(y_B.max()) < self.out_features:
            raise ValueError(
                f"`target` must hold class indices from 0 to {self.out_features - 1}, got {int(y_B.min())} to "
                f"{int(y_B.max())}; leave out the rows to ignore."
            )
        count_V = torch.bincount(y_B, minlength=self.out_features)
        sum_VD = x_BD.new_zeros(self.weight.shape).index_add_(0, y_B, x_BD)
        seen_V = count_V > 0
        self.weight[seen_V] = (sum_VD[seen_V] / count_V[seen_V, None]).to(self.weight.dtype)

    @property
    def centers(self) -> Tensor:
        """The class centers, (V, D), without gradient."""
        return self.weight.detach()

    def forward(self, input: Tensor) -> Tensor:
        """Return logits z, (..., V)."""
        return harmonic_logits(input, self.weight, exponent=self.exponent, softening=self.softening)

    def distance(self, input: Tensor) -> Tensor:
        """Return the distance to every center, (..., V). Its gradient is finite everywhere, and 0 at a center."""
        return safe_sqrt(squared_distance(input, self.weight))

    def extra_repr(self) -> str:
        """Return the sizes, the exponent and the softening."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"exponent={self._shown_exponent()}, softening={self.softening:g}"
        )

    def _shown_exponent(self) -> str:
        if not isinstance(self.exponent, Tensor):
            return f"{self.exponent:g}"
        return "learned" if self.exponent.is_meta else f"{self.exponent.detach().item():g}"
