"""What the ResNets' runs come to, as tables, and the verdicts on every claim."""

import math
from collections.abc import Iterable
from typing import Any

from harmax_lab.kit.experiment import Summary
from harmax_lab.kit.tables import Table
from harmax_lab.vision.classifiers_claims import (
    CLAIMS,
    Results,
    interval,
    judge,
    outside_sets,
    settings,
    values,
)
from harmax_lab.vision.classifiers_spec import (
    HARMONIC,
    HEADS,
    LINEAR,
    STYLES,
    ClassifierSpec,
    Held,
    Setting,
    ends_of,
    grid_of,
    mean_held,
    setting_of,
    tuning_cells,
    variants_of,
)
from harmax_lab.vision.trust_measures import SCORES, detection_key

TESTED = "Test images: means and Student's intervals over seeds, which tell of training, not of the choice of images"
CALIBRATED = "Calibration on test images: means and Student's intervals over seeds"
COLLAPSED = "Neural collapse on training images, means"
OUTLIERS = "Telling outliers: AUROC, and FPR at 95 % TPR, means and Student's intervals over seeds"
SCORE_TITLES = {
    "max_softmax": "largest probability",
    "energy": "energy",
    "nearest_distance": "distance to the nearest",
    "distance_ratio": "nearest over second",
}


