"""Output layers. `HEADS` maps a name to a class; build one with ``HEADS[name](in_features, out_features)``.

Further keyword arguments differ per head: each takes only those that its formula uses.
"""

from torch import nn

from harmax.heads.centers import CenterHead
from harmax.heads.family import (
    CosineHarmaxHead,
    DiagonalMahalanobisHead,
    DotHarmaxHead,
    EuclideanHead,
    FullMahalanobisHead,
    GaussianHead,
    LinearHead,
    MinkowskiHead,
    StudentTHead,
)
from harmax.heads.harmonic import HarmonicHead
from harmax.heads.harmonic_loss import HarmonicLoss
from harmax.heads.learnable import LearnableHarmonicHead, LearnedExponent
from harmax.heads.match import Hardening
from harmax.heads.replace import replace_head

HEADS: dict[str, type[nn.Module]] = {
    "harmonic": HarmonicHead,
    "learnable": LearnableHarmonicHead,
    "linear": LinearHead,
    "l2": EuclideanHead,
    "dot_harmax": DotHarmaxHead,
    "student_t": StudentTHead,
    "gaussian": GaussianHead,
    "cosine_harmax": CosineHarmaxHead,
    "minkowski": MinkowskiHead,
    "mahalanobis_diagonal": DiagonalMahalanobisHead,
    "mahalanobis_full": FullMahalanobisHead,
}

__all__ = [
    "HEADS",
    "CenterHead",
    "CosineHarmaxHead",
    "DiagonalMahalanobisHead",
    "DotHarmaxHead",
    "EuclideanHead",
    "FullMahalanobisHead",
    "GaussianHead",
    "Hardening",
    "HarmonicHead",
    "HarmonicLoss",
    "LearnableHarmonicHead",
    "LearnedExponent",
    "LinearHead",
    "MinkowskiHead",
    "StudentTHead",
    "replace_head",
]
