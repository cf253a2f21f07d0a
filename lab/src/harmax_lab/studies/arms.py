"""The losses that are compared, and how each is trained under a protocol.

Every loss has the settings that `harmax_lab.losses` names and gives a source for; only learning rate and weight
decay are searched. All are tied to the embedding but those whose weight reads classes off features that it must not
train, and none has a bias: what tying and bias do is crossed for the two that the paper compares, as arms of their own,
and harmonic loss with the paper's rule for the exponent is one more. All are trained on the protocol's batches but the
losses over pairs of rows, whose batches are larger; with as many epochs these have fewer updates.
"""

from dataclasses import dataclass, replace

from harmax.errors import unknown
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.losses import LOSSES as HEADS
from harmax_lab.losses import LossHead

SOFTENING_OF_T = 1.0  # t-SNE's kernel
PAIRS_BATCH = 256
"""Rows a batch of the losses over pairs; the same in the search and in the final runs, under both protocols.
In the protocols' 32 a row of modular addition has one other of its class on average, and a third of the rows have none.
With those a supervised contrastive MLP stays collapsed for 6000 updates at rates from 2e-3 to 3.2e-2; with 256 it has a
test accuracy above 0.9 after 1500 from 8e-3 on. Transformers there stay collapsed for 3000 updates with either."""
PAPERS_RULE = 4.0
"""Exponent of the paper's rule, the square root of the width; its code has 2 for these tasks."""


@dataclass(frozen=True)
class Arm:
    """One loss with its tying and bias."""

    head: str
    """A name in `LOSSES`."""
    label: str
    tied: bool = True
    bias: bool = False
    options: tuple[tuple[str, float], ...] = ()
    """What the head is built with in place of its defaults."""
    exponent: float | None = None
    """In place of the protocol's."""


ARMS: dict[str, Arm] = {
    "harmonic": Arm("harmonic", "harmonic"),
    "linear": Arm("linear", "cross-entropy"),
    "l2": Arm("l2", "distance, softmax"),
    "gaussian": Arm("gaussian", "Gaussian prototypes", options=(("precision", 2.0),)),  # the squared distance itself
    "student_t": Arm("student_t", "Student-t"),
    "spherical": Arm("spherical", "spherical softmax"),
    "stablemax": Arm("stablemax", "StableMax"),
    "large_margin": Arm("large_margin", "large-margin softmax"),
    "normface": Arm("normface", "NormFace"),
    "cosface": Arm("cosface", "CosFace"),
    "arcface": Arm("arcface", "ArcFace"),
    "isomax_plus": Arm("isomax_plus", "IsoMax+"),
    "dismax": Arm("dismax", "DisMax"),
    "center": Arm("center", "center loss"),
    "supcon": Arm("supcon", "supervised contrastive", tied=False),
    "infonce": Arm("infonce", "InfoNCE", tied=False),
    "contrastive": Arm("contrastive", "contrastive, margin", tied=False),
    "linear_bias": Arm("linear", "cross-entropy, bias", bias=True),
    "linear_untied": Arm("linear", "cross-entropy, untied", tied=False),
    "linear_untied_bias": Arm("linear", "cross-entropy, untied, bias", tied=False, bias=True),
    "harmonic_untied": Arm("harmonic", "harmonic, untied", tied=False),
    "harmonic_root": Arm("harmonic", f"harmonic, exponent {PAPERS_RULE:g}", exponent=PAPERS_RULE),
}
VARIANTS = ("linear_bias", "linear_untied", "linear_untied_bias", "harmonic_untied", "harmonic_root")
"""Tying, bias and exponent of the paper's two; not rivals, and left out where losses are ranked."""
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
    "infonce",
    "contrastive",
)
"""What the paper's appendix compares, in kind; these run under the authors' protocol too."""
DIRECTIONS = frozenset({"normface", "cosface", "arcface", "isomax_plus", "dismax"})
"""Heads that see the direction of their weight's rows alone: the length of a row is no part of what the loss shapes."""


@dataclass(frozen=True)
class RivalCell(RunCell):
    """One model trained with one arm, a key of `ARMS`."""

    loss: str


def find_arm(name: str) -> Arm:
    """Return the arm of that name, or say which names are near."""
    if name not in ARMS:
        raise ValueError(unknown("loss", name, ARMS))
    return ARMS[name]


def reads_out(name: str) -> bool:
    """Whether an arm's loss is over pairs of rows, and its weight only reads classes off features it does not train.

    >>> reads_out("supcon"), reads_out("linear_untied")
    (True, False)
    """
    head = HEADS[find_arm(name).head]
    return issubclass(head, LossHead) and head.reads_out


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
    return replace(
        how,
        tied=arm.tied,
        bias=arm.bias,
        exponent=how.exponent if arm.exponent is None else arm.exponent,
        softening=softening,
        batch_size=PAIRS_BATCH if reads_out(loss) else how.batch_size,
        options=arm.options,
    )
