"""Losses to compare with. `LOSSES` maps a name to a class built as ``LOSSES[name](in_features, classes, **options)``.

Each is a head: `head(x)` returns the logits that predict, `training_loss(head, x, y)` the loss to minimize. `LOSSES`
includes all of `harmax.heads.HEADS`. The paper's ablation is "linear" (dot, softmax), "l2" (distance, softmax),
"dot_harmax" and "harmonic". Gaussian prototypes are "gaussian" (the squared distance of Snell, Swersky and Zemel,
"Prototypical networks", 2017, equation 2), and the Student-t kernel is "student_t". Two losses of the paper's appendix
stand here twice: as published, and as its authors applied them ("contrastive_authors", "spherical_authors").
"""

from torch import nn

from harmax.heads import HEADS, CenterHead, LearnedExponent
from harmax_lab.losses.angles import ArcFaceHead, CosFaceHead, LargeMarginHead, NormFaceHead
from harmax_lab.losses.authors import ContrastiveOnLogProbabilitiesHead, SphericalOnLogProbabilitiesHead
from harmax_lab.losses.base import LossHead, WithLoss, training_loss
from harmax_lab.losses.features import CenterLossHead, ContrastiveHead, InfoNCEHead, SupConHead
from harmax_lab.losses.normalizers import DisMaxHead, IsoMaxPlusHead, SphericalHead, StableMaxHead

LOSSES: dict[str, type[nn.Module]] = {
    **HEADS,
    # The paper's layer: logits, from features as they are.
    "harmonic": CenterHead,
    "learnable": LearnedExponent,
    "spherical": SphericalHead,
    "stablemax": StableMaxHead,
    "normface": NormFaceHead,
    "cosface": CosFaceHead,
    "arcface": ArcFaceHead,
    "large_margin": LargeMarginHead,
    "isomax_plus": IsoMaxPlusHead,
    "dismax": DisMaxHead,
    "supcon": SupConHead,
    "infonce": InfoNCEHead,
    "contrastive": ContrastiveHead,
    "center": CenterLossHead,
    "contrastive_authors": ContrastiveOnLogProbabilitiesHead,
    "spherical_authors": SphericalOnLogProbabilitiesHead,
}

__all__ = [
    "LOSSES",
    "ArcFaceHead",
    "CenterLossHead",
    "ContrastiveHead",
    "ContrastiveOnLogProbabilitiesHead",
    "CosFaceHead",
    "DisMaxHead",
    "InfoNCEHead",
    "IsoMaxPlusHead",
    "LargeMarginHead",
    "LossHead",
    "NormFaceHead",
    "SphericalHead",
    "SphericalOnLogProbabilitiesHead",
    "StableMaxHead",
    "SupConHead",
    "WithLoss",
    "training_loss",
]
