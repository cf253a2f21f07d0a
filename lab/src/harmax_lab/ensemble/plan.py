"""What to do with an ensemble, and what comes back."""

# S runs, E epochs, K snapshots, V vocabulary, D width

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

PerRun = float | Sequence[float]
PER_RUN = ("epochs", "learning_rate", "weight_decay", "exponent")
"""Settings of a plan that may differ between runs."""
CURVES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
"""Names of a history's curves, in the order in which they are computed."""


class Rows(Protocol):
    """The data of one run: what `harmax.data.Split` has."""

    @property
    def train(self) -> np.ndarray:
        """Questions with their answers last, (N, T + 1)."""

    @property
    def test(self) -> np.ndarray:
        """The same for the test, (M, T + 1)."""

    @property
    def vocabulary(self) -> int:
        """Tokens, which are the classes too."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How runs are trained: AdamW on batches, shuffled anew every epoch, the last and smaller batch kept.

    `epochs`, `learning_rate`, `weight_decay` and `exponent` are one number for all runs, or a sequence, one a run.
    """

    epochs: int | Sequence[int]
    """How many; with one number a run, those that are done stand still until the last one is."""
    batch_size: int = 32
    learning_rate: PerRun = 2e-3
    weight_decay: PerRun = 1e-2
    exponent: PerRun | None = None
    """Replaces the exponent of a harmonic head; None keeps the one it was built with."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    penalty: float = 0.0
    """Factor of the authors' embedding penalty: the mean over dimensions of the root mean square over tokens."""
    dropout_in_tests: bool = False
    """Leave dropout on when testing, as the authors' code does."""
    snapshots: Sequence[int] = ()
    """Numbers of finished epochs after which the embedding is kept; 0 is before training."""
    evaluate: bool = True
    """Test after every epoch; without, the test's curves are NaN."""
    compile: bool | None = None
    """Whether to use torch.compile; None: where the steps are enough to pay for it."""
    split: bool = True
    """Train in several parts, one after the other, where the memory does not hold all runs; without, raise instead."""
    memory: int | None = None
    """Bytes that may be used; None: what is free."""

    def __post_init__(self) -> None:
        whole = {"epochs": 1, "batch_size": 1}
        for name, least in {**whole, "learning_rate": 0, "weight_decay": 0, "exponent": 0, "penalty": 0}.items():
            # Arrays too: a row of learning rates is likely to be numpy's linspace.
            given = getattr(self, name)
            given = given.tolist() if hasattr(given, "tolist") else given
            several = isinstance(given, Sequence)
            values = tuple(given) if several else () if given is None else (given,)
            object.__setattr__(self, name, values if several else given)
            if given is not None and not values:
                raise ValueError(f"`{name}` must be one number or one a run, got none; leave it out or fill it.")
            for value in values:
                if not (math.isfinite(value) and value >= least and (name not in whole or value == int(value))):
                    kind = "a whole number" if name in whole else "finite"
                    raise ValueError(f"`{name}` must be {kind} and at least {least}, got {value}; give such numbers.")
            if name in whole:
                # 1e4 is how one writes ten thousand epochs.
                counts = tuple(map(int, values))
                object.__setattr__(self, name, counts if several else counts[0])
        if not all(0 <= beta < 1 for beta in self.betas) or not self.epsilon > 0:
            raise ValueError(
                f"`betas` must lie in 0 .. 1, without 1, and `epsilon` above 0, got {self.betas} and {self.epsilon}."
            )
        outside = [epoch for epoch in self.snapshots if not (0 <= epoch <= self.longest and epoch == int(epoch))]
        if outside:
            raise ValueError(f"`snapshots` must be epochs from 0 to {self.longest}, got {outside[0]}; leave it out.")

    @property
    def longest(self) -> int:
        """Epochs of the run with the most of them."""
        return max(self.epochs) if isinstance(self.epochs, Sequence) else self.epochs

    def per_run(self, name: str, runs: int) -> list[float]:
        """Return one value of a setting for each run."""
        value = getattr(self, name)
        if not isinstance(value, Sequence):
            return [float(value)] * runs
        if len(value) != runs:
            raise ValueError(
                f"`{name}` must be one number or {runs}, one for each run, got {len(value)}; give one for each run."
            )
        return [float(entry) for entry in value]


@dataclass(frozen=True)
class History:
    """Curves with one value an epoch, and the embeddings kept on the way.

    After its last epoch a run that has fewer than others has NaN in its curves, and its final embedding in snapshots.
    """

    train_loss: np.ndarray
    """What is minimized, margins and pairs included (`harmax_lab.losses`): mean over the epoch's batches, each
    before its update, (S, E)."""
    train_accuracy: np.ndarray
    """Share of right answers in the same batches, (S, E)."""
    test_loss: np.ndarray
    """Cross-entropy of the logits that predict, after the epoch, (S, E)."""
    test_accuracy: np.ndarray
    """After the epoch, (S, E)."""
    snapshots: np.ndarray
    """Embeddings, (S, K, V, D); rows beyond a run's own vocabulary are 0."""
    snapshot_epochs: np.ndarray
    """Epochs that were finished when each snapshot was taken, (K,)."""
    epochs: np.ndarray
    """Epochs of each run, (S,)."""
    waste: float = 0.0
    """Share of all steps in which a run stands still, waiting for others with more rows or epochs."""
    compiled: bool = False
    seconds: float = field(default=0.0, compare=False)
    """Time of training, compilation included."""
    setup_seconds: float = field(default=0.0, compare=False)
    """Part of it spent on tracing and compiling."""

    @property
    def diverged_at(self) -> list[int | None]:
        """For each run the first of its epochs whose loss is not finite."""
        broken = ~np.isfinite(self.train_loss)
        if np.isfinite(self.test_loss).any():
            # The last step's damage shows in the test alone.
            broken |= ~np.isfinite(self.test_loss)
        broken &= np.arange(broken.shape[1]) < self.epochs[:, None]
        return [int(row.argmax()) if row.any() else None for row in broken]
