r"""The comparison losses as the authors of harmonic loss apply them: to the log-probabilities of the harmonic head.

Their model is the harmonic one, and a row has the vector of its log-probabilities over all V classes,

.. math:: l_j = \log p_j, \qquad p_j \propto (\|x - w_j\|^2 + a)^{-n / 2}

In their code this vector takes the place of the outputs, or features, for which the two losses were published. It has
two consequences. Spherical loss takes squares, and all l are negative: it is least where l of the right class is the
most negative, so it makes the right class the *least* probable one. Contrastive loss compares the vectors of rows with
one another, so nothing ties a class to its own center. Both heads still predict the most probable class.

Source: `src/utils/model.py` of the public repository KindXiaoming/grow-crystals.
"""

# B rows, V classes, D features

from typing import Any, ClassVar

import torch
from torch import Tensor

from harmax.functional import check_softening, harmonic_logits, resolve_exponent, squared_distance
from harmax.heads.centers import safe_sqrt
from harmax_lab.losses.base import LossHead, mean_cross_entropy, positive, real_classes
from harmax_lab.losses.features import pairs


class HarmonicOutputsHead(LossHead):
    """A harmonic head that is trained by another loss on its log-probabilities.

    Args:
        in_features: D.
        out_features: V.
        exponent: n, the power of the distance; None means sqrt(D).
        softening: a, added to the squared distance.
        more: device and dtype.
    """

    settings: ClassVar[tuple[str, ...]] = ("exponent", "softening")

    def __init__(
        self, in_features: int, out_features: int, *, exponent: float | None = None, softening: float = 0.0, **more: Any
    ) -> None:
        super().__init__(in_features, out_features, **more)
        self.exponent = resolve_exponent(exponent, in_features)
        self.softening = check_softening(softening)

    def forward(self, input: Tensor) -> Tensor:
        """Logits of the harmonic head, (..., V)."""
        return harmonic_logits(input, self.weight, exponent=self.exponent, softening=self.softening)

    def log_probabilities(self, features: Tensor, classes: Tensor | None) -> Tensor:
        """The vectors l of all rows, (B, V); 0 for classes that are padding."""
        z_BV = real_classes(self(features), classes)
        return torch.where(z_BV == -torch.inf, 0.0, z_BV.log_softmax(-1))


class SphericalOnLogProbabilitiesHead(HarmonicOutputsHead):
    r"""Spherical softmax of log-probabilities.

    .. math:: \ell = -\log \frac{\hat l_y^2 + \epsilon}{\sum_j (\hat l_j^2 + \epsilon)}, \qquad
        \hat l = l / \|l\|

    Baek et al., "Harmonic loss trains interpretable AI models" (2025), the appendix on other losses, as in their code.

    Args:
        epsilon: above 0; the authors' is 1e-4.
    """

    settings = ("exponent", "softening", "epsilon")

    def __init__(self, in_features: int, out_features: int, *, epsilon: float = 1e-4, **options: Any) -> None:
        super().__init__(in_features, out_features, **options)
        self.epsilon = positive("epsilon", epsilon)

    def loss(
        self, features: Tensor, target: Tensor, *, present: Tensor | None, classes: Tensor | None, **options: Any
    ) -> Tensor:
        """Mean over the rows that count, 0-d."""
        square_BV = self.log_probabilities(features, classes).square()
        # The length of l cancels in the quotient, so it multiplies epsilon instead.
        z_BV = (square_BV + self.epsilon * square_BV.sum(-1, keepdim=True)).log()
        return mean_cross_entropy(real_classes(z_BV, classes), target, present, exact=options["exact"])


class ContrastiveOnLogProbabilitiesHead(HarmonicOutputsHead):
    r"""Contrastive loss between the log-probabilities of the rows of a batch.

    .. math:: \ell = \frac{1}{N_+} \sum_{y_i = y_a} d_{ia}^2 + \frac{1}{N_- + B} \sum_{y_i \ne y_a}
        \max(0, m - d_{ia})^2, \qquad d_{ia} = \|l_i - l_a\|

    Sums are over ordered pairs of different rows, of which N+ are of one class and N- of two. The authors' mask counts
    the B pairs of a row with itself among the latter. It also sets the distances that it leaves out to 0, which adds
    m^2 (N+ + B) / (N- + B) to their loss. This constant trains nothing and is left out here. Baek et al., "Harmonic
    loss trains interpretable AI models" (2025), the appendix on other losses, as in their code.

    Args:
        margin: m, above 0; the authors' is 1.
    """

    settings = ("exponent", "softening", "margin")

    def __init__(self, in_features: int, out_features: int, *, margin: float = 1.0, **options: Any) -> None:
        super().__init__(in_features, out_features, **options)
        self.margin = positive("margin", margin)

    def loss(
        self, features: Tensor, target: Tensor, *, present: Tensor | None, classes: Tensor | None, **options: Any
    ) -> Tensor:
        """Sum of two means over pairs of rows that count, 0-d."""
        counts_B = torch.ones_like(target) if present is None else present
        l_BV = self.log_probabilities(features, classes)
        s_BB = squared_distance(l_BV, l_BV)
        alike_BB, different_BB = pairs(target, counts_B)
        short_BB = (self.margin - safe_sqrt(s_BB)).clamp(min=0).square()
        pull = torch.where(alike_BB, s_BB, 0.0).sum() / alike_BB.sum().clamp(min=1)
        push = torch.where(different_BB, short_BB, 0.0).sum()
        return pull + push / (different_BB.sum() + counts_B.sum()).clamp(min=1)
