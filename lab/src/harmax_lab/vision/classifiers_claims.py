"""What is claimed of the ResNets, and how the runs judge it."""

# N test images

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from harmax.analysis import Interval, mean_interval
from harmax_lab.kit.claims import NOT_DECIDED, Claim, Finding, Verdict
from harmax_lab.kit.experiment import conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.vision.classifiers_spec import (
    CIFAR10,
    CIFAR100,
    FINAL,
    HARMONIC,
    HEADS,
    LINEAR,
    STYLES,
    TINY,
    TITLES,
    ClassifierCell,
    ClassifierSpec,
    Setting,
    ends_of,
    final_cells,
)
from harmax_lab.vision.trust_measures import detection_key

Results = Mapping[ClassifierCell, CellResult]

LEAST_SEEDS = 3
BAR = 0.94
MARGIN = 0.005  # by which a head may be behind before it counts as worse
AS_FAR = 1.1  # how many times NC1 may be larger and still be "as far"
NEAR = 0.1  # of the spread of the class means: a center at its class mean
OWN_SCORES = {HARMONIC: "nearest_distance", LINEAR: "max_softmax"}
"""The score that each head suggests for outliers."""

_BOTH = "the interval of the paired difference, which counts seeds and test images, lies above"
_TUNED = "Not decided where a head's learning rate lies at an end of its grid"
CLAIMS = (
    Claim(
        "imagenet",
        f"On a reduced stand-in for ImageNet the harmonic head has the higher top-1 accuracy: {_BOTH} 0. {_TUNED}. "
        "(The stand-in: ResNet-18 on Tiny ImageNet, 200 classes of 100 images of 32 x 32, without AutoAugment; the "
        "paper has ResNet-50 on all of ImageNet, which is not at hand.)",
        "ImageNet, ResNet-50: top-1 75.08 against 74.17 %, top-5 92.12 against 91.88 %.",
    ),
    Claim(
        "centres",
        "Harmonic centers lie at the means of their classes (NC3): on CIFAR-10's training images the root mean square "
        "of their distance is below a tenth of that of the class means from their common mean, by Student's interval "
        "over seeds.",
        "The weights of harmonic models are class centers.",
    ),
    Claim(
        "baseline",
        "Cross-entropy reaches 94 % on CIFAR-10, so that it is no weak baseline: Student's interval over seeds lies "
        "above.",
        "Not reported.",
        control=True,
    ),
    Claim(
        "cifar10",
        "The harmonic head is at most 0.5 points behind cross-entropy on CIFAR-10, each at the setting that tuning "
        f"chose: {_BOTH} -0.5 points. {_TUNED}.",
        "Not reported.",
        control=True,
    ),
    Claim(
        "few_images",
        f"With 50 images a class (the part of CIFAR-100) the harmonic head is the more accurate one: {_BOTH} 0. "
        f"{_TUNED}.",
        "Harmonic loss needs less data; shown on algorithmic tasks, not on images.",
        control=True,
    ),
    Claim(
        "collapse",
        "Features collapse at least as far as with cross-entropy: NC1 on CIFAR-10's training images is at most 1.1 "
        "times as large, by Student's interval of the logarithm of the ratio of the same seeds.",
        "Not reported.",
        control=True,
    ),
    Claim(
        "calibration",
        "The harmonic head is better calibrated on CIFAR-10: its expected calibration error is smaller, by Student's "
        "interval of the paired difference.",
        "Not reported.",
        control=True,
    ),
    Claim(
        "outliers",
        "The distance to the nearest center tells CIFAR-100 from CIFAR-10 better than the largest probability of "
        "cross-entropy: a larger area under the ROC curve, by Student's interval of the paired difference.",
        "Not reported.",
        control=True,
    ),
)


def runs_of(results: Results, dataset: str, head: str) -> list[CellResult]:
    """Return the finished runs that count, in the order of seeds."""
    return [run for cell, run in results.items() if (cell.dataset, cell.head, cell.stage) == (dataset, head, FINAL)]


def values(results: Results, dataset: str, head: str, metric: str) -> list[float]:
    """Return one metric of the finished runs that count, in the order of seeds; those that diverged have none."""
    found = [run.metrics.get(metric) for run in runs_of(results, dataset, head)]
    return [float(value) for value in found if value is not None]


def interval(results: Results, dataset: str, head: str, metric: str) -> Interval | None:
    """Return the mean over seeds with Student's interval; None where nothing was measured.

    It tells of training, not of the test images, which are the same for all seeds.
    """
    found = values(results, dataset, head, metric)
    return mean_interval(found) if found else None


def settings(results: Results, dataset: str, head: str) -> list[Setting]:
    """Return the different settings of the runs that count, diverged ones too: one, unless tuning was made twice."""
    runs = [run.metrics for run in runs_of(results, dataset, head)]
    found = {Setting(run["lr"], run["exponent"], run["scale"]) for run in runs}
    return sorted(found, key=lambda one: (one.lr, one.exponent or one.scale))


