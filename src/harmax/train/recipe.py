"""What the training loop has to know about a task: its data, its model, one update, one evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from harmax.train.world import RunSpec, World


class NonFiniteError(FloatingPointError):
    """A loss, a gradient or a weight is not a finite number; the message names it and its step."""


class Step(Protocol):
    """A model with its optimizer, as a checkpoint sees them."""

    def tensors(self) -> dict[str, Tensor]:
        """Return views of everything that training changes, the same on every process."""

    def take(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `tensors` returned, after a checkpoint has been read into it; nothing to do for views."""

    def make_moments(self, step: int) -> None:
        """Give the optimizer the state that it has after `step` updates, filled with zeros."""


class Recipe(ABC):
    """One run of one task. `resume` calls `open_data` and `build`, then the loop calls the rest.

    Attributes:
        spec: what to train.
        world: the processes that train it.
        steps: updates of the whole run, after `open_data`.
        units: tokens or images of a step, over all processes.
        evaluate_every: steps between evaluations, after `open_data`; 0: only at the end.
        step: the model with its optimizer, after `build`.
        model: the model alone.
    """

    task: ClassVar[str]
    """Name of the task in checkpoints."""
    alterable: ClassVar[tuple[str, ...]]
    """Fields of the specification that --change-schedule may alter when resuming."""
    meant_before: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Fields of the specification that older checkpoints do not have, with what these checkpoints meant."""
    logs_checkpoints: ClassVar[bool]
    """Whether every checkpoint comes with a line of metrics."""

    spec: RunSpec
    world: World
    steps: int
    units: int
    evaluate_every: int
    step: Step
    model: nn.Module
    position: dict[str, Any]
    """Where the run is in its data, and its sums since the last line of metrics, as plain values for a checkpoint."""

    @abstractmethod
    def open_data(self, output: Path) -> dict[str, str]:
        """Open the data and return a checksum per split; generated data may lie in the output folder."""

    @abstractmethod
    def verify_data(self) -> None:
        """Raise DamagedError where the bytes on the disk are not those that `open_data` gave checksums of."""

    @abstractmethod
    def build(self) -> None:
        """Build the model and its optimizer."""

    @abstractmethod
    def start(self, position: dict[str, Any] | None) -> None:
        """Prepare the next step: the first one, or the one after a checkpoint with this `position`."""

    @abstractmethod
    def update(self, step: int) -> float:
        """Take a step, counted from 1, without waiting for the device; return its learning rate."""

    @abstractmethod
    def gather(self, wants_stop: bool) -> bool:
        """Add up over all processes what steps have measured; return whether a process wants to stop.

        Raises NonFiniteError.
        """

    @abstractmethod
    def measured(self, speed: float) -> dict[str, Any]:
        """Return what `gather` found, and the speed in units per second, for a line of metrics; start new sums."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Measure the model on held-out data; raise NonFiniteError where training should not continue."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """Return the trained weights in main memory; every process must call this."""

    @abstractmethod
    def write_model(self, weights: dict[str, Tensor], folder: Path) -> None:
        """Write a folder that transformers loads."""

    def cautions(self, output: Path) -> Iterable[str]:
        """Return what is allowed and probably not intended, one sentence each."""
        return ()
