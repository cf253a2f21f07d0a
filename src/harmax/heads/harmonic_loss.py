"""Head and loss in one module."""

from typing import Unpack

from torch import Tensor, nn

from harmax.functional import LossOptions, LossOutput, check_loss_settings
from harmax.heads.harmonic import HarmonicHead, HeadOptions


class HarmonicLoss(nn.Module):
    r"""Head and fused loss in one module: `forward(input, target)` returns the harmonic loss.

    .. math:: \ell = \log \sum_j e^{z_j} - z_c, \qquad z_j = b_j - \tfrac{n}{2} \log(\|c\,x - w_j\|^2 + a)

    Args:
        in_features: D.
        num_classes: V.
        weight, reduction, ignore_index, label_smoothing, impl, options: as for `harmonic_loss`.
        head: exponent, softening, scale, prior, device and dtype, as for `HarmonicHead`, the submodule `head`.

    >>> import torch
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
        weight: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        impl: str = "auto",
        options: LossOptions | None = None,
        **head: Unpack[HeadOptions],
    ) -> None:
        super().__init__()
        check_loss_settings(reduction, impl, label_smoothing)
        self.head = HarmonicHead(in_features, num_classes, **head)
        # As in torch's own losses it is not saved, because it belongs to the data and not to the model.
        self.register_buffer("weight", weight, persistent=False)
        self.reduction, self.ignore_index, self.label_smoothing = reduction, ignore_index, label_smoothing
        self.impl, self.options = impl, options

    def forward(self, input: Tensor, target: Tensor, *, return_stats: bool = False) -> Tensor | LossOutput:
        """Return the loss of vectors (..., D) against targets, as `harmonic_loss` does."""
        return self.head(
            input,
            target,
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            impl=self.impl,
            options=self.options,
            return_stats=return_stats,
        )
