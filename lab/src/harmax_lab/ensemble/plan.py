"""`Plan`: how to train an ensemble. `History`: what training returns."""

# S runs, E epochs, K snapshots, V vocabulary, D width

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PerRun = float | Sequence[float]
PER_RUN = ("epochs", "learning_rate", "weight_decay", "exponent")
"""Settings of a plan that may differ between runs."""
CURVES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
"""Names of the curves of a history, in the order in which they are computed."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to train: AdamW on batches that are shuffled in every epoch. The last batch may be smaller.

    `epochs`, `learning_rate`, `weight_decay` and `exponent` are one number for all runs, or a sequence with one number
    per run.
    """

    epochs: int | Sequence[int]
    """Runs with fewer epochs stop earlier and wait for the others."""
    batch_size: int = 32
    learning_rate: PerRun = 2e-3
    weight_decay: PerRun = 1e-2
    exponent: PerRun | None = None
    """Replaces the exponent of a harmonic head; None keeps it."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    penalty: float = 0.0
    """Factor of the authors' embedding penalty: the mean over dimensions of the root mean square over tokens."""
    exact: bool = False
    """Whether to train with `harmax_lab.losses.base.exact_cross_entropy`. It matters once the loss is below 1e-6."""
    dropout_in_tests: bool = False
    """Whether dropout stays on in tests, as in the authors' code."""
    snapshots: Sequence[int] = ()
    """The embedding is kept after these numbers of epochs; 0 is before training."""
    evaluate: bool = True
    """Whether to test after every epoch. If not, the test's curves are NaN."""
    compile: bool | None = None
    """Whether to use torch.compile; None: if there are enough steps to make it worthwhile."""
    split: bool = True
    """Whether to train in several parts, one after the other, if not all runs fit into memory. False: raise then."""
    memory: int | None = None
    """Bytes that may be used; None: all that are free."""

    def __post_init__(self) -> None:
        least = {"epochs": 1, "batch_size": 1, "learning_rate": 0, "weight_decay": 0, "exponent": 0, "penalty": 0}
        for name, bound in least.items():
            object.__setattr__(self, name, _checked(name, getattr(self, name), bound, whole=bound == 1))
        exponents = self.exponent if isinstance(self.exponent, Sequence) else [self.exponent]
        if 0 in exponents:
            raise ValueError(
                "`exponent` must be above 0, got 0; with exponent 0 all classes are equally probable, wherever the "
                "centers lie."
            )
        if not all(0 <= beta < 1 for beta in self.betas) or not self.epsilon > 0:
            raise ValueError(
                f"`betas` must be at least 0 and below 1, and `epsilon` above 0, got {self.betas} and {self.epsilon}."
            )
        outside = [epoch for epoch in self.snapshots if not (0 <= epoch <= self.longest and epoch == int(epoch))]
        if outside:
            raise ValueError(f"`snapshots` must be epochs from 0 to {self.longest}, got {outside[0]}; leave it out.")

    @property
    def longest(self) -> int:
        """The largest number of epochs of a run."""
        return max(self.epochs) if isinstance(self.epochs, Sequence) else self.epochs

    def per_run(self, name: str, runs: int) -> list[float]:
        """Return the values of a setting, one per run."""
        value = getattr(self, name)
        if not isinstance(value, Sequence):
            return [float(value)] * runs
        if len(value) != runs:
            raise ValueError(f"`{name}` must be one number or {runs}, one per run, got {len(value)}; give one per run.")
        return [float(entry) for entry in value]


def _checked(name: str, given: Any, least: int, *, whole: bool) -> Any:
    """Return a setting: a number, or a tuple with a number per run; raise ValueError if a number is out of range."""
    given = given.tolist() if hasattr(given, "tolist") else given  # numpy's linspace, for example
    several = isinstance(given, Sequence)
    values = tuple(given) if several else () if given is None else (given,)
    if given is not None and not values:
        raise ValueError(f"`{name}` must be one number or one per run, got none; leave it out or fill it.")
    for value in values:
        if not (math.isfinite(value) and value >= least and (not whole or value == int(value))):
            kind = "a whole number" if whole else "finite"
            raise ValueError(f"`{name}` must be {kind} and at least {least}, got {value}; give such numbers.")
    if whole:
        values = tuple(map(int, values))  # people write 1e4 for ten thousand epochs
    return values if several else next(iter(values), None)


@dataclass(frozen=True)
class History:
    """Curves with one value per epoch, and snapshots of the embeddings.

    After the last epoch of a run its curves are NaN, and its snapshots show the final embedding.
    """

    train_loss: np.ndarray
    """What is minimized, including margins and pairs (`harmax_lab.losses`): the mean over the batches of an epoch, each
    before its update, (S, E)."""
    train_accuracy: np.ndarray
    """Share of right answers in these batches, (S, E)."""
    test_loss: np.ndarray
    """Cross-entropy of the predictions after the epoch, (S, E)."""
    test_accuracy: np.ndarray
    """After the epoch, (S, E)."""
    snapshots: np.ndarray
    """Embeddings, (S, K, V, D). Rows beyond the vocabulary of a run are 0."""
    snapshot_epochs: np.ndarray
    """Number of finished epochs at each snapshot, (K,)."""
    epochs: np.ndarray
    """Epochs of each run, (S,)."""
    waste: float = 0.0
    """Share of all steps in which a run waits for others with more rows or epochs."""
    compiled: bool = False
    seconds: float = field(default=0.0, compare=False)
    """Time of training and compilation."""
    setup_seconds: float = field(default=0.0, compare=False)
    """The part of it that was spent on tracing and compiling."""

    @property
    def diverged_at(self) -> list[int | None]:
        """For each run the first epoch whose loss is not finite, or None."""
        broken = ~np.isfinite(self.train_loss)
        if np.isfinite(self.test_loss).any():
            # If the last step diverges, only the test shows it.
            broken |= ~np.isfinite(self.test_loss)
        broken &= np.arange(broken.shape[1]) < self.epochs[:, None]
        return [int(row.argmax()) if row.any() else None for row in broken]
