"""What is claimed of learning from few labeled images, and how the runs judge it."""

# S seeds, A variants of heads, L learning rates

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis import Interval, bootstrap_interval, paired_difference
from harmax.figures import HEAD_STYLES
from harmax_lab.kit.claims import NOT_DECIDED, Claim, Finding, Verdict
from harmax_lab.kit.experiment import Summary, conclude
from harmax_lab.kit.judges import both
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.vision.little_data_spec import SOURCES, LittleDataCell, LittleDataSpec, cells
from harmax_lab.vision.one_layer import BIASED, HARMONIC, STANDARD

Results = Mapping[LittleDataCell, CellResult]

BOTH = (HARMONIC, STANDARD)
LEAST_SEEDS = 10
FEW, MANY = 10, 100  # images a class: up to the first, from the second on
MARGIN = 0.005  # by which a head may be behind before it counts as worse
PIXELS, FEATURES = ("mnist",), ("cifar10_linear", "cifar10_harmonic")
FULL = LittleDataSpec()

_PAPER = "The paper says so of algorithmic tasks, and shows no images."
_RULE = "the interval of the difference, paired by seed and averaged over the sizes"
CLAIMS = (
    Claim(
        "few_pixels",
        f"With few labeled images (1, 2, 5 and {FEW} a class) one harmonic layer is more accurate on MNIST than one "
        f"with cross-entropy: {_RULE}, is above 0.",
        _PAPER,
        control=True,
    ),
    Claim(
        "many_pixels",
        f"With many ({MANY} to 1000 a class) it is at most 0.5 points less accurate: {_RULE}, is above -0.5 points.",
        _PAPER,
        control=True,
    ),
    Claim(
        "few_features",
        "With few labeled images the harmonic layer is more accurate on CIFAR-10's features too, whichever head the "
        f"network that makes them was trained with: {_RULE}, is above 0 for both.",
        _PAPER,
        control=True,
    ),
    Claim(
        "many_features",
        f"With many it is at most 0.5 points less accurate on them: {_RULE}, is above -0.5 points for both.",
        _PAPER,
        control=True,
    ),
    Claim(
        "class_means",
        "With few labeled images of MNIST the harmonic layer is more accurate than nearest class mean, which learns "
        f"nothing: {_RULE}, is above 0.",
        "Not reported.",
        control=True,
    ),
)


@dataclass(frozen=True)
class Chosen:
    """What validation chose for one head, data set and size, and how accurate it is in test."""

    arm: int
    rate: int
    test_S: np.ndarray
    validation: float

    @property
    def interval(self) -> Interval:
        """The mean over seeds with its bootstrap interval."""
        return bootstrap_interval(self.test_S, statistic="mean")


def choose(spec: LittleDataSpec, results: Results, dataset: str, images: int, head: str) -> Chosen | None:
    """Choose a head's variant and learning rate by the mean validation accuracy over seeds; None: nothing finished.

    Of equals the first counts: the smaller exponent, no bias, the smaller learning rate.
    """
    found = [result for cell, result in results.items() if (cell.dataset, cell.images) == (dataset, images)]
    if not found:
        return None
    own = spec.variants(head)
    validation_AL = np.mean([result.arrays["validation"][own] for result in found], axis=0)
    arm, rate = (int(place) for place in np.unravel_index(validation_AL.argmax(), validation_AL.shape))
    test_S = np.array([result.arrays["test"][own[arm], rate] for result in found])
    return Chosen(own[arm], rate, test_S, float(validation_AL[arm, rate]))


def difference(spec: LittleDataSpec, results: Results, dataset: str, images: int) -> np.ndarray | None:
    """Return harmonic less cross-entropy, a number a seed; None where nothing is finished."""
    one, two = (choose(spec, results, dataset, images, head) for head in BOTH)
    return None if one is None or two is None else one.test_S - two.test_S


class Basis(NamedTuple):
    """What a claim is about: data sets, sizes, the limit that the difference must be above, and against what."""

    datasets: tuple[str, ...]
    least: int
    most: int
    limit: float = 0.0
    against: str = STANDARD

    def sizes(self, spec: LittleDataSpec, dataset: str) -> list[int]:
        """Return the sizes of a spec that count."""
        return [images for images in spec.sizes(dataset) if self.least <= images <= self.most]


MEANS = "nearest_mean"
JUDGES: dict[str, Basis] = {
    "few_pixels": Basis(PIXELS, 1, FEW),
    "many_pixels": Basis(PIXELS, MANY, 1000, -MARGIN),
    "few_features": Basis(FEATURES, 1, FEW),
    "many_features": Basis(FEATURES, MANY, 1000, -MARGIN),
    "class_means": Basis(PIXELS, 1, FEW, against=MEANS),
}


def judge_difference(basis: Basis, spec: LittleDataSpec, results: Results) -> Finding:
    """Judge by the paired difference, averaged over the sizes, of each data set; each size is told beside it."""
    told: list[str] = []
    numbers: dict[str, Interval] = {}
    holds: list[bool | None] = []
    for dataset in basis.datasets:
        pairs = {images: _pair(basis, spec, results, dataset, images) for images in basis.sizes(spec, dataset)}
        one, two = (np.mean([pair[side] for pair in pairs.values()], axis=0) for side in (0, 1))
        apart = paired_difference(one, two, statistic="mean").difference
        holds.append(apart.above(basis.limit))
        numbers[f"{dataset}_difference"] = apart
        each = {n: paired_difference(*pair, statistic="mean").difference for n, pair in pairs.items()}
        numbers |= {f"{dataset}_{images}_difference": found for images, found in each.items()}
        told.append(
            f"{SOURCES[dataset].title}: {100 * one.mean():.2f} against {100 * two.mean():.2f} %, "
            + points(apart)
            + " points ("
            + ", ".join(f"{images} a class {100 * found.estimate:+.2f}" for images, found in each.items())
            + ")"
        )
    return Finding(both(*holds), "; ".join(told) + ".", numbers)


