"""What a run's last embedding shows of its task's structure: the numbers behind the pictures of tokens."""

# K shown tokens, D features

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis import BestCosets, best_cosets, circle_fit, grokking_epochs, grouping, lattice_fit, tree_fit
from harmax_lab.kit.store import CellResult
from harmax_lab.paper.readings import SEVERE_EPOCHS, SEVERE_FACTOR
from harmax_lab.tasks import Structure

DRAWS = 499  # of the cosets' null
CLEAN = 0.05  # a circle is clean where one frequency leaves at most this share of all the variance


class Measure(NamedTuple):
    """A number that tells how much of a structure an embedding shows."""

    key: str
    words: str
    """What it is, after "the"."""
    low_is_good: bool = False


# The measure that a claim about a structure is judged by. All look at the whole space: what the plane hides counts.
MAIN: dict[str, Measure] = {
    "lattice": Measure("lattice residual", "share of the variance that no lattice explains", low_is_good=True),
    "circle": Measure("circle residual", "share of the variance that the best frequency leaves", low_is_good=True),
    "classes": Measure("between classes", "share of the variance that lies between classes"),
    "tree": Measure("tree distance", "rank correlation of distances with steps in the tree"),
    "group": Measure("coset silhouette", "silhouette of the best cosets"),
}
FITS: dict[str, Callable[[Structure, np.ndarray, int | None], Any]] = {
    "lattice": lambda of, points, many: lattice_fit(points, of.values, components=many),
    "circle": lambda of, points, many: circle_fit(points, of.values, int(of.values.max()) + 1, components=many),
    "classes": lambda of, points, many: grouping(points, of.values, components=many),
    "tree": lambda of, points, many: tree_fit(points, of.values, of.parents, components=many),
    "group": lambda of, points, many: cosets_of(of, points, components=many),
}
# By kind of structure: each number's name, and where it stands in the fit of the whole space or of the plane.
NUMBERS: dict[str, dict[str, str]] = {
    "lattice": {
        "lattice residual": "space.residual",
        "lattice residual (plane)": "plane.residual",
        "angle of the axes": "plane.angle",
        "ratio of the axes": "plane.length_ratio",
    },
    "circle": {
        "circle residual": "space.residual",
        "circle residual (plane)": "plane.residual",
        "roundness": "plane.roundness",
        "frequency": "space.frequency",
    },
    "classes": {
        "between classes": "space.between",
        "between classes (plane)": "plane.between",
        "silhouette": "space.silhouette",
        "within / between": "space.distance_ratio",
        "neighbor of own class": "space.purity",
        "by chance": "space.purity_by_chance",
    },
    "tree": {
        "tree distance": "space.distance_correlation",
        "tree distance (plane)": "plane.distance_correlation",
        "between generations": "space.generations",
        "depth along first component": "space.along_axis",
        "generation on a line": "plane.line",
        "nearest is sibling": "space.siblings",
        "by chance": "space.siblings_by_chance",
    },
    "group": {
        f"{name}{' (plane)' * (space == 'plane')}": f"{space}.{path}"
        for space in ("space", "plane")
        for name, path in {
            "coset silhouette": "score",
            "p": "p_value",
            "cosets of": "subgroup.name",
            "side": "side",
        }.items()
    },
}


def last_embedding(result: CellResult) -> np.ndarray | None:
    """Return the shown tokens' last embedding (K, D) in float64, or None where the run diverged."""
    return _finite(result, -1)


def snapshot(result: CellResult, epoch: int) -> np.ndarray | None:
    """Return the embedding at an epoch, or at the last stored one before it, as `last_embedding` does."""
    return _finite(result, int(np.searchsorted(result.arrays["snapshot_epoch"], epoch, side="right")) - 1)


def _finite(result: CellResult, index: int) -> np.ndarray | None:
    found = np.asarray(result.arrays["embedding"][index], dtype=np.float64)
    diverged = result.metrics.get("diverged_at") is not None or not np.isfinite(found).all()
    return None if diverged else found


def grokking(result: CellResult) -> dict[str, float]:
    """Return when a run learns and when it generalizes, how long it waits between the two, and whether it groks.

    A run learns, or generalizes, from the first of 20 epochs in a row above 0.9 on; a diverged one never does
    (infinity). One that generalizes no later than it learns waits for 0 epochs, one that never generalizes for all
    epochs of its training, the longest wait there can be. It groks, as the paper's "severe" is read, if it has learned
    and generalizes 100 epochs later or more, and twice as late or later, or never.
    """
    curves = [result.curves[f"{name}_accuracy"] for name in ("train", "test")]
    broken = result.metrics.get("diverged_at") is not None
    train, test = (np.inf if broken else float(grokking_epochs(curve[None])[0]) for curve in curves)
    learned = bool(np.isfinite(train))
    severe = learned and test >= train + SEVERE_EPOCHS and test >= SEVERE_FACTOR * train
    wait = float(len(curves[1])) if np.isinf(test) else max(test - train, 0.0)
    return {"train_epoch": train, "test_epoch": test, "wait": wait, "groks": severe}


def fit(structure: Structure, embedding_KD: np.ndarray, components: int | None = 2) -> Any:
    """Fit a structure to an embedding, along some principal components or (None) in the whole space."""
    return FITS[structure.kind](structure, embedding_KD, components)


def measure(structure: Structure, embedding_KD: np.ndarray) -> dict[str, Any]:
    """Measure how much of a structure an embedding shows; "(plane)" looks at two principal components alone."""
    fits = SimpleNamespace(space=fit(structure, embedding_KD, None), plane=fit(structure, embedding_KD))
    found = {name: attrgetter(path)(fits) for name, path in NUMBERS[structure.kind].items()}
    return found | ({"clean": found["circle residual"] <= CLEAN} if structure.kind == "circle" else {})


def cosets_of(structure: Structure, points: np.ndarray, *, components: int | None = 2) -> BestCosets:
    """Find the best cosets of a permutation embedding; asked again for the same points, it remembers."""
    found, images = np.asarray(points, dtype=np.float64), np.asarray(structure.values, dtype=np.int64)
    return _cosets(found.tobytes(), images.tobytes(), len(found), components, DRAWS)


@lru_cache(maxsize=1024)
def _cosets(points: bytes, images: bytes, count: int, components: int | None, draws: int) -> BestCosets:
    # The null is hundreds of times the work of the measure, and summary, tables and figures all ask for it.
    found, permutations = np.frombuffer(points), np.frombuffer(images, dtype=np.int64)
    return best_cosets(found.reshape(count, -1), permutations.reshape(count, -1), components=components, draws=draws)


def middle_seed(values: Mapping[int, float | None]) -> int:
    """Return the seed whose value is the median, the lower one of two; None, a diverged run, counts as the least.

    >>> middle_seed({0: 0.9, 50: None, 7: 0.4, 3: 0.8})
    7
    """
    ordered = sorted(values, key=lambda seed: (-math.inf if values[seed] is None else values[seed], seed))
    return ordered[(len(ordered) - 1) // 2]
