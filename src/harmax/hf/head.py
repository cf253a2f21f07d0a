"""The harmonic head of a model of transformers: its weight may have padding rows, and it computes the model's loss.

Shape suffixes: V classes, R rows of the weight (R >= V), D features. Leading dimensions are free.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, Unpack

from torch import Tensor

from harmax.functional import LossOutput, harmonic_loss
from harmax.heads.centers import numbers_of
from harmax.heads.harmonic import ForwardSettings, HarmonicHead, HeadOptions, as_autocast_multiplies
from harmax.heads.learnable import LearnedExponent
from harmax.sharding import first_rows, is_distributed

IGNORED = -100
"""The label of a token that is not predicted, as everywhere in transformers."""


class Question(Protocol):
    """What a model asks its head instead of log-probabilities."""

    def answer(self, head: "TokenHead", input: Tensor) -> Tensor:
        """Return a tensor of the leading shape of `input` and any last dimension, which the model takes for logits."""


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

    question: Question | None = None

    def __init__(
        self, in_features: int, out_features: int, *, rows: int | None = None, **options: Unpack[HeadOptions]
    ) -> None:
        super().__init__(in_features, out_features if rows is None else rows, **options)
        self.out_features = out_features

    @property
    def token_weight(self) -> Tensor:
        """The centers of the tokens as they are stored, (V, D): a view of the weight, with gradient."""
        return first_rows(numbers_of(self.weight), self.out_features)

    @property
    def centers(self) -> Tensor:
        """The centers of the tokens in units of the features, (V, D), without gradient."""
        return super().centers[: self.out_features]

    def forward(self, input: Tensor, target: Tensor | None = None, **settings: Unpack[ForwardSettings]) -> Tensor:
        """Return log-probabilities, (..., V), the loss of a target, or the answer to the question of the model."""
        if target is None and self.question is not None:
            return self.question.answer(self, input)
        return super().forward(input, target, **settings)

    @contextmanager
    def asked(self, question: Question | None) -> Iterator[None]:
        """Answer a question while this lasts; None asks for log-probabilities, also within another question.

        The answer is computed in the head's own forward, as the output of the head, so that the hooks of FSDP and of
        offloading gather the weights before it and before its gradient.
        """
        before, self.question = self.question, question
        try:
            yield
        finally:
            self.question = before

    def token_losses(self, input: Tensor, target: Tensor, temperature: float) -> LossOutput:
        """Return the loss of every position at a temperature, with statistics: p_j ~ d_j^(-n / temperature)."""
        x, w_VD, kernel = self.at_temperature(input, temperature)
        return harmonic_loss(x, w_VD, target, **kernel, reduction="none", ignore_index=IGNORED, return_stats=True)

    def at_temperature(self, input: Tensor, temperature: float) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return what the loss is computed from: features, centers, and settings with the prior."""
        if self.wants_scale and self.training:
            self._look_at_first_batch(input)
        weight_VD, prior_V = self._classes(input)
        x, w_VD = as_autocast_multiplies(self._scaled(input), weight_VD)
        prior_V = None if prior_V is None else prior_V / temperature
        return x, w_VD, {"exponent": self.exponent / temperature, "softening": self.softening, "prior": prior_V}

    def _classes(self, input: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        # Shares without the padding are of other sizes than torch expects, and it cannot gather them.
        first = first_rows if is_distributed(input) else lambda tensor, rows: tensor[:rows]
        weight_VD = first(numbers_of(self.weight), self.out_features)
        return weight_VD, None if self.prior is None else first(self.prior, self.out_features)


class LearnableTokenHead(LearnedExponent, TokenHead):
    r"""A token head that learns its exponent, stored as `log_exponent`.

    .. math:: z_j = b_j - \tfrac{n}{2} \log(\|c\,x - w_j\|^2 + a), \qquad n = e^{\nu}

    >>> LearnableTokenHead(16, 50).log_exponent.shape
    torch.Size([1])
    """


class BatchLoss(NamedTuple):
    """A question: what is the loss of these tokens? The answer repeats it at every position, (..., 1)."""

    target: Tensor
    items: int | Tensor | None
    """Divisor of the summed loss; None means the number of labels."""

    def answer(self, head: TokenHead, input: Tensor) -> Tensor:
        """Return the loss, once per position."""
        target = self.target.to(input.device)
        if target.numel() == input[..., 0].numel():
            target = target.reshape(input.shape[:-1])  # some models flatten their sequences before the head
        plain: Any = type(head).forward
        if self.items is None:
            loss = plain(head, input, target, ignore_index=IGNORED)
        else:
            items = self.items.to(input.device) if isinstance(self.items, Tensor) else self.items
            loss = plain(head, input, target, reduction="sum", ignore_index=IGNORED) / items
        return loss.expand(*input.shape[:-1], 1).clone()  # FSDP hangs its hooks on outputs, not on views
