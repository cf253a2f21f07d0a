"""What is claimed of calibration and outliers, and how the runs judge it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis import Interval, bootstrap_interval, paired_difference
from harmax.data.images import IMAGES
from harmax_lab.kit.claims import NOT_DECIDED, Claim, Finding, Verdict
from harmax_lab.kit.experiment import Summary, conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.vision.trust_measures import SCORES, detection_key
from harmax_lab.vision.trust_spec import (
    BODIES,
    BODY_TITLES,
    JUDGED,
    TRANSFORMS,
    TrustCell,
    TrustSpec,
    arm_label,
    cells,
)

Results = Mapping[TrustCell, CellResult]
Arm = tuple[str, float]

LEAST_SEEDS = 10
MARGIN = 0.005  # of a calibration error, by which a head may be behind before it counts as worse
FULL = TrustSpec()

_NOT_REPORTED = "Not reported: the paper measures neither calibration nor outliers."
_BY_SEEDS = "with one layer and with a hidden one: the interval of the difference, paired by seed"
CLAIMS = (
    Claim(
        "distance",
        "The distance to the nearest harmonic center tells outside images from MNIST better than the largest "
        "probability of cross-entropy: the mean AUROC over the outside sets is higher, " + _BY_SEEDS + ", is above 0.",
        _NOT_REPORTED,
        control=True,
    ),
    Claim(
        "energy",
        "That distance also tells them better than the energy of cross-entropy, which is as cheap: mean AUROC, "
        + _BY_SEEDS
        + ", is above 0.",
        _NOT_REPORTED,
        control=True,
    ),
    Claim(
        "class_means",
        "That distance also tells them better than the distance to the nearest class mean in the features of the "
        "cross-entropy network, which needs no harmonic head: mean AUROC, " + _BY_SEEDS + ", is above 0.",
        _NOT_REPORTED,
        control=True,
    ),
    Claim(
        "own_probability",
        "Of a harmonic head the distance tells them better than its own largest probability: mean AUROC, "
        + _BY_SEEDS
        + ", is above 0.",
        _NOT_REPORTED,
        control=True,
    ),
    Claim(
        "probability",
        "By its largest probability alone the harmonic head tells them better than cross-entropy does by its own: mean "
        "AUROC, " + _BY_SEEDS + ", is above 0.",
        _NOT_REPORTED,
        control=True,
    ),
    Claim(
        "calibrated",
        "As trained, the harmonic head is no worse calibrated than cross-entropy on MNIST: its calibration error is at "
        "most 0.5 points higher, " + _BY_SEEDS + ", is below that.",
        _NOT_REPORTED,
        control=True,
    ),
    Claim(
        "calibrated_scaled",
        "After a temperature, fitted on held-out images, the harmonic head is no worse calibrated than cross-entropy "
        "either: at most 0.5 points, " + _BY_SEEDS + ", is below that.",
        _NOT_REPORTED,
        control=True,
    ),
)


def values(results: Results, body: str, arm: Arm, metric: str) -> list[float]:
    """Return one metric of the finished seeds of one arm, in the order of seeds."""
    wanted = (body, *arm)
    return [r.metrics[metric] for cell, r in results.items() if (cell.body, cell.head, cell.factor) == wanted]


def interval(results: Results, body: str, arm: Arm, metric: str) -> Interval | None:
    """Return the mean over seeds with its bootstrap interval; None where nothing is finished."""
    found = values(results, body, arm, metric)
    return bootstrap_interval(found, statistic="mean") if found else None


def outside_sets(results: Results) -> list[str]:
    """Return the outside sets that were measured, in their order."""
    first = next(iter(results.values())).metrics
    return [key.split(".")[0] for key in first if key.endswith(f".{SCORES[0]}.auroc")]


class Compared(NamedTuple):
    """Two arms with a score each."""

    first: tuple[Arm, str]
    second: tuple[Arm, str]


HARMONIC_ARM, STANDARD_ARM = JUDGED
DETECTIONS: dict[str, Compared] = {
    "distance": Compared((HARMONIC_ARM, "nearest_distance"), (STANDARD_ARM, "max_softmax")),
    "energy": Compared((HARMONIC_ARM, "nearest_distance"), (STANDARD_ARM, "energy")),
    "class_means": Compared((HARMONIC_ARM, "nearest_distance"), (STANDARD_ARM, "nearest_distance")),
    "own_probability": Compared((HARMONIC_ARM, "nearest_distance"), (HARMONIC_ARM, "max_softmax")),
    "probability": Compared((HARMONIC_ARM, "max_softmax"), (STANDARD_ARM, "max_softmax")),
}
CALIBRATIONS = {"calibrated": "ece", "calibrated_scaled": "scaled_ece"}


def judge_detection(compared: Compared, results: Results) -> Finding:
    """Judge by the paired difference of the AUROC, averaged over outside sets; each set is told beside it."""
    sets = outside_sets(results)
    told: list[str] = []
    numbers: dict[str, float | Interval] = {}
    holds: list[bool | None] = []
    for body in BODIES:
        by_set = {
            name: [np.array(values(results, body, arm, detection_key(name, score, "auroc"))) for arm, score in compared]
            for name in sets
        }
        one, two = (np.mean([pair[side] for pair in by_set.values()], axis=0) for side in (0, 1))
        apart = paired_difference(one, two, statistic="mean").difference
        each = {name: paired_difference(*pair, statistic="mean").difference for name, pair in by_set.items()}
        holds.append(apart.above(0))
        told.append(
            f"{BODY_TITLES[body]}: {one.mean():.3f} against {two.mean():.3f}, {_signed(apart)} ("
            + ", ".join(f"{name} {found.estimate:+.3f}" for name, found in each.items())
            + ")"
        )
        numbers |= {
            f"{body}_first": float(one.mean()),
            f"{body}_second": float(two.mean()),
            f"{body}_difference": apart,
        }
        numbers |= {f"{body}_{name}_difference": found for name, found in each.items()}
    return Finding(together(holds), "Mean AUROC, " + "; ".join(told) + ".", numbers)


def judge_calibration(metric: str, results: Results) -> Finding:
    """Judge by the paired difference of the calibration error; accuracies are told beside it."""
    told: list[str] = []
    numbers: dict[str, float | Interval] = {}
    holds: list[bool | None] = []
    for body in BODIES:
        one, two = (values(results, body, arm, metric) for arm in JUDGED)
        apart = paired_difference(one, two, statistic="mean").difference
        holds.append(Interval(-apart.estimate, -apart.high, -apart.low).above(-MARGIN))
        right = [100 * np.mean(values(results, body, arm, "accuracy")) for arm in JUDGED]
        points = Interval(*(100 * value for value in apart))
        told.append(
            f"{BODY_TITLES[body]}: {100 * np.mean(one):.2f} against {100 * np.mean(two):.2f} %, "
            f"{_signed(points, 2)} points (accuracy {right[0]:.2f} and {right[1]:.2f} %)"
        )
        numbers |= {f"{body}_harmonic": float(np.mean(one)), f"{body}_standard": float(np.mean(two))}
        numbers[f"{body}_difference"] = apart
    return Finding(together(holds), "Calibration error, " + "; ".join(told) + ".", numbers)


def together(holds: Sequence[bool | None]) -> bool | None:
    """Return whether a claim holds of all: no where one says no, None where one cannot tell.

    >>> together([True, None]), together([False, None]), together([True, True])
    (None, False, True)
    """
    return False if False in holds else None if None in holds else True


def _signed(found: Interval, digits: int = 3) -> str:
    estimate, low, high = (f"{value:+.{digits}f}" for value in found)
    return f"{estimate} [{low}, {high}]"


def summarize(spec: TrustSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate calibration and detection of every body and arm."""
    arms = [(body, arm) for body in BODIES for arm in spec.arms]
    tables = [
        Table("Calibration, means over seeds", tuple(_calibration_row(results, body, arm) for body, arm in arms)),
        *(
            Table(
                f"Telling outside images, {BODY_TITLES[body]}: AUROC, and FPR at 95 % TPR, means over seeds",
                tuple(
                    _detection_row(results, body, arm, name, score)
                    for name in spec.outside
                    for score in SCORES
                    for arm in spec.arms
                ),
            )
            for body in BODIES
        ),
    ]
    if spec.absent:
        words = "its files were not there when this run was begun; set HARMAX_DATA to the data folder"
        tables.append(Table("Left out", tuple({"dataset": name, "why": words} for name in spec.absent)))
    return Summary(tuple(_judge(claim.id, spec, results) for claim in CLAIMS), tuple(tables))


