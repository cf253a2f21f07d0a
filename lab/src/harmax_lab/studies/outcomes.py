"""What one run of a study is judged by, and how arms are compared: within a seed first, over seeds then.

A run has three scores, of which 1 is the best: its accuracy on the test rows, averaged over the last tenth of its
epochs; the share of its embedding's variance in two components; and the structure of its task in the embedding
(`measures.MAIN`; a residual counts as 1 minus it). The latter two look at rows as the head does: at length one where it
sees their directions alone (`DIRECTIONS`), with `structure_raw` beside, on the rows as they are. A diverged run has 0
in all, and an embedding whose rows are all the same has 0 in these two; that is not the least there is, since a rank
correlation (genealogy) and a silhouette (permutation) can be negative. `center_structure` is the structure of the
head's own weight, where it is not the embedding. Two epochs come with them: the first
at which a run has learned and the first at which it generalizes; never counts as infinity.

A comparison is a weighted sum of the scores of arms that ran on one seed, averaged over tasks where there are several;
the interval and the tests are over seeds. They speak of other seeds, not of other tasks.
"""

# K shown tokens, D features

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from harmax.analysis import (
    PairedDifference,
    best_cosets,
    bootstrap_interval,
    explained_variance,
    grokking_epoch,
    paired_difference,
)
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.measures import MAIN, last_embedding, measure
from harmax_lab.algorithmic.runs import LEAST_SEEDS, TITLES
from harmax_lab.algorithmic.training import RunCell, task_of
from harmax_lab.kit import drawing
from harmax_lab.kit.experiment import Spec
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.arms import DIRECTIONS
from harmax_lab.tasks import PROTOCOLS, TASKS, Structure

SCORES = {"structure": "structure", "variance": "variance in two components", "accuracy": "late test accuracy"}
BODIES = {"mlp": "MLPs", "transformer": "transformers"}
PAPERS_TASKS = ("lattice", "modular_addition")
"""On which the paper's own ablation, exponents and rivals are."""
POINTS_KEPT = 64  # of a learning curve
WINDOW = 20  # epochs in a row above 0.9
LATE = 0.1
"""Share of the training that counts as its end, in the search and in scores, so that one bad epoch does not decide."""
SAME = 1e-6  # of the greatest entry: rows that differ by less, in all features, are the same in float32
MARGIN = 0.05
"""Of a score: what is less is no difference worth a claim."""


@dataclass(frozen=True, kw_only=True)
class StudySpec(Spec):
    """Settings that the studies share; what a protocol fixes is in algorithmic/protocols.py."""

    protocols: tuple[str, ...] = PROTOCOLS
    models: tuple[str, ...] = tuple(BODIES)
    tasks: tuple[str, ...] = tuple(TASKS)
    authors_tasks: tuple[str, ...] = tuple(TASKS)
    """Under the authors' protocol."""
    train_fraction: float = 0.8
    mlp_epochs: int = anchors.EPOCHS
    transformer_epochs: int = anchors.EPOCHS

    def tasks_under(self, protocol: str) -> tuple[str, ...]:
        """Return the tasks of a protocol."""
        return self.authors_tasks if protocol == "authors" else self.tasks

    def epochs(self, model: str) -> int:
        """Return how long a model is trained."""
        return self.mlp_epochs if model == "mlp" else self.transformer_epochs

    def places(self) -> list["Place"]:
        """List every protocol and model, with all tasks of the protocol."""
        return [Place(one, model, self.tasks_under(one)) for one in self.protocols for model in self.models]

    def too_short(self, full: "StudySpec", place: "Place", tasks: Collection[str] | None = None) -> str:
        """Say why this spec decides nothing about a place, held against the full one; empty where it can.

        Args:
            full: the spec that decides.
            place: protocol, model and the tasks that were run.
            tasks: those that a claim needs; None: all that the full spec has under the protocol.
        """
        ran, asked = self.epochs(place.model), full.epochs(place.model)
        if ran < asked:
            return f"Only {ran} of {asked} epochs were run."
        if missing := set(full.tasks_under(place.protocol) if tasks is None else tasks) - set(place.tasks):
            return f"{len(missing)} tasks were not run."
        return f"Only {len(self.seeds)} of at least {LEAST_SEEDS} seeds were run." * (len(self.seeds) < LEAST_SEEDS)