def outside_sets(results: Results, dataset: str) -> list[str]:
    """Return the names of the outside sets that a data set's runs were measured against."""
    ending = detection_key("", OWN_SCORES[LINEAR], "auroc")
    names = {name for cell, result in results.items() if cell.dataset == dataset for name in result.metrics}
    return sorted(name.removesuffix(ending) for name in names if name.endswith(ending))


def percent(found: Interval) -> str:
    """Write an interval of shares as percent."""
    estimate, low, high = (f"{100 * value:.2f}" for value in found)
    return f"{estimate} % [{low}, {high}]"


def _points(found: Interval) -> str:
    return f"{100 * found.estimate:+.2f} [{100 * found.low:+.2f}, {100 * found.high:+.2f}] points"


def _both(results: Results, dataset: str, metrics: Mapping[str, str]) -> tuple[Interval, Interval, Interval]:
    """Return the harmonic mean, the linear one and the mean paired difference; `metrics`: each head's."""
    one, two = (values(results, dataset, head, metrics[head]) for head in (HARMONIC, LINEAR))
    apart = mean_interval([a - b for a, b in zip(one, two, strict=True)])
    return mean_interval(one), mean_interval(two), apart


def _same(metric: str) -> dict[str, str]:
    return dict.fromkeys(HEADS, metric)


def over_images(results: Results, dataset: str) -> np.ndarray:
    """Return the difference of accuracies on each test image, (N,): of the shares of seeds that are right about it."""
    one_N, two_N = (
        np.mean([run.arrays["right"] for run in runs_of(results, dataset, head)], axis=0) for head in (HARMONIC, LINEAR)
    )
    difference_N: np.ndarray = one_N - two_N
    return difference_N


def with_images(seeds: Interval, difference_N: np.ndarray) -> Interval:
    """Widen Student's interval over seeds by what other test images would change, which the seeds have in common.

    Squares add up. Simulated with 3 to 6 seeds and any ratio of the two, 5 % of such intervals miss, at the worst.

    >>> print(with_images(Interval(0.5, 0.2, 0.8), np.array([0.0, 1.0] * 8)))
    0.5 [0.0929, 0.907]
    """
    images = mean_interval(difference_N)
    reach = math.hypot(seeds.high - seeds.estimate, images.high - images.estimate)
    return Interval(seeds.estimate, seeds.estimate - reach, seeds.estimate + reach)


def judge_ahead(results: Results, dataset: str, *, limit: float = 0.0) -> Finding:
    """Judge by the paired difference of accuracies against a limit, other seeds and other test images in mind."""
    one, two, apart = _both(results, dataset, _same("test_accuracy"))
    both = with_images(apart, over_images(results, dataset))
    top5 = {head: interval(results, dataset, head, "test_top5") for head in HEADS}
    fives = [f"{STYLES[head].label} {percent(found)}" for head, found in top5.items() if found is not None]
    return Finding(
        both.above(limit),
        f"Top-1: harmonic {percent(one)}, cross-entropy {percent(two)}: {_points(both)}, over seeds alone "
        f"[{100 * apart.low:+.2f}, {100 * apart.high:+.2f}]." + (f" Top-5: {', '.join(fives)}." if fives else ""),
        {"harmonic": one, "linear": two, "difference": both, "difference_over_seeds": apart, "top5": top5},
    )


def judge_centers(results: Results, dataset: str) -> Finding:
    """Judge by the interval of the distance; how directions agree is told for both heads."""
    found = interval(results, dataset, HARMONIC, "center_distance")
    assert found is not None  # `conclude` has seen to it
    duality = {head: interval(results, dataset, head, "self_duality") for head in HEADS}
    below = found.above(NEAR)
    return Finding(
        None if below is None else not below,
        f"Distance of centers from their class means over the spread of the means: {found}. Difference in direction "
        f"and proportion (0 to 4): harmonic {duality[HARMONIC]}, cross-entropy {duality[LINEAR]}.",
        {"center_distance": found, **{f"{head}_self_duality": value for head, value in duality.items()}},
    )


def judge_baseline(results: Results, dataset: str) -> Finding:
    """Judge by the interval of cross-entropy's accuracy."""
    found = interval(results, dataset, LINEAR, "test_accuracy")
    assert found is not None
    return Finding(found.above(BAR), f"Cross-entropy reaches {percent(found)}.", {"linear": found})


def judge_collapse(results: Results, dataset: str) -> Finding:
    """Judge by the mean logarithm of the ratio of the same seeds."""
    one, two = (values(results, dataset, head, "within_between") for head in (HARMONIC, LINEAR))
    logs = mean_interval([math.log(a / b) for a, b in zip(one, two, strict=True)])
    ratio = Interval(*map(math.exp, logs))
    farther = ratio.above(AS_FAR)
    means = {head: interval(results, dataset, head, "within_between") for head in HEADS}
    return Finding(
        None if farther is None else not farther,
        f"NC1: harmonic {means[HARMONIC]}, cross-entropy {means[LINEAR]}; ratio {ratio}.",
        {"ratio": ratio, **means},
    )


