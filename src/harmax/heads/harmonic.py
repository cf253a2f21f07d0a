"""The harmonic head: an `nn.Linear` without bias whose rows are class centers."""

# B rows, D features, V classes

import math
from typing import Any, Self, TypedDict

import torch
from torch import Tensor, nn

from harmax.functional import (
    LossOptions,
    LossOutput,
    check_loss_settings,
    check_softening,
    harmonic_logits,
    harmonic_loss,
    resolve_exponent,
    squared_distance,
)


class HeadOptions(TypedDict, total=False):
    """Keyword arguments of `HarmonicHead`, for heads that pass them on."""

    exponent: float | None
    softening: float
    device: torch.device | str | None
    dtype: torch.dtype | None


def safe_sqrt(s: Tensor) -> Tensor:
    """Return the square root, with a gradient of 0 at 0: no direction in which the distance grows is preferred."""
    zero = s == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, s).sqrt())


class HarmonicHead(nn.Linear):
    r"""A head of class centers. `forward` returns logits whose softmax falls with a power of the distance.

    .. math:: z_j = -\tfrac{n}{2} \log(\|x - w_j\|^2 + a), \qquad \mathrm{softmax}(z)_j \propto \|x - w_j\|^{-n}

    It is an `nn.Linear` without bias, with the same weight shape and the same state_dict key. So the checkpoint of a
    Linear loads, and tying to an `nn.Embedding` is the same assignment. **The exponent and the softening are not in
    the state_dict.** Pass them again when you build the module to load into. `LearnableHarmonicHead` stores its
    exponent.

    The default initialization is that of `nn.Linear`, U(-1/sqrt(D), 1/sqrt(D)), as in the paper's classifiers. A head
    on trained features starts better from `init_from_class_means`. A language model ties the head to its embedding and
    should call `reset_parameters(std=...)`. With exponents of about D or more, use GPT-2's std of 0.02. With the small
    exponent sqrt(D) after a LayerNorm, use about 0.5: centers closer to the origin give almost flat probabilities.

    Args:
        in_features: D.
        out_features: V, the number of classes.
        exponent: n, the power of the distance; None means sqrt(D). `repr` shows the number.
        softening: a, added to the squared distance.

    Shape: (..., D) to (..., V). Logits are float32 for half-precision inputs.

    >>> HarmonicHead(16, 3)
    HarmonicHead(in_features=16, out_features=3, exponent=4, softening=0)
    """

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
        if in_features < 1 or out_features < 1:
            raise ValueError(
                f"`in_features` and `out_features` must be at least 1, got {in_features} and {out_features}; "
                "give the width of the input and the number of classes."
            )
        super().__init__(in_features, out_features, bias=False, device=device, dtype=dtype)
        self.softening = check_softening(softening)
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
                "`linear` must have no bias, because a harmonic head has only centers, got one; train it with "
                "bias=False, or drop the bias first (linear.bias = None)."
            )
        if not isinstance(linear.weight, nn.Parameter):
            raise TypeError(
                "`linear` must hold its weight as a parameter, got a parametrized weight; "
                "remove the parametrization first (torch.nn.utils.parametrize.remove_parametrizations)."
            )
        if exponent is not None:
            options["exponent"] = exponent
        # On the meta device a weight costs neither memory nor random numbers. It is replaced below.
        weight = linear.weight
        head = cls(linear.in_features, linear.out_features, device="meta", dtype=weight.dtype, **options)
        head.weight = weight
        for name, parameter in list(head.named_parameters()):
            if parameter.is_meta and not weight.is_meta:
                setattr(head, name, nn.Parameter(torch.empty_like(parameter, device=weight.device)))
        head.reset_extras()
        return head.train(linear.training)

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw new centers, as `nn.Linear` does or from N(0, std^2), and reset all other parameters."""
        if std is None:
            super().reset_parameters()
        else:
            nn.init.normal_(self.weight, std=std)
        self.reset_extras()

    def reset_extras(self) -> None:
        """Set the parameters other than the centers to their initial values; this head has none."""

    @torch.no_grad()
    def init_from_class_means(self, features: Tensor, target: Tensor) -> None:
        """Move each center to the mean of its class; a class without features keeps its center.

        Args:
            features: inputs of the head, (..., D).
            target: class indices, (...), int64.

        >>> head = HarmonicHead(2, 2)
        >>> head.init_from_class_means(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0, 1]))
        >>> head.centers
        tensor([[2., 0.],
                [0., 5.]])
        """
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
        """The class centers, (V, D): the weight without its gradient."""
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


class LearnableHarmonicHead(HarmonicHead):
    r"""A harmonic head that learns its exponent with the centers.

    .. math:: z_j = -\tfrac{n}{2} \log(\|x - w_j\|^2 + a), \qquad n = e^{\nu}

    The parameter is nu = log n (`log_exponent` in the state_dict), so the exponent stays positive.

    >>> sorted(LearnableHarmonicHead(16, 3).state_dict())
    ['log_exponent', 'weight']
    """

    def _keep_exponent(self, exponent: float | Tensor) -> None:
        self._start = float(exponent)
        # float32 or float64, because half precision would round the exponent by up to one percent.
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        self.log_exponent = nn.Parameter(torch.empty((), device=self.weight.device, dtype=dtype))
        self.reset_extras()

    def reset_extras(self) -> None:
        """Reset the exponent to the value that the head was built with."""
        if "log_exponent" in self._parameters:  # nn.Linear draws its weight before this parameter exists
            nn.init.constant_(self.log_exponent, math.log(self._start))

    @property
    def exponent(self) -> Tensor:  # type: ignore[override]  # computed from the parameter, not assigned
        """The current exponent, 0-d."""
        return self.log_exponent.exp()


class HarmonicLoss(nn.Module):
    r"""Head and fused loss in one module: `forward(input, target)` returns the harmonic loss.

    .. math:: \ell = \log \sum_j (s_j + a)^{-n/2} + \tfrac{n}{2} \log(s_c + a), \qquad s_j = \|x - w_j\|^2

    Args:
        in_features: D.
        num_classes: V.
        exponent, softening: as for `HarmonicHead`, the submodule `head`.
        weight, reduction, ignore_index, label_smoothing, impl, options: as for `harmonic_loss`.

    >>> loss = HarmonicLoss(16, 3)
    >>> loss(torch.randn(8, 16), torch.randint(3, (8,))).shape
    torch.Size([])
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        exponent: float | None = None,
        softening: float = 0.0,
        weight: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        impl: str = "auto",
        options: LossOptions | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_loss_settings(reduction, impl, label_smoothing)
        self.head = HarmonicHead(
            in_features, num_classes, exponent=exponent, softening=softening, device=device, dtype=dtype
        )
        # As in torch's own losses it is not saved, because it belongs to the data and not to the model.
        self.register_buffer("weight", weight, persistent=False)
        self.reduction, self.ignore_index, self.label_smoothing = reduction, ignore_index, label_smoothing
        self.impl, self.options = impl, options

    def forward(self, input: Tensor, target: Tensor, *, return_stats: bool = False) -> Tensor | LossOutput:
        """Return the loss of vectors (..., D) against targets, as `harmonic_loss` does."""
        return harmonic_loss(
            input,
            self.head.weight,
            target,
            exponent=self.head.exponent,
            softening=self.head.softening,
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            impl=self.impl,
            options=self.options,
            return_stats=return_stats,
        )