class Place(NamedTuple):
    """Where arms are compared: a protocol, a model, and the tasks that are averaged over."""

    protocol: str
    model: str
    tasks: tuple[str, ...]

    @property
    def words(self) -> str:
        """Name the task, or say how many."""
        return TITLES[self.tasks[0]] if len(self.tasks) == 1 else f"mean of {len(self.tasks)}"

    @property
    def columns(self) -> dict[str, str]:
        """Begin a row of a table."""
        return {"protocol": self.protocol, "models": BODIES[self.model], "task": self.words}

    def alone(self) -> list["Place"]:
        """List the tasks apart."""
        return [self._replace(tasks=(task,)) for task in self.tasks]

    def each(self) -> list["Place"]:
        """List the tasks apart and, where there are several, all together."""
        return [*self.alone(), self] if len(self.tasks) > 1 else self.alone()


C = TypeVar("C", bound=RunCell)


def compact(cells: Iterable[tuple[C, CellResult]]) -> Iterable[tuple[C, CellResult]]:
    """Judge runs as they come, and keep of each the scores, the last embedding and a curve of few points."""
    for cell, result in cells:
        # The share of steps waited is the price of the company, not a result.
        metrics = {name: value for name, value in result.metrics.items() if name != "waste"}
        kept = drawing.spaced(len(result.curves["test_accuracy"]), POINTS_KEPT)
        curves = {name: result.curves[name][kept] for name in ("train_accuracy", "test_accuracy")}
        yield (
            cell,
            replace(
                result,
                curves={"epoch": kept.astype(np.int64), **curves},
                arrays={name: array[-1:] for name, array in result.arrays.items()},
                metrics={**metrics, **scores_of(cell, result)},
            ),
        )


