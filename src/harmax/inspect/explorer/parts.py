"""What a source gives to a page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harmax.inspect.classifiers import ClassifierWithImages, open_classifier
from harmax.inspect.explorer.document import GrownRun, ShownClassifier, Verdicts


@dataclass(frozen=True)
class ExplorerOptions:
    """What a reader asked for."""

    seeds: int = 3
    """At most this many seeds per model."""
    neighbors: int = 5
    examples: int = 120
    pictures: bool = True
    """Whether to put figures of published results into the page."""
    clouds: bool = False
    """Whether point clouds are wanted too."""
    open_classifier: Callable[[Path], ClassifierWithImages] = open_classifier
    """Opens the image classifier of a folder, with the images that the reader asked for."""


@dataclass(frozen=True, eq=False)
class Cloud:
    """Many points with columns of texts or numbers, for programs that show large point clouds."""

    name: str
    points: np.ndarray
    """(N, D)"""
    columns: dict[str, Sequence[object]]
    """Each of N values."""


@dataclass(frozen=True, eq=False)
class ExplorerParts:
    """The parts of a page that one source has."""

    growth: tuple[GrownRun, ...] = ()
    classifiers: tuple[ShownClassifier, ...] = ()
    verdicts: Verdicts | None = None
    clouds: tuple[Cloud, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What is damaged or left out, in sentences."""
