"""The harmonic head of a language model: log-probabilities of real tokens, from a weight with padding rows.

Shape suffixes: V tokens, R rows of the weight (R >= V), D features. Leading dimensions are free.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from harmax.functional import harmonic_logits, harmonic_loss, squared_distance
from harmax.heads.harmonic import HarmonicHead, HeadOptions, LearnableHarmonicHead, safe_sqrt


class TokenHead(HarmonicHead):
    r"""A harmonic head whose first `out_features` rows are tokens and whose other rows are padding.

    .. math:: \log p_j = z_j - \log \sum_{k \le V} e^{z_k}, \qquad z_j = -\tfrac{n}{2} \log(\|x - w_j\|^2 + a)

    Padding has no effect: it is never predicted, and its probability, its share of label smoothing and its gradient
    are zero. Under autocast, vectors and centers are first rounded to the autocast dtype, as in a Linear. Distances
    and logits are then computed in float32.

    Args:
        in_features: D.
        out_features: V, the number of tokens.
        rows: R, the number of rows of the weight; None means V.
        exponent, softening: as for `HarmonicHead`.

    >>> head = TokenHead(16, 50, rows=64)
    >>> head(torch.randn(2, 16)).shape, head.weight.shape
    (torch.Size([2, 50]), torch.Size([64, 16]))
    """

    def __init__(
        self, in_features: int, out_features: int, *, rows: int | None = None, **options: Unpack[HeadOptions]
    ) -> None:
        super().__init__(in_features, out_features if rows is None else rows, **options)
        self.out_features = out_features

    @property
    def token_weight(self) -> Tensor:
        """The centers of the tokens, (V, D): a view of the weight, with gradient."""
        return self.weight[: self.out_features]

    @property
    def centers(self) -> Tensor:
        """The centers of the tokens, (V, D), without gradient."""
        return self.token_weight.detach()

    def forward(self, input: Tensor) -> Tensor:
        """Return log-probabilities, (..., V): logits that are already normalized."""
        x, w_VD = self._operands(input)
        return harmonic_logits(x, w_VD, exponent=self.exponent, softening=self.softening).log_softmax(-1)

    def loss(
        self,
        input: Tensor,
        target: Tensor,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        impl: str = "auto",
    ) -> Tensor:
        """Return the cross-entropy of `forward(input)`. It never stores a large (tokens, vocabulary) matrix."""
        x, w_VD = self._operands(input)
        return harmonic_loss(
            x,
            w_VD,
            target,
            exponent=self.exponent,
            softening=self.softening,
            reduction=reduction,
            ignore_index=ignore_index,
            impl=impl,
        )

    def distance(self, input: Tensor) -> Tensor:
        """Return the distance to every token's center, (..., V)."""
        return safe_sqrt(squared_distance(input, self.token_weight))

    def _operands(self, input: Tensor) -> tuple[Tensor, Tensor]:
        kind = input.device.type
        if not torch.is_autocast_enabled(kind):
            return input, self.token_weight
        # The norm before the head returns float32, and float32 products would cost several times the whole model.
        dtype = torch.get_autocast_dtype(kind)
        return input.to(dtype), self.token_weight.to(dtype)


class LearnableTokenHead(TokenHead, LearnableHarmonicHead):
    r"""A token head that learns its exponent, stored as `log_exponent`.

    .. math:: z_j = -\tfrac{n}{2} \log(\|x - w_j\|^2 + a), \qquad n = e^{\nu}

    >>> LearnableTokenHead(16, 50).log_exponent.shape
    torch.Size([1])
    """

    def _keep_exponent(self, exponent: float | Tensor) -> None:
        super()._keep_exponent(exponent)
        # FSDP shards along the first dimension and refuses a parameter without dimensions.
        self.log_exponent = nn.Parameter(self.log_exponent.detach()[None])

    @property
    def exponent(self) -> Tensor:  # type: ignore[override]  # computed from the parameter, not assigned
        """The current exponent, 0-d."""
        return self.log_exponent[0].exp()
