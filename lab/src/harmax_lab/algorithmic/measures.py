"""What a run's last embedding shows of its task's structure: the numbers behind the pictures of tokens."""

# K shown tokens, D features

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from harmax.analysis import (
    BestCosets,
    CircleFit,
    PairedDifference,
    best_cosets,
    circle_fit,
    explained_variance,
    grouping,
    lattice_fit,
    paired_difference,
    participation_ratio,
    tree_fit,
)
from harmax_lab.kit.store import CellResult
from harmax_lab.tasks import Structure

DRAWS = 499  # of the cosets' null
CLEAN = 0.05  # a circle is clean where one frequency leaves at most this share of all the variance


@dataclass(frozen=True)
class Measure:
    """A number that tells how much of a structure an embedding shows."""

    key: str
    words: str
    """What it is, after "the"."""
    low_is_good: bool = False

    @property
    def worst(self) -> float:
        """What a diverged run counts as."""
        return math.inf if self.low_is_good else -math.inf


# The measure that a claim about a structure is judged by. All look at the whole space: what the plane hides counts.
MAIN: dict[str, Measure] = {
    "lattice": Measure("lattice residual", "share of the variance that no lattice explains", low_is_good=True),
    "circle": Measure("circle residual", "share of the variance that the best frequency leaves", low_is_good=True),
    "classes": Measure("between classes", "share of the variance that lies between classes"),
    "tree": Measure("tree distance", "rank correlation of distances with steps in the tree"),
    "group": Measure("coset silhouette", "silhouette of the best cosets"),
}


def last_embedding(result: CellResult) -> np.ndarray | None:
    """Return the shown tokens' last embedding (K, D) in float64, or None where the run diverged."""
    found = np.asarray(result.arrays["embedding"][-1], dtype=np.float64)
    diverged = result.metrics.get("diverged_at") is not None or not np.isfinite(found).all()
    return None if diverged else found


def shape(embedding_KD: np.ndarray) -> dict[str, float]:
    """Measure what every embedding has."""
    return {
        "explained variance": explained_variance(embedding_KD),
        "participation ratio": participation_ratio(embedding_KD),
    }


def measure(structure: Structure, embedding_KD: np.ndarray) -> dict[str, Any]:
    """Measure how much of a structure an embedding shows; "(plane)" looks at two principal components alone."""
    return MEASURES[structure.kind](structure, embedding_KD)


def _lattice(structure: Structure, points: np.ndarray) -> dict[str, Any]:
    space, plane = (lattice_fit(points, structure.values, components=many) for many in (None, 2))
    return {
        "lattice residual": space.residual,
        "lattice residual (plane)": plane.residual,
        "angle of the axes": plane.angle,
        "ratio of the axes": plane.length_ratio,
    }


def _circle(structure: Structure, points: np.ndarray) -> dict[str, Any]:
    space, plane = circles_of(structure, points)
    return {
        "circle residual": space.residual,
        "circle residual (plane)": plane.residual,
        "roundness": plane.roundness,
        "frequency": space.frequency,
        "clean": space.residual <= CLEAN,
    }


def circles_of(structure: Structure, points: np.ndarray) -> tuple[CircleFit, CircleFit]:
    """Fit a circle to residues, in the whole space and in the plane."""
    residues = structure.values
    space, plane = (circle_fit(points, residues, int(residues.max()) + 1, components=many) for many in (None, 2))
    return space, plane


def _classes(structure: Structure, points: np.ndarray) -> dict[str, Any]:
    space, plane = (grouping(points, structure.values, components=many) for many in (None, 2))
    return {
        "between classes": space.between,
        "between classes (plane)": plane.between,
        "silhouette": space.silhouette,
        "within / between": space.distance_ratio,
        "neighbor of own class": space.purity,
        "by chance": space.purity_by_chance,
    }


def _tree(structure: Structure, points: np.ndarray) -> dict[str, Any]:
    space, plane = (tree_fit(points, structure.values, structure.parents, components=many) for many in (None, 2))
    return {
        "tree distance": space.distance_correlation,
        "tree distance (plane)": plane.distance_correlation,
        "between generations": space.generations,
        "depth along first component": space.along_axis,
        "generation on a line": plane.line,
        "nearest is sibling": space.siblings,
        "by chance": space.siblings_by_chance,
    }


def _group(structure: Structure, points: np.ndarray) -> dict[str, Any]:
    space, plane = (cosets_of(structure, points, components=many) for many in (None, 2))
    return {
        "coset silhouette": space.score,
        "p": space.p_value,
        "cosets of": space.subgroup.name,
        "side": space.side,
        "coset silhouette (plane)": plane.score,
        "p (plane)": plane.p_value,
        "cosets of (plane)": plane.subgroup.name,
        "side (plane)": plane.side,
    }


MEASURES = {"lattice": _lattice, "circle": _circle, "classes": _classes, "tree": _tree, "group": _group}


def cosets_of(structure: Structure, points: np.ndarray, *, components: int | None = 2) -> BestCosets:
    """Find the best cosets of a permutation embedding; asked again for the same points, it remembers."""
    found = np.ascontiguousarray(points, dtype=np.float64)
    images = np.ascontiguousarray(structure.values, dtype=np.int64)
    return _cosets(found.tobytes(), found.shape, images.tobytes(), images.shape, components, DRAWS)


@lru_cache(maxsize=1024)
def _cosets(
    points: bytes, shape: tuple[int, ...], images: bytes, degree: tuple[int, ...], components: int | None, draws: int
) -> BestCosets:
    # The null is hundreds of times the work of the measure, and summary, tables and figures all ask for it.
    return best_cosets(
        np.frombuffer(points).reshape(shape),
        np.frombuffer(images, dtype=np.int64).reshape(degree),
        components=components,
        draws=draws,
    )


def compare(
    measure: Measure, ours: Sequence[float | None], theirs: Sequence[float | None], *, level: float = 0.95
) -> PairedDifference:
    """Compare two arms by a measure, seed by seed: how much better is the first? None, a diverged run, is the worst."""
    sign = -1 if measure.low_is_good else 1
    first, second = ([sign * (measure.worst if one is None else one) for one in arm] for arm in (ours, theirs))
    return paired_difference(first, second, level=level)


def shared_level(tasks: int) -> float:
    """Return the level of each of some intervals that together keep 95 %.

    >>> round(shared_level(5), 6)
    0.99
    """
    return 1 - 0.05 / tasks


def pairs_of(difference: PairedDifference) -> int:
    """Return how many seeds a comparison rests on."""
    return difference.greater + difference.less + difference.ties


def yes_or_no(answer: bool) -> str:
    """Write an answer for a table."""
    return "yes" if answer else "no"


def decided(difference: PairedDifference) -> bool | None:
    """Whether the first arm is better: yes or no where the interval keeps clear of 0, None where it does not."""
    return difference.difference.above(0)


def middle_seed(values: Mapping[int, float | None]) -> int:
    """Return the seed whose value is the median, the lower one of two; None, a diverged run, counts as the least.

    >>> middle_seed({0: 0.9, 50: None, 7: 0.4, 3: 0.8})
    7
    """
    ordered = sorted(values, key=lambda seed: (-math.inf if values[seed] is None else values[seed], seed))
    return ordered[(len(ordered) - 1) // 2]
