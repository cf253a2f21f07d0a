"""What one run of a study is judged by: three scores, of which 1 is the best, and two epochs.

- accuracy: on the test rows, averaged over the last tenth of the epochs;
- variance: the share of the embedding's variance in two components;
- structure: how much of its task's structure the embedding shows (`measures.MAIN`; a residual counts as 1 minus it).

`plane` is the structure in the plane of two components alone, as a picture shows it.

Variance and structure look at rows as the head does: at length one where it sees directions alone (`DIRECTIONS`);
`structure_raw` is the structure of the rows as they are. `center_structure` is that of the head's own weight, where the
weight is not the embedding. A diverged run has 0 in all three. An embedding whose rows are all the same has 0 in
variance and structure. A score of 0 is not the least possible: a rank correlation (genealogy) and a silhouette
(permutation) can be negative. The epochs are the first at which a run has learned, and the first at which it
generalizes; never counts as infinity.
"""

# K shown tokens, D features

from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from harmax.analysis import best_cosets, explained_variance, grokking_epoch
from harmax_lab.algorithmic.measures import MAIN, last_embedding, measure
from harmax_lab.algorithmic.training import RunCell, task_of
from harmax_lab.kit import drawing
from harmax_lab.kit.store import CellResult
from harmax_lab.tasks import Structure

SCORES = {"structure": "structure", "variance": "variance in two components", "accuracy": "late test accuracy"}
DIRECTIONS = frozenset({"normface", "cosface", "arcface", "isomax_plus", "dismax"})
"""Heads that see only the direction of their weight's rows: the loss does not shape the length of a row."""
POINTS_KEPT = 64  # of a learning curve
WINDOW = 20  # epochs in a row above 0.9
LATE = 0.1
"""Share of the training that counts as its end, in the search and in scores, so that one bad epoch does not decide."""
SAME = 1e-6  # of the greatest entry: rows that differ by less, in all features, are the same in float32

C = TypeVar("C", bound=RunCell)


def compact(cells: Iterable[tuple[C, CellResult]]) -> Iterable[tuple[C, CellResult]]:
    """Score runs as they come, and keep of each the scores, the last embedding and a curve of few points."""
    for cell, result in cells:
        # The share of steps that a run waited depends on the runs it was stacked with: it is a cost, not a result.
        metrics = {name: value for name, value in result.metrics.items() if name != "waste"}
        kept = drawing.spaced(len(result.curves["test_accuracy"]), POINTS_KEPT)
        curves = {name: result.curves[name][kept] for name in ("train_accuracy", "test_accuracy")}
        last = {name: array[-1:] for name, array in result.arrays.items()}
        yield cell, CellResult({"epoch": kept.astype(np.int64), **curves}, last, {**metrics, **scores_of(cell, result)})


def scores_of(cell: RunCell, result: CellResult) -> dict[str, float | None]:
    """Return the scores and epochs of a run whose curves are whole."""
    embedding = last_embedding(result)
    if embedding is None:
        zeros = dict.fromkeys((*SCORES, "structure_raw", "plane"), 0.0)
        return {**zeros, "center_structure": None, "train_epoch": None, "test_epoch": None}
    structure = task_of(cell).structure
    seen = as_seen(cell.head, embedding)
    score = structure_score(structure, seen)
    centers = result.arrays.get("centers")
    return {
        "structure": score,
        "variance": 0.0 if is_constant(seen) else explained_variance(seen),
        "accuracy": mean_accuracy(result.curves["test_accuracy"], LATE),
        "plane": structure_score(structure, seen, plane=True),
        "structure_raw": score if seen is embedding else structure_score(structure, embedding),
        "center_structure": None if centers is None else structure_score(structure, as_seen(cell.head, centers[-1])),
        "train_epoch": grokking_epoch(result.curves["train_accuracy"], window=WINDOW),
        "test_epoch": grokking_epoch(result.curves["test_accuracy"], window=WINDOW),
    }


def mean_accuracy(curve: np.ndarray, share: float) -> float:
    """Return the mean over the last share of a curve, one epoch at least.

    >>> mean_accuracy(np.array([0.0, 0.2, 0.8, 1.0]), 0.5)
    0.9
    """
    return float(np.mean(curve[-max(1, round(share * len(curve))) :], dtype=np.float64))


def as_seen(head: str, rows_KD: np.ndarray) -> np.ndarray:
    """Return rows in float64 as a head sees them: divided by their length where it sees directions alone."""
    rows_KD = np.asarray(rows_KD, dtype=np.float64)
    if head not in DIRECTIONS:
        return rows_KD
    length_K1 = np.linalg.norm(rows_KD, axis=1, keepdims=True)
    return rows_KD / np.where(length_K1 == 0, 1.0, length_K1)


def is_constant(rows_KD: np.ndarray) -> bool:
    """Whether all rows are the same, up to what float32 can tell apart."""
    return bool(np.ptp(rows_KD, axis=0).max() <= SAME * np.abs(rows_KD).max())


def structure_score(structure: Structure, embedding_KD: np.ndarray, *, plane: bool = False) -> float:
    """Return how much of a task's structure an embedding shows, 1 being all of it; 0 where all rows are the same.

    With `plane` it looks at two principal components alone.
    """
    if is_constant(embedding_KD):
        return 0.0
    main = MAIN[structure.kind]
    if structure.kind == "group":
        # Without the null, which a score does not need and which takes hundreds of times as long.
        return best_cosets(embedding_KD, structure.values, components=2 if plane else None, draws=0).score
    value = float(measure(structure, embedding_KD)[f"{main.key}{' (plane)' * plane}"])
    return 1 - value if main.low_is_good else value
