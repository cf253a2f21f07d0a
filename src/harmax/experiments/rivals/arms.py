"""The losses that are compared, and how each is trained under a protocol.

Every loss has its publication's settings (`harmax.losses`); only learning rate and weight decay are searched. All are
tied to the embedding but those whose weight reads classes off features that it must not train, and none has a bias:
what tying and bias do is crossed for the two that the paper compares, as arms of their own.
"""

from dataclasses import dataclass, replace

from harmax.experiments.algorithmic.protocols import Settings, settings
from harmax.experiments.algorithmic.training import RunCell
from harmax.functional import unknown

SOFTENING_OF_T = 1.0  # t-SNE's kernel


@dataclass(frozen=True)
class Arm:
    """One loss with its tying and bias."""

    head: str
    """A name in `LOSSES`."""
    label: str
    tied: bool = True
    bias: bool = False


ARMS: dict[str, Arm] = {
    "harmonic": Arm("harmonic", "harmonic"),
    "linear": Arm("linear", "cross-entropy"),
    "l2": Arm("l2", "distance, softmax"),
    "gaussian": Arm("gaussian", "Gaussian prototypes"),
    "student_t": Arm("student_t", "Student-t"),
    "spherical": Arm("spherical", "spherical softmax"),
    "stablemax": Arm("stablemax", "StableMax"),
    "large_margin": Arm("large_margin", "large-margin softmax"),
    "normface": Arm("normface", "NormFace"),
    "cosface": Arm("cosface", "CosFace"),
    "arcface": Arm("arcface", "ArcFace"),
    "isomax_plus": Arm("isomax_plus", "IsoMax+"),
    "dismax": Arm("dismax", "DisMax"),
    "center": Arm("center", "centre loss"),
    "supcon": Arm("supcon", "supervised contrastive", tied=False),
    "contrastive": Arm("contrastive", "contrastive, margin", tied=False),
    "linear_bias": Arm("linear", "cross-entropy, bias", bias=True),
    "linear_untied": Arm("linear", "cross-entropy, untied", tied=False),
    "linear_untied_bias": Arm("linear", "cross-entropy, untied, bias", tied=False, bias=True),
    "harmonic_untied": Arm("harmonic", "harmonic, untied", tied=False),
}
VARIANTS = ("linear_bias", "linear_untied", "linear_untied_bias", "harmonic_untied")
"""Tying and bias crossed; not rivals, and left out where losses are ranked."""
LOSSES = tuple(name for name in ARMS if name not in VARIANTS)
APPENDIX = (
    "harmonic",
    "linear",
    "spherical",
    "large_margin",
    "normface",
    "cosface",
    "arcface",
    "supcon",
    "contrastive",
)
"""What the paper's appendix compares, in kind; these run under the authors' protocol too."""
TOGETHER = 4  # losses that are searched and trained in one piece: 16 stacks, which 16 cores compile at once


@dataclass(frozen=True)
class RivalCell(RunCell):
    """One model trained with one arm, a key of `ARMS`."""

    loss: str


def find_arm(name: str) -> Arm:
    """Return the arm of that name, or say which names are near."""
    if name not in ARMS:
        raise ValueError(unknown("loss", name, ARMS))
    return ARMS[name]


def piece_of(name: str) -> int:
    """Return the number of the piece of work that an arm belongs to."""
    return list(ARMS).index(name) // TOGETHER


def settings_of(protocol: str, model: str, loss: str, *, epochs: int) -> Settings:
    """Return how an arm is trained before any search.

    Under the authors' protocol their two arms are as their code has them; the others are tied where they can be, as
    their standard models are, and have no bias.
    """
    arm = find_arm(loss)
    how = settings(protocol, model, "harmonic" if arm.head == "harmonic" else "linear", epochs=epochs)
    softening = SOFTENING_OF_T if arm.head == "student_t" else how.softening
    if protocol == "authors" and loss in ("linear", "harmonic"):
        return how
    return replace(how, tied=arm.tied, bias=arm.bias, softening=softening)