def _judge(claim: str, spec: TrustSpec, results: Results) -> Verdict:
    if spec.known != "mnist":
        return Verdict(claim, NOT_DECIDED, "This is about MNIST, which this profile has not.")
    judge: Callable[[Results], Finding]
    if claim in DETECTIONS:
        arms, judge = {arm for arm, _ in DETECTIONS[claim]}, partial(judge_detection, DETECTIONS[claim])
    else:
        arms, judge = set(JUDGED), partial(judge_calibration, CALIBRATIONS[claim])
    wanted = [cell for cell in cells(spec) if (cell.head, cell.factor) in arms]
    return conclude(claim, judge, wanted, results, too_short=_too_short(spec))


def _too_short(spec: TrustSpec) -> str:
    for name in ("layer_steps", "mlp_steps"):
        if getattr(spec, name) < getattr(FULL, name):
            return f"Only {getattr(spec, name)} of {getattr(FULL, name)} steps were run."
    return f"Only {len(spec.seeds)} of at least {LEAST_SEEDS} seeds were run." * (len(spec.seeds) < LEAST_SEEDS)


def _named(body: str, arm: Arm) -> dict[str, Any]:
    return {"body": BODY_TITLES[body], "head": arm_label(*arm)}


def _spread(results: Results, body: str, arm: Arm, metric: str, name: str) -> dict[str, float | None]:
    found = interval(results, body, arm, metric)
    low, high = (None, None) if found is None else found[1:]
    return {name: None if found is None else found.estimate, f"{name} low": low, f"{name} high": high}


