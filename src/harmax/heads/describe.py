"""A look at a head before training: do features and centers meet at a scale at which it can learn?"""

# N features that are looked at, D their width, V classes

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harmax.heads.scale import LEAST_RATIO, length, matched_ratio
from harmax.kernels.eager import entropy as row_entropy

if TYPE_CHECKING:
    from harmax.heads.harmonic import HarmonicHead

MOST = 2048
"""Number of features that are looked at. Distances between all of them are computed."""
NEARLY_FLAT = 0.999
"""Share of the largest entropy above which a head sees hardly any difference between its classes."""


@dataclass(frozen=True)
class HeadDescription:
    """What `HarmonicHead.describe` found; printed, it is a short report."""

    features: float
    """Typical length of the features, after the head's scale."""
    centers: float
    """Typical length of the centers as they are stored."""
    ratio: float
    """Of the two."""
    wanted_ratio: float
    """The one that training starts well with."""
    entropy: float
    """Mean entropy of the probabilities, in nats."""
    most_entropy: float
    """Entropy of equal probabilities: log V."""
    intrinsic_dimension: float
    """An estimate, from the distances of each feature to its two nearest ones; NaN with fewer than 3 features."""
    exponent: float
    suggestions: tuple[str, ...]

    @property
    def paper_exponent(self) -> float:
        """The exponent that the paper's rule gives: the square root of the intrinsic dimension."""
        return math.sqrt(self.intrinsic_dimension)

    def __str__(self) -> str:
        lines = [
            f"length of the features  {self.features:.3g} after scaling",
            f"length of the centers   {self.centers:.3g}",
            f"ratio                   {self.ratio:.3g}; {self.wanted_ratio:.3g} starts well",
            f"entropy                 {self.entropy:.4g} of at most {self.most_entropy:.4g} nats",
            f"intrinsic dimension     about {self.intrinsic_dimension:.2g}",
            f"exponent                {self.exponent:.4g}; the paper's rule gives {self.paper_exponent:.2g}, the root "
            "of that dimension",
        ]
        return "\n".join([*lines, *(f"- {one}" for one in self.suggestions or ("nothing to change",))])


def intrinsic_dimension(x_ND: Tensor) -> float:
    r"""Estimate the dimension of the set that vectors lie on.

    .. math:: d = (N - 1) / \sum_i \log(r_{i2} / r_{i1})

    r_1 and r_2 are the distances to the nearest and the second nearest vector. Source: Facco, d'Errico, Rodriguez and
    Laio, "Estimating the intrinsic dimension of datasets by a minimal neighborhood information", 2017. Copies of a
    vector are left out. It is too small where the dimension is large and vectors are few.

    >>> angle = 6 * torch.rand(500)
    >>> 0.5 < intrinsic_dimension(torch.stack([angle.cos(), angle.sin()], 1)) < 1.5  # part of a circle: one dimension
    True
    """
    x_ND = torch.unique(x_ND.double(), dim=0)
    if len(x_ND) < 3:
        return math.nan
    near = torch.cdist(x_ND, x_ND).topk(3, largest=False).values
    return (len(x_ND) - 1) / float((near[:, 2] / near[:, 1]).log().sum())


@torch.no_grad()
def describe(head: "HarmonicHead", features: Tensor) -> HeadDescription:
    """Look at a head and a batch of its inputs; see `HarmonicHead.describe`."""
    x_ND = features.detach().reshape(-1, features.shape[-1])
    x_ND = x_ND[torch.linspace(0, len(x_ND) - 1, min(MOST, len(x_ND))).long().unique()]
    scale, exponent = head.scale or 1.0, float(head.exponent)
    lengths = scale * length(x_ND), length(head._classes()[0])
    # In evaluation, so that looking decides nothing.
    training = head.training
    log_p_NV = head.eval()(x_ND[:256])
    head.train(training)
    entropy = float(row_entropy(log_p_NV).mean())
    ratio, wanted = lengths[0] / lengths[1], matched_ratio(exponent, head.in_features)
    suggestions: list[str] = []
    if head.wants_scale:
        suggestions.append("the scale is not known yet; the first batch of training finds it, or call head.find_scale")
    elif head.softening == 0 and not wanted / 2 < ratio < 2 * max(wanted, LEAST_RATIO):
        suggestions.append(
            f"features are {ratio:.3g} times as long as centers, where {wanted:.3g} starts well; call head.find_scale "
            "before training (for a trained head this is no advice)"
        )
    if entropy > NEARLY_FLAT * math.log(head.out_features) and not head.wants_scale:
        suggestions.append("all classes look alike at this exponent; a larger one, or another scale, tells them apart")
    dimension = intrinsic_dimension(x_ND)
    most = math.log(head.out_features)
    return HeadDescription(*lengths, ratio, wanted, entropy, most, dimension, exponent, tuple(suggestions))
