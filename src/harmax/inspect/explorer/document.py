"""What an explorer page is made of. `site/src/document.ts` has the same names; a test compares them."""

# T snapshots, K tokens, E edges, N test examples, V classes

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

TYPES = ("float32", "int16", "int32", "uint8")


@dataclass(frozen=True)
class Packed:
    """Numbers of one type, row by row, in base64."""

    type: str
    shape: tuple[int, ...]
    data: str


def pack(array: Any, type: str = "float32") -> Packed:
    """Return an array as numbers of one of `TYPES`, little-endian.

    >>> pack([[1, 2]], "uint8")
    Packed(type='uint8', shape=(1, 2), data='AQI=')
    """
    if type not in TYPES:
        raise ValueError(f"`type` must be one of {', '.join(TYPES)}, got {type!r}; take float32.")
    found = np.asarray(array).astype(np.dtype(type).newbyteorder("<"))
    return Packed(type, found.shape, base64.b64encode(found.tobytes()).decode())


def unpack(packed: Packed) -> np.ndarray:
    """Return the numbers of a packed array.

    >>> unpack(pack([[1.0, 2.0]]))
    array([[1., 2.]], dtype=float32)
    """
    dtype = np.dtype(packed.type).newbyteorder("<")
    return np.frombuffer(base64.b64decode(packed.data), dtype).reshape(packed.shape).astype(packed.type)


@dataclass(frozen=True)
class GrownRun:
    """One training: where its tokens are at each stored epoch, and its accuracies."""

    task: str
    task_title: str
    protocol: str
    model: str
    head: str
    """linear or harmonic."""
    seed: int
    labels: Sequence[str]
    """Names of the tokens, (K,)."""
    colors: Sequence[str]
    """Of the tokens, (K,)."""
    edges: Packed
    """Pairs of tokens to join, (E, 2)."""
    epochs: Sequence[int]
    """Epochs that were finished at each snapshot, (T,)."""
    points: Packed
    """Coordinates along three principal axes of the last snapshot, (T, K, 3), in units of `units`."""
    units: Packed
    """The unit of each snapshot, (T,)."""
    shares: Sequence[float]
    """Share of the last snapshot's variance in each of the three axes."""
    curve_epochs: Packed
    train_accuracy: Packed
    test_accuracy: Packed
    note: str = ""
    """Why there is nothing to see; empty for whole runs."""


@dataclass(frozen=True)
class Example:
    """A picture, a text or a row of a table: one of the three."""

    title: str
    picture: str = ""
    """A data address."""
    text: str = ""
    row: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Neighbor:
    """A training example near a center."""

    example: Example
    label: int
    distance: float


@dataclass(frozen=True)
class ShownExample:
    """A test example that a reader can look at."""

    place: int
    """Among all test examples."""
    example: Example
    distances: Packed
    """To every center, (V,)."""


@dataclass(frozen=True)
class ShownClassifier:
    """A classifier with a harmonic head, its centers and its decisions."""

    name: str
    source: str
    classes: Sequence[str]
    exponent: float
    softening: float
    train_count: int
    centers: Sequence[Example]
    """Pictures of the centers of a one-layer classifier; empty for others."""
    nearest: Sequence[Sequence[Neighbor]]
    """The training examples nearest to each center."""
    label: Packed
    """Classes of all test examples, (N,)."""
    winner: Packed
    runner_up: Packed
    winner_distance: Packed
    runner_up_distance: Packed
    confidence: Packed
    """Probability of the winner, (N,)."""
    examples: Sequence[ShownExample]


@dataclass(frozen=True)
class Figure:
    """A figure of an experiment."""

    name: str
    picture: str
    """A data address, or empty."""
    address: str


@dataclass(frozen=True)
class JudgedExperiment:
    """An experiment with claims."""

    name: str
    title: str
    figure: str
    """Its place in the paper."""
    address: str
    """Where its published page is."""
    command: str
    figures: Sequence[Figure]


@dataclass(frozen=True)
class JudgedResult:
    """What the published runs, or runs of a folder, say about a claim."""

    origin: str
    profile: str
    verdict: str
    sentence: str
    address: str
    """Where the runs are."""


@dataclass(frozen=True)
class JudgedClaim:
    """A claim of the paper, or a control."""

    id: str
    experiment: str
    statement: str
    rule: str
    paper: str
    places: Sequence[str]
    control: bool
    results: Sequence[JudgedResult]


@dataclass(frozen=True)
class Verdicts:
    """Every claim with its verdicts."""

    experiments: Sequence[JudgedExperiment]
    claims: Sequence[JudgedClaim]


@dataclass(frozen=True)
class CostRow:
    """One measured implementation at one shape."""

    impl: str
    place: str
    """Where it was measured, such as "NVIDIA H200, bfloat16"."""
    tokens: int
    features: int
    classes: int
    dtype: str
    ms: float
    mib: float
    """The most that a step holds at once beyond its inputs and their gradients."""
    gradients_mib: float


@dataclass(frozen=True)
class ExplorerDocument:
    """Everything that a page shows."""

    title: str
    made_by: str
    source: str
    growth: Sequence[GrownRun] = ()
    classifiers: Sequence[ShownClassifier] = ()
    verdicts: Verdicts | None = None
    costs: Sequence[CostRow] = ()
    notes: Sequence[str] = ()
    """What could not be read, in sentences for the reader."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Per view without data: why, and what to do."""


def plain(document: ExplorerDocument) -> dict[str, Any]:
    """Return a document as plain values."""
    return asdict(document)