def _mean(results: Results, body: str, arm: Arm, metric: str) -> float | None:
    found = values(results, body, arm, metric)
    return float(np.mean(found)) if found else None


def _calibration_row(results: Results, body: str, arm: Arm) -> dict[str, Any]:
    return {
        **_named(body, arm),
        "seeds": len(values(results, body, arm, "accuracy")),
        "accuracy": _mean(results, body, arm, "accuracy"),
        **_spread(results, body, arm, "ece", "ECE"),
        "NLL": _mean(results, body, arm, "nll"),
        "Brier": _mean(results, body, arm, "brier"),
        "temperature": _mean(results, body, arm, "temperature"),
        **_spread(results, body, arm, "scaled_ece", "ECE scaled"),
        "NLL scaled": _mean(results, body, arm, "scaled_nll"),
        "Brier scaled": _mean(results, body, arm, "scaled_brier"),
    }


def _detection_row(results: Results, body: str, arm: Arm, outside: str, score: str) -> dict[str, Any]:
    return {
        "outside": outside_title(outside),
        "score": SCORE_TITLES[score],
        "head": arm_label(*arm),
        **_spread(results, body, arm, detection_key(outside, score, "auroc"), "AUROC"),
        **_spread(results, body, arm, detection_key(outside, score, "fpr95"), "FPR"),
    }


SCORE_TITLES = {
    "max_softmax": "largest probability",
    "energy": "energy",
    "nearest_distance": "nearest distance",
    "distance_ratio": "ratio of the two nearest",
}


def outside_title(name: str) -> str:
    """Return how an outside set is called."""
    return _TRANSFORM_TITLES[name] if name in TRANSFORMS else IMAGES[name].title


_TRANSFORM_TITLES = {"rotated": "rotated by 90°", "noise": "noise", "permuted": "pixels permuted"}