def judge_calibration(results: Results, dataset: str) -> Finding:
    """Judge by the paired difference of the calibration errors."""
    one, two, apart = _both(results, dataset, _same("ece"))
    worse = apart.above(0)
    return Finding(
        None if worse is None else not worse,
        f"Expected calibration error: harmonic {percent(one)}, cross-entropy {percent(two)}: {_points(apart)}.",
        {"harmonic": one, "linear": two, "difference": apart},
    )


def judge_outliers(results: Results, dataset: str) -> Finding:
    """Judge by the paired difference of areas, each head by its own score; the other scores are in a table."""
    areas = {head: detection_key(CIFAR100, score, "auroc") for head, score in OWN_SCORES.items()}
    one, two, apart = _both(results, dataset, areas)
    return Finding(
        apart.above(0),
        f"Area under the ROC curve: harmonic by distance {percent(one)}, cross-entropy by probability {percent(two)}: "
        f"{_points(apart)}.",
        {"harmonic": one, "linear": two, "difference": apart},
    )


class Basis(NamedTuple):
    """The data set and the heads that a claim rests on, and who judges their runs."""

    dataset: str
    judge: Callable[[Results, str], Finding]
    heads: tuple[str, ...] = HEADS
    tuned: bool = False
    """Whether it asks who is ahead, each at its best: then a better learning rate must not lie beyond the grid."""


JUDGES: dict[str, Basis] = {
    "imagenet": Basis(TINY, judge_ahead, tuned=True),
    "centres": Basis(CIFAR10, judge_centers),
    "baseline": Basis(CIFAR10, judge_baseline, (LINEAR,)),
    "cifar10": Basis(CIFAR10, lambda results, dataset: judge_ahead(results, dataset, limit=-MARGIN), tuned=True),
    "few_images": Basis(CIFAR100, judge_ahead, tuned=True),
    "collapse": Basis(CIFAR10, judge_collapse),
    "calibration": Basis(CIFAR10, judge_calibration),
    "outliers": Basis(CIFAR10, judge_outliers),
}


def judge(claim: str, spec: ClassifierSpec, results: Results) -> Verdict:
    """Judge one claim; a run that diverged, or runs of a head at several settings, leave it undecided and are named."""
    dataset, judged, heads, tuned = JUDGES[claim]
    if dataset not in spec.datasets:
        return Verdict(claim, NOT_DECIDED, f"This is about {TITLES[dataset]}, which this profile has not.")
    wanted = [cell for cell in final_cells(spec, dataset) if cell.head in heads]
    lost = [cell.name for cell in wanted if cell in results and results[cell].metrics["diverged_at"] is not None]
    if lost:
        return Verdict(
            claim, NOT_DECIDED, f"Its loss was no longer a number, or its network dead, in {', '.join(lost)}."
        )
    mixed = {head: found for head in heads if len(found := settings(results, dataset, head)) > 1}
    if mixed:
        told = [f"{STYLES[head].label} with {' and '.join(map(setting_words, found))}" for head, found in mixed.items()]
        why = "tuning was made twice, as on two machines, and chose differently, so that seeds are not all that differs"
        return Verdict(claim, NOT_DECIDED, f"Its runs have several settings ({'; '.join(told)}): {why}.")

    def decide(found: Results) -> Finding:
        finding = judged(found, dataset)
        chosen = {head: settings(found, dataset, head)[0] for head in heads}
        told = [f"{STYLES[head].label} {one.lr:g}" for head, one in chosen.items() if "lr" in ends_of(spec, one)]
        if not tuned or not told:
            return finding
        why = f" Not decided for want of learning rates beyond those chosen: {', '.join(told)}."
        return Finding(None, finding.sentence + why, finding.numbers)

    return conclude(claim, decide, wanted, results, too_short=too_short(spec, dataset))


def setting_words(setting: Setting) -> str:
    """Return a setting in words.

    >>> setting_words(Setting(0.2, exponent=128.0))
    'learning rate 0.2, exponent 128'
    """
    return f"learning rate {setting.lr:g}, {variant_words(setting.exponent, setting.scale)}"


def variant_words(exponent: float | None, scale: float | None) -> str:
    """Return a head's exponent, or the scale of its logits, in words."""
    return f"exponent {exponent:g}" if exponent is not None else f"logits times {scale:g}"


def too_short(spec: ClassifierSpec, dataset: str) -> str:
    """Say why a spec cannot decide anything about a data set; empty where it can."""
    epochs, usual = spec.of(dataset, "epochs"), ClassifierSpec().of(dataset, "epochs")
    if epochs < usual or spec.model != ClassifierSpec().model:
        return f"{spec.model} and {epochs} epochs are less than the full profile's."
    seeds = len(final_cells(spec, dataset)) // len(HEADS)
    return f"Only {seeds} of at least {LEAST_SEEDS} seeds were run." * (seeds < LEAST_SEEDS)
