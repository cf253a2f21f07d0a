"""What a task is, how its rows are drawn and split, and what leaks from one side of the split to the other.

Protocol `authors` draws facts with replacement, as the published code does, so that test rows are often train rows too;
`matched` draws distinct facts, so that none is.
"""

# N rows, F facts, T question tokens (a row is T tokens and the answer), K shown tokens

import zlib
from collections import Counter
from dataclasses import dataclass
from numbers import Real

import numpy as np

from harmax.errors import unknown, whole_number

PROTOCOLS = ("authors", "matched")


@dataclass(frozen=True, eq=False)
class Structure:
    """What the shown tokens mean, in their order: what a perfect picture of them would look like."""

    kind: str
    """One of lattice, circle, classes, tree, group."""
    values: np.ndarray
    """Coordinates (K, dimension), residues (K,), classes (K,), depths (K,), or permutations (K, degree) as images."""
    parents: np.ndarray | None = None
    """Of a tree only: the parent's place among the shown tokens (K,), -1 for the root."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """All questions of one task under one protocol; questions and answers share one vocabulary."""

    name: str
    title: str
    protocol: str
    vocabulary: int
    facts: np.ndarray
    """Every distinct question with its answer last, (F, T + 1) int64."""
    shown: np.ndarray
    """The tokens that are looked at after training, (K,) int64: neither answers like "yes" nor relations."""
    labels: tuple[str, ...]
    """Short names of the shown tokens."""
    structure: Structure
    exhaustive: bool = False
    """Whether a data set is every fact once, under either protocol and however many samples are asked for."""

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(unknown("protocol", self.protocol, PROTOCOLS))

    @property
    def inputs(self) -> int:
        """Tokens of a question, T."""
        return self.facts.shape[1] - 1

    def sample(self, seed: int, *, samples: int = 1000) -> np.ndarray:
        """Draw the rows of a data set, (N, T + 1): with replacement (`authors`), or distinct and at most `samples`."""
        samples = whole_number("samples", samples, least=2)
        if self.exhaustive:
            return self.facts.copy()
        generator = self.generator(seed, "rows")
        if self.protocol == "authors":
            return self.facts[generator.integers(len(self.facts), size=samples)]
        return self.facts[generator.permutation(len(self.facts))[:samples]]

    def generator(self, seed: int, purpose: str) -> np.random.Generator:
        """Return random numbers of their own for each seed, task, protocol and purpose."""
        # crc32, because Python's own hash of a text differs from process to process.
        key = zlib.crc32(f"{self.name} {self.protocol} {purpose}".encode())
        return np.random.default_rng([whole_number("seed", seed, least=0), key])


@dataclass(frozen=True, eq=False)
class Split:
    """The two sides of a data set; a row is the question's tokens and the answer, int64."""

    train: np.ndarray
    test: np.ndarray
    vocabulary: int
    inputs: int


def make_split(task: Task, seed: int, *, train_fraction: float = 0.8, samples: int = 1000) -> Split:
    """Draw a task's rows and cut them in two; of one seed, a smaller train side is part of every larger one.

    >>> from harmax_lab.tasks import find_task
    >>> split = make_split(find_task("permutation"), seed=0)
    >>> split.train.shape, split.test.shape
    ((460, 3), (116, 3))
    """
    if not isinstance(train_fraction, Real):
        raise TypeError(f"`train_fraction` must be a number, got {train_fraction!r}; pass a float.")
    if not 0 < train_fraction < 1:
        raise ValueError(
            f"`train_fraction` must lie between 0 and 1, got {train_fraction}; it is the share of rows to train on."
        )
    rows = task.sample(seed, samples=samples)
    cut = int(len(rows) * train_fraction)  # below 1, so a test row is always left
    if cut == 0:
        raise ValueError(
            f"`train_fraction` must leave a train row of {len(rows)}, got {train_fraction}; "
            f"take at least {1 / len(rows):.2g}."
        )
    order = task.generator(seed, "split").permutation(len(rows))
    return Split(rows[order[:cut]], rows[order[cut:]], task.vocabulary, task.inputs)


@dataclass(frozen=True)
class Audit:
    """How clean a split is."""

    train_rows: int
    test_rows: int
    train_facts: int
    """Distinct rows of the train side."""
    test_facts: int
    """Distinct rows of the test side."""
    leak: float
    """Share of the test rows that are train rows too."""
    contradictions: int
    """Questions with more than one answer, on one side or across."""

    def __str__(self) -> str:
        return (
            f"train: {self.train_rows} rows, {self.train_facts} distinct; test: {self.test_rows} rows, "
            f"{self.test_facts} distinct, {self.leak:.1%} of the rows also in train; "
            f"contradictions: {self.contradictions}"
        )


def audit(split: Split) -> Audit:
    """Count what the two sides of a split repeat, share and contradict.

    >>> train, test = np.array([[0, 1, 1], [1, 1, 2], [1, 1, 2]]), np.array([[1, 1, 2], [0, 1, 0]])
    >>> print(audit(Split(train, test, vocabulary=3, inputs=2)))
    train: 3 rows, 2 distinct; test: 2 rows, 2 distinct, 50.0% of the rows also in train; contradictions: 1
    """
    train, test = ([tuple(row) for row in side.tolist()] for side in (split.train, split.test))
    learned, asked = set(train), set(test)
    answers = Counter(row[:-1] for row in learned | asked)
    return Audit(
        train_rows=len(train),
        test_rows=len(test),
        train_facts=len(learned),
        test_facts=len(asked),
        leak=sum(row in learned for row in test) / max(len(test), 1),
        contradictions=sum(count > 1 for count in answers.values()),
    )