def scores_of(cell: RunCell, result: CellResult) -> dict[str, float | None]:
    """Return the three scores and the two epochs of a run, and structure otherwise seen; the curves must be whole."""
    embedding = last_embedding(result)
    if embedding is None:
        zeros = dict.fromkeys((*SCORES, "structure_raw"), 0.0)
        return {**zeros, "center_structure": None, "train_epoch": None, "test_epoch": None}
    structure = task_of(cell).structure
    seen = as_seen(cell.head, embedding)
    score = structure_score(structure, seen)
    centers = result.arrays.get("centers")
    return {
        "structure": score,
        "variance": 0.0 if is_constant(seen) else explained_variance(seen),
        "accuracy": mean_accuracy(result.curves["test_accuracy"], LATE),
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


def structure_score(structure: Structure, embedding_KD: np.ndarray) -> float:
    """Return how much of a task's structure an embedding shows, 1 being all of it; 0 where all rows are the same."""
    if is_constant(embedding_KD):
        return 0.0
    main = MAIN[structure.kind]
    if structure.kind == "group":
        # Without the null, which a score does not need and which takes hundreds of times as long.
        return best_cosets(embedding_KD, structure.values, components=None, draws=0).score
    value = float(measure(structure, embedding_KD)[main.key])
    return 1 - value if main.low_is_good else value


Key = tuple[str, str, str, str]
Outcomes = Mapping[Key, Mapping[int, CellResult]]
"""By protocol, model, task and arm, then by seed."""


def collect(results: Mapping[C, CellResult], arm: Callable[[C], str]) -> Outcomes:
    """Sort results by where they were got and which arm they are of."""
    found: dict[Key, dict[int, CellResult]] = {}
    for cell, result in results.items():
        found.setdefault((cell.protocol, cell.model, cell.task, arm(cell)), {})[cell.seed] = result
    return found


def per_seed(outcomes: Outcomes, place: Place, weights: Mapping[str, float], score: str) -> dict[int, float]:
    """Return a weighted sum of arms' scores for each seed that all have, averaged over the tasks of a place."""
    by_task = []
    for task in place.tasks:
        arms = [outcomes.get((place.protocol, place.model, task, arm), {}) for arm in weights]
        seeds = set.intersection(*map(set, arms))
        sums = {
            seed: sum(weight * arm[seed].metrics[score] for weight, arm in zip(weights.values(), arms, strict=True))
            for seed in seeds
        }
        by_task.append(sums)
    common = sorted(set.intersection(*map(set, by_task)))
    # Rounded, so that equal scores tie whatever the order of the sum.
    return {seed: round(float(np.mean([sums[seed] for sums in by_task])), 12) for seed in common}


def contrast(outcomes: Outcomes, place: Place, weights: Mapping[str, float], score: str) -> PairedDifference | None:
    """Return a weighted sum of arms' scores: mean over seeds, interval, and tests against 0; None without a seed.

    `{"harmonic": 1, "linear": -1}` is how much better harmonic is.
    """
    found = list(per_seed(outcomes, place, weights, score).values())
    return paired_difference(found, [0.0] * len(found), statistic="mean") if found else None


def versus(outcomes: Outcomes, place: Place, ours: str, theirs: str, score: str) -> PairedDifference | None:
    """Return how much better one arm is than another."""
    return contrast(outcomes, place, {ours: 1.0, theirs: -1.0}, score)


def epochs_versus(outcomes: Outcomes, place: Place, ours: str, theirs: str) -> PairedDifference | None:
    """Return by how many epochs one arm generalizes later than another on one task: the median over seeds.

    Never is infinity, so that there is no mean, and none over tasks.
    """
    (task,) = place.tasks
    one, two = (outcomes.get((place.protocol, place.model, task, arm), {}) for arm in (ours, theirs))
    seeds = sorted(set(one) & set(two))
    if not seeds:
        return None
    return paired_difference(*([arm[seed].metrics["test_epoch"] for seed in seeds] for arm in (one, two)))


def mean_of(outcomes: Outcomes, place: Place, arm: str, score: str) -> str | None:
    """Write the mean over seeds of one arm's score, with its interval."""
    found = list(per_seed(outcomes, place, {arm: 1.0}, score).values())
    return str(bootstrap_interval(found, statistic="mean")) if found else None


def above_zero(found: PairedDifference) -> bool | None:
    """Whether a difference lies above 0 with its interval, or below; None where neither."""
    return found.difference.above(0)


def alike(found: PairedDifference) -> bool | None:
    """Whether a difference lies within the margin with its interval, or beyond it; None where neither.

    >>> alike(paired_difference([0.01, 0.02], [0.0, 0.0], statistic="mean"))
    True
    """
    _, low, high = found.difference
    return True if low > -MARGIN and high < MARGIN else False if low > MARGIN or high < -MARGIN else None


def written(found: PairedDifference | None) -> str | None:
    """Write the mean and interval of a comparison, with a sign.

    >>> written(paired_difference([0.5, 0.6], [0.0, 0.0], statistic="mean"))
    '+0.550 [+0.500, +0.600]'
    """
    if found is None:
        return None
    middle, low, high = found.difference
    return f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]"


def with_p(found: PairedDifference | None) -> str | None:
    """Write a comparison as `written` does, and the p-value of its signed-rank test, corrected for nothing.

    >>> with_p(paired_difference([0.5, 0.6], [0.0, 0.0], statistic="mean"))
    '+0.550 [+0.500, +0.600], p 0.5'
    """
    return None if found is None else f"{written(found)}, p {found.rank_p:.2g}"