def _pair(
    basis: Basis, spec: LittleDataSpec, results: Results, dataset: str, images: int
) -> tuple[np.ndarray, np.ndarray]:
    one = choose(spec, results, dataset, images, HARMONIC)
    assert one is not None  # `conclude` has seen to it
    if basis.against == MEANS:
        return one.test_S, np.array(means_of(results, dataset, images))
    two = choose(spec, results, dataset, images, basis.against)
    assert two is not None
    return one.test_S, two.test_S


def means_of(results: Results, dataset: str, images: int) -> list[float]:
    """Return the accuracy of nearest class mean, a number a seed."""
    return [r.metrics[MEANS] for cell, r in results.items() if (cell.dataset, cell.images) == (dataset, images)]


def points(found: Interval) -> str:
    """Return a difference of accuracies in points, with its interval.

    >>> points(Interval(0.01, -0.002, 0.03))
    '+1.00 [-0.20, +3.00]'
    """
    estimate, low, high = (f"{100 * value:+.2f}" for value in found)
    return f"{estimate} [{low}, {high}]"


def summarize(spec: LittleDataSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate what was chosen and how accurate it is."""
    groups = [(dataset, images) for dataset in spec.datasets for images in spec.sizes(dataset)]
    tables = [
        Table(
            "Test accuracy of what validation chose, means over seeds",
            tuple(_row(spec, results, *group, head) for group in groups for head in BOTH),
        ),
        Table("Harmonic less cross-entropy, paired", tuple(_paired_row(spec, results, *group) for group in groups)),
    ]
    if spec.absent:
        words = "its files were not there when this run was begun; set HARMAX_DATA to the data folder"
        tables.append(Table("Left out", tuple({"dataset": name, "why": words} for name in spec.absent)))
    return Summary(tuple(_judge(claim.id, spec, results) for claim in CLAIMS), tuple(tables))


def _judge(claim: str, spec: LittleDataSpec, results: Results) -> Verdict:
    basis = JUDGES[claim]
    titles = " and ".join(SOURCES[name].title for name in basis.datasets)
    if not set(basis.datasets) <= set(spec.datasets):
        gone = set(basis.datasets) & set(spec.absent)
        why = "whose files were not there when this run was begun" if gone else "which this profile has not"
        return Verdict(claim, NOT_DECIDED, f"This is about {titles}, {why}.")
    wanted = [
        cell
        for cell in cells(spec)
        if cell.dataset in basis.datasets and cell.images in basis.sizes(spec, cell.dataset)
    ]
    judge: Callable[[Results], Finding] = partial(judge_difference, basis, spec)
    return conclude(claim, judge, wanted, results, too_short=_too_short(spec, basis))


def _too_short(spec: LittleDataSpec, basis: Basis) -> str:
    if spec.steps < FULL.steps:
        return f"Only {spec.steps} of {FULL.steps} steps were run."
    missing = [n for name in basis.datasets for n in basis.sizes(FULL, name) if n not in basis.sizes(spec, name)]
    if missing:
        return f"Sizes are missing: {', '.join(map(str, missing))} images a class."
    return f"Only {len(spec.seeds)} of at least {LEAST_SEEDS} seeds were run." * (len(spec.seeds) < LEAST_SEEDS)


def _row(spec: LittleDataSpec, results: Results, dataset: str, images: int, head: str) -> dict[str, Any]:
    found = choose(spec, results, dataset, images, head)
    spread = None if found is None else found.interval
    name, factor = (head, 0.0) if found is None else spec.arms[found.arm]
    rates = spec.learning_rates
    return {
        "dataset": dataset,
        "images a class": images,
        "head": HEAD_STYLES[head].label,
        "seeds": 0 if found is None else len(found.test_S),
        "test_accuracy": None if spread is None else spread.estimate,
        "low": None if spread is None else spread.low,
        "high": None if spread is None else spread.high,
        "validation accuracy": None if found is None else found.validation,
        "exponent / sqrt(D)": factor if head == HARMONIC and found is not None else None,
        "bias": None if head == HARMONIC or found is None else name == BIASED,
        "learning rate": None if found is None else rates[found.rate],
        "at the grid's end": None if found is None else found.rate in (0, len(rates) - 1),
    }


def _paired_row(spec: LittleDataSpec, results: Results, dataset: str, images: int) -> dict[str, Any]:
    seeds, means = difference(spec, results, dataset, images), means_of(results, dataset, images)
    found = None if seeds is None else paired_difference(seeds, np.zeros(len(seeds)), statistic="mean")
    return {
        "dataset": dataset,
        "images a class": images,
        "difference": None if found is None else found.difference.estimate,
        "low": None if found is None else found.difference.low,
        "high": None if found is None else found.difference.high,
        "seeds harmonic is ahead": None if found is None else found.greater,
        "seeds it is behind": None if found is None else found.less,
        "nearest class mean": float(np.mean(means)) if means else None,
    }
