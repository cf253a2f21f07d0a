"""Settings of the case study of modular addition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harmax.errors import unknown
from harmax_lab.kit.experiment import Spec
from harmax_lab.kit.variants import added
from harmax_lab.tasks import PROTOCOLS, sized

TASK, TRAIN_FRACTION, MODULUS, EXPONENT = "modular_addition", 0.8, 31, 2.0
AUTHORS_EPOCHS = 2000
WIDTH, HIDDEN = 16, 100


@dataclass(frozen=True, kw_only=True)
class CaseSpec(Spec):
    """Settings of the case study; the defaults are the authors'."""

    protocols: tuple[str, ...] = PROTOCOLS
    epochs: int = AUTHORS_EPOCHS
    learning_rate: float = 1e-3
    snapshots: int = 24
    modulus: int = added(MODULUS)
    train_fraction: float = added(TRAIN_FRACTION)
    exponent: float = added(EXPONENT)
    """Of the distance, in the harmonic model."""
    width: int = added(WIDTH)
    """Of the embedding."""
    hidden: int = added(HIDDEN)
    """Units of the hidden layer."""

    def __post_init__(self) -> None:
        for protocol in self.protocols:
            if protocol not in PROTOCOLS:
                raise ValueError(unknown("protocols", protocol, PROTOCOLS))

    @property
    def task(self) -> str:
        """The task, whose name says the modulus where it is not the authors'."""
        return TASK if self.modulus == MODULUS else sized(TASK, modulus=self.modulus)

    def short_of(self, cells: Sequence[Any]) -> str:
        """Say that the runs are shorter than the authors'."""
        short = self.epochs < AUTHORS_EPOCHS
        return f"Only {self.epochs} of the authors' {AUTHORS_EPOCHS} epochs were run." if short else ""
