"""What the experiment `trust` is told: its settings, its arms, and a cell."""

import math
from dataclasses import dataclass

from harmax.figures import HEAD_STYLES
from harmax_lab.kit.experiment import Cell, Spec
from harmax_lab.vision.one_layer import BIASED, HARMONIC, STANDARD
from harmax_lab.vision.stacks import Arm

LAYER, MLP = BODIES = ("layer", "mlp")
BODY_TITLES = {LAYER: "one layer", MLP: "hidden layer"}
TRANSFORMS = ("rotated", "noise", "permuted")
JUDGED = (HARMONIC, 2.0), (STANDARD, 0.0)
"""Head and factor of the two arms that the claims compare; no bias in either, and the exponent of the authors' code."""


@dataclass(frozen=True, kw_only=True)
class TrustSpec(Spec):
    """Settings of classifiers whose answers are asked how sure they are."""

    datasets: tuple[str, ...] = ("digits",)
    """The known images, then sets of the same size that are outside them, as far as their files are there."""
    absent: tuple[str, ...] = ()
    """Outside sets whose files were not there when the run was begun."""
    factors: tuple[float, ...] = (1.0, 2.0)
    """Of the harmonic exponents, times sqrt(features): the paper's rule, and the authors' code."""
    hidden: int = 256
    """Units of the hidden layer."""
    layer_steps: int = 6450
    """Steps of the one-layer classifiers: 15 passes over MNIST."""
    mlp_steps: int = 3440
    """Steps of those with a hidden layer: 8 passes."""
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    """AdamW's, torch's default."""
    held_out: int = 5000
    """Training images that each seed does not learn from: its temperature is fitted on them."""

    @property
    def known(self) -> str:
        """The data set that is learned."""
        return self.datasets[0]

    @property
    def outside(self) -> tuple[str, ...]:
        """Names of the outside sets: other data sets, then what is made of the known test images."""
        return self.datasets[1:] + TRANSFORMS

    @property
    def arms(self) -> tuple[tuple[str, float], ...]:
        """Head and factor of every arm, harmonic ones first."""
        return (*((HARMONIC, factor) for factor in self.factors), (STANDARD, 0.0), (BIASED, 0.0))

    def stacked(self, features: int) -> list[Arm]:
        """Return the arms with their exponents."""
        return [Arm(head, factor * math.sqrt(features)) for head, factor in self.arms]


@dataclass(frozen=True)
class TrustCell(Cell):
    """One network: its body, its head with the exponent over sqrt(features), and its seed."""

    dataset: str
    body: str
    head: str
    factor: float
    seed: int


def cells(spec: TrustSpec) -> list[TrustCell]:
    """List every body, arm and seed."""
    return [
        TrustCell(spec.known, body, head, factor, seed)
        for body in BODIES
        for head, factor in spec.arms
        for seed in spec.seeds
    ]


def arm_label(head: str, factor: float) -> str:
    """Return how an arm is called: the exponent depends on the features, so it is told as a rule.

    >>> arm_label("harmonic", 2.0), arm_label("cross_entropy", 0.0)
    ('harmonic, exponent 2 √D', 'cross-entropy')
    """
    times = "" if factor == 1 else f"{factor:g} "
    return f"{HEAD_STYLES[head].label}, exponent {times}√D" if head == HARMONIC else HEAD_STYLES[head].label
