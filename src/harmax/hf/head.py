"""The harmonic head of a language model whose weight has padding rows.

Shape suffixes: V tokens, R rows of the weight (R >= V), D features. Leading dimensions are free.
"""

from typing import Unpack

from torch import Tensor

from harmax.heads.harmonic import HarmonicHead, HeadOptions
from harmax.heads.learnable import LearnedExponent


class TokenHead(HarmonicHead):
    r"""A harmonic head whose first `out_features` rows are tokens and whose other rows are padding.

    .. math:: \log p_j = z_j - \log \sum_{k \le V} e^{z_k}, \qquad z_j = b_j - \tfrac{n}{2} \log(\|c\,x - w_j\|^2 + a)

    Padding has no effect: it is never predicted, and its probability, its share of label smoothing and its gradient
    are zero. It makes the number of rows a multiple that GPUs compute faster.

    Args:
        in_features: D, the width of the model.
        out_features: V, the number of tokens.
        rows: R, the number of rows of the weight; None means V.
        options: as for `HarmonicHead`.

    >>> import torch
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
        """The centers of the tokens as they are stored, (V, D): a view of the weight, with gradient."""
        return self.weight[: self.out_features]

    @property
    def centers(self) -> Tensor:
        """The centers of the tokens in units of the features, (V, D), without gradient."""
        return super().centers[: self.out_features]

    def _classes(self) -> tuple[Tensor, Tensor | None]:
        return self.token_weight, None if self.prior is None else self.prior[: self.out_features]


class LearnableTokenHead(LearnedExponent, TokenHead):
    r"""A token head that learns its exponent, stored as `log_exponent`.

    .. math:: z_j = b_j - \tfrac{n}{2} \log(\|c\,x - w_j\|^2 + a), \qquad n = e^{\nu}

    >>> LearnableTokenHead(16, 50).log_exponent.shape
    torch.Size([1])
    """