def summarize(spec: ClassifierSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate what tuning found and what the chosen runs are."""
    groups = [(dataset, head) for dataset in spec.datasets for head in HEADS]
    grids = [(dataset, head, *variant) for dataset, head in groups for variant in variants_of(spec, head)]
    tables = [
        Table(tuning_title(spec), tuple(_tuning_row(spec, results, *grid) for grid in grids)),
        Table(TESTED, tuple(_test_row(spec, results, *group) for group in groups)),
        Table(CALIBRATED, tuple(_calibration_row(results, *group) for group in groups)),
        Table(COLLAPSED, tuple(_collapse_row(results, *group) for group in groups)),
        Table(OUTLIERS, tuple(_outlier_rows(results, spec.datasets))),
    ]
    judged = tuple(judge(claim.id, spec, results) for claim in CLAIMS)
    return Summary(judged, tuple(table for table in tables if table.rows))


def tuning_title(spec: ClassifierSpec) -> str:
    """Say what the table of tuning holds, and from how many settings each head's is chosen."""
    harmonic, linear = (len(grid_of(spec, head)) for head in (HARMONIC, LINEAR))
    return (
        "Tuning: mean accuracy on held-out training images, in shorter runs than those that count; the harmonic head "
        f"has {harmonic} settings to choose from, cross-entropy {linear}"
    )


def _named(dataset: str, head: str) -> dict[str, Any]:
    return {"dataset": dataset, "head": STYLES[head].label}


def _tuning_row(
    spec: ClassifierSpec, results: Results, dataset: str, head: str, exponent: float | None, scale: float | None
) -> dict[str, Any]:
    means = tuning_means(spec, results, dataset, head)
    held = {lr: means.get(Setting(lr, exponent, scale)) for lr in spec.lrs}
    return {
        **_named(dataset, head),
        "exponent": exponent,
        "scale of logits": scale,
        "seeds": len(spec.seeds[: spec.of(dataset, "tuning_seeds")]),
        "epochs": f"{spec.of(dataset, 'tuning_epochs')} of {spec.of(dataset, 'epochs')}",
        **{f"lr {lr:g}": found.accuracy if found else None for lr, found in held.items()},
    }


def tuning_means(spec: ClassifierSpec, results: Results, dataset: str, head: str) -> dict[Setting, Held]:
    """Return what the settings of a head reached in the mean over the tuning seeds; those with all seeds finished."""
    grid = tuning_cells(spec, dataset, head)
    found = {}
    for setting in grid_of(spec, head):
        own = [cell for cell in grid if setting_of(cell) == setting]
        if all(cell in results for cell in own):
            runs = [results[cell].metrics for cell in own]
            found[setting] = mean_held([Held(run["accuracy"], run["nll"]) for run in runs])
    return found


def _mean(results: Results, dataset: str, head: str, metric: str) -> float | None:
    found = interval(results, dataset, head, metric)
    return None if found is None else found.estimate


def _spread(results: Results, dataset: str, head: str, metric: str, name: str) -> dict[str, float | None]:
    """Return mean and both ends as columns; one seed has no ends."""
    found = interval(results, dataset, head, metric)
    low, high = (None, None) if found is None or not math.isfinite(found.low) else found[1:]
    return {name: None if found is None else found.estimate, f"{name} low": low, f"{name} high": high}


def _test_row(spec: ClassifierSpec, results: Results, dataset: str, head: str) -> dict[str, Any]:
    group = (results, dataset, head)
    accuracy, images, chosen = _mean(*group, "test_accuracy"), _mean(*group, "test_images"), settings(*group)
    return {
        **_named(dataset, head),
        "exponent": _words(one.exponent for one in chosen),
        "scale of logits": _words(one.scale for one in chosen),
        "lr": _words(one.lr for one in chosen),
        "at the grid's end": _ends(spec, chosen),
        "seeds": len(values(*group, "test_accuracy")),
        **_spread(*group, "test_accuracy", "test_accuracy"),
        "standard error by test images": None if accuracy is None or not images else standard_error(accuracy, images),
        "top5": _mean(*group, "test_top5"),
    }


def standard_error(share: float, images: float) -> float:
    """Return the standard error of one accuracy from the number of test images, which all seeds have in common.

    >>> round(standard_error(0.95, 10_000), 5)
    0.00218
    """
    return math.sqrt(share * (1 - share) / images)


def _words(found: Iterable[float | None]) -> str | None:
    """Name every setting: where there are several, their mean would be one that no run had."""
    return "; ".join(f"{value:g}" for value in sorted({value for value in found if value is not None})) or None


def _ends(spec: ClassifierSpec, chosen: list[Setting]) -> str | None:
    """Say which numbers of the chosen settings lie at an end of their grid."""
    ends = dict.fromkeys(name for one in chosen for name in ends_of(spec, one))
    return " and ".join(ends) or "no" if chosen else None


def _calibration_row(results: Results, dataset: str, head: str) -> dict[str, Any]:
    group = (results, dataset, head)
    return {
        **_named(dataset, head),
        **_spread(*group, "nll", "nll"),
        **_spread(*group, "ece", "ece"),
        **_spread(*group, "brier", "brier"),
    }


def _collapse_row(results: Results, dataset: str, head: str) -> dict[str, Any]:
    group = (results, dataset, head)
    return {
        **_named(dataset, head),
        "NC1 within / between": _mean(*group, "within_between"),
        "NC2 lengths of means": _mean(*group, "equinorm_means"),
        "NC2 lengths of weights": _mean(*group, "equinorm_weights"),
        "NC2 angles of means": _mean(*group, "simplex_means"),
        "NC2 angles of weights": _mean(*group, "simplex_weights"),
        "NC3 directions": _mean(*group, "self_duality"),
        "NC3 center from mean": _mean(*group, "center_distance"),
        "NC4 not the nearest mean": _mean(*group, "disagreement"),
        "train accuracy": _mean(*group, "plain_train_accuracy"),
    }


def _outlier_rows(results: Results, datasets: Iterable[str]) -> list[dict[str, Any]]:
    """A row a score that was measured: the linear head has no distances."""
    return [
        {
            **_named(dataset, head),
            "outside": outside,
            "score": SCORE_TITLES[score],
            **_spread(results, dataset, head, detection_key(outside, score, "auroc"), "AUROC"),
            **_spread(results, dataset, head, detection_key(outside, score, "fpr95"), "FPR"),
        }
        for dataset in datasets
        for outside in outside_sets(results, dataset)
        for score in SCORES
        for head in HEADS
        if values(results, dataset, head, detection_key(outside, score, "auroc"))
    ]
