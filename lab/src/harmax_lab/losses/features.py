"""Losses on the features: pairs of rows, with a read-out that does not train them, and centers.

The read-out is a linear layer trained at the same time by cross-entropy on detached features: only the contrastive loss
trains the features, and only the cross-entropy trains the read-out. The read-out's weight must not be the embedding, or
the cross-entropy would train the network through it. There are no augmented views and no projection network: the
positives of a row are the rows of its class in the batch, and the loss is on the features that the read-out sees.
"""

# B rows, V classes, D features

from typing import Any

import torch
from torch import Tensor, nn

from harmax.functional import squared_distance
from harmax.heads.family import wide
from harmax.heads.harmonic import safe_sqrt
from harmax_lab.losses.base import LossHead, positive, products, rows_of, unit


class ReadOutHead(LossHead):
    """A linear read-out of features that are trained by a loss on pairs of rows."""

    takes_bias = True
    reads_out = True

    def training_logits(self, features: Tensor, target: Tensor, step: Tensor | None = None) -> Tensor:
        """Logits of the read-out, (B, V), which do not train the features."""
        return self(features.detach())


class SupConHead(ReadOutHead):
    r"""Supervised contrastive loss, with a linear read-out of unit features.

    .. math:: \ell_i = -\frac{1}{|P(i)|} \sum_{p \in P(i)} \log \frac{e^{\hat x_i \cdot \hat x_p / \tau}}
        {\sum_{a \ne i} e^{\hat x_i \cdot \hat x_a / \tau}}, \qquad z_j = w_j \cdot \hat x

    P(i) are the other rows of i's class; the mean is over rows that have any. Khosla et al., "Supervised contrastive
    learning" (2020), equation 2, with its temperature.

    Args:
        temperature: tau.
        bias: whether the read-out has one.
    """

    settings = ("temperature",)

    def __init__(self, in_features: int, out_features: int, *, temperature: float = 0.1, **options: Any) -> None:
        super().__init__(in_features, out_features, **options)
        self.temperature = positive("temperature", temperature)

    def forward(self, input: Tensor) -> Tensor:
        """Logits of the read-out, (..., V)."""
        return super().forward(unit(*wide(input)))

    def extra_loss(self, features: Tensor, target: Tensor, present: Tensor) -> Tensor | None:
        """Contrastive loss, 0-d; 0 where no row has another of its class."""
        score_BB, positive_BB, negative_BB = self._pairs(features, target, present)
        log_p_BB = score_BB - _logsumexp(score_BB, positive_BB | negative_BB)[:, None]
        count_B = positive_BB.sum(-1)
        loss_B = -torch.where(positive_BB, log_p_BB, 0.0).sum(-1) / count_B.clamp(min=1)
        return loss_B.sum() / (count_B > 0).sum().clamp(min=1)

    def _pairs(self, features: Tensor, target: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores of all pairs of rows, and which pairs are of one class and of two, (B, B) each."""
        x_BD = unit(*wide(features))
        return products(x_BD, x_BD) / self.temperature, *pairs(target, present)


class InfoNCEHead(SupConHead):
    r"""InfoNCE over labeled pairs, with a linear read-out of unit features.

    .. math:: \ell_{ip} = -\log \frac{e^{\hat x_i \cdot \hat x_p / \tau}}
        {e^{\hat x_i \cdot \hat x_p / \tau} + \sum_{a : y_a \ne y_i} e^{\hat x_i \cdot \hat x_a / \tau}}, \qquad
        z_j = w_j \cdot \hat x

    The mean is over all pairs i, p of rows of one class. Van den Oord, Li and Vinyals, "Representation learning with
    contrastive predictive coding" (2018), equation 4, each pair of a class a positive of its own: other positives are
    not in the denominator, as they are in `SupConHead`. Cosines and temperature as in Chen, Kornblith, Norouzi and
    Hinton, "A simple framework for contrastive learning of visual representations" (2020), equation 1;
    pytorch-metric-learning calls it `NTXentLoss`.

    Args:
        temperature: tau.
        bias: whether the read-out has one.
    """

    def extra_loss(self, features: Tensor, target: Tensor, present: Tensor) -> Tensor | None:
        """Contrastive loss, 0-d; 0 where no row has another of its class."""
        score_BB, positive_BB, negative_BB = self._pairs(features, target, present)
        loss_BB = nn.functional.softplus(_logsumexp(score_BB, negative_BB)[:, None] - score_BB)
        return torch.where(positive_BB, loss_BB, 0.0).sum() / positive_BB.sum().clamp(min=1)


class ContrastiveHead(ReadOutHead):
    r"""Contrastive loss with a margin, with a linear read-out of the features.

    .. math:: \ell_{ia} = \tfrac12 d_{ia}^2 \; (y_i = y_a), \quad \tfrac12 \max(0, m - d_{ia})^2 \; (y_i \ne y_a),
        \qquad d_{ia} = \|x_i - x_a\|, \qquad z_j = w_j \cdot x

    The mean is over all pairs of rows of the batch. Hadsell, Chopra and LeCun, "Dimensionality reduction by learning an
    invariant mapping" (2006), equation 4. (pytorch-metric-learning's `ContrastiveLoss` takes distances instead of their
    squares and averages the two kinds of pair apart.)

    Args:
        margin: m, above 0.
        bias: whether the read-out has one.
    """

    settings = ("margin",)

    def __init__(self, in_features: int, out_features: int, *, margin: float = 1.0, **options: Any) -> None:
        super().__init__(in_features, out_features, **options)
        self.margin = positive("margin", margin)

    def extra_loss(self, features: Tensor, target: Tensor, present: Tensor) -> Tensor | None:
        """Contrastive loss, 0-d."""
        (x_BD,) = wide(features)
        s_BB = squared_distance(x_BD, x_BD)
        positive_BB, negative_BB = pairs(target, present)
        short_BB = (self.margin - safe_sqrt(s_BB)).clamp(min=0).square()
        total = torch.where(positive_BB, s_BB, 0.0).sum() + torch.where(negative_BB, short_BB, 0.0).sum()
        return 0.5 * total / (positive_BB | negative_BB).sum().clamp(min=1)


class CenterLossHead(LossHead):
    r"""Cross-entropy of a linear head, and a pull of the features to a center of their class.

    .. math:: \ell = \text{cross-entropy}(z) + \tfrac{\lambda}{2} \|x - c_y\|^2, \qquad z_j = w_j \cdot x

    Wen, Zhang, Li and Qiao, "A discriminative feature learning approach for deep face recognition" (2016), equations 2
    and 5, with its lambda. The centers c (`centers`, (V, D), apart from the weight) start at 0 and are trained by the
    optimizer on this loss, not by the running average of its equation 4, whose direction the gradient shares.

    Args:
        pull: lambda.
        bias: whether the linear head has one.
    """

    takes_bias = True
    settings = ("pull",)

    def __init__(self, in_features: int, out_features: int, *, pull: float = 0.003, **options: Any) -> None:
        super().__init__(in_features, out_features, **options)
        self.pull = positive("pull", pull, least=0)
        self.centers = nn.Parameter(torch.zeros_like(self.weight))

    def reset_parameters(self) -> None:
        """Draw the weight as `nn.Linear` does, and put the centers at 0."""
        super().reset_parameters()
        if "centers" in self._parameters:  # nn.Linear draws its weight before there are any
            nn.init.zeros_(self.centers)

    def extra_loss(self, features: Tensor, target: Tensor, present: Tensor) -> Tensor | None:
        """Mean pull over the rows that count, 0-d."""
        x_BD, c_VD = wide(features, self.centers)
        s_B = (x_BD - rows_of(c_VD, target)).square().sum(-1)
        return 0.5 * self.pull * torch.where(present > 0, s_B, 0.0).sum() / present.sum().clamp(min=1)


def pairs(target: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return which pairs of different rows that count are of one class, and which of two, (B, B) bool each."""
    place_B = torch.arange(len(target), device=target.device)
    present_BB = (present > 0)[:, None] & (present > 0) & (place_B[:, None] != place_B)
    same_BB = target[:, None] == target
    return present_BB & same_BB, present_BB & ~same_BB


def _logsumexp(score_BB: Tensor, among_BB: Tensor) -> Tensor:
    """Return the log-sum-exp of a row's chosen scores, (B,), hugely negative where none is chosen."""
    # Not -inf, whose gradient is NaN in a row without any.
    return torch.where(among_BB, score_BB, torch.finfo(score_BB.dtype).min).logsumexp(-1)
