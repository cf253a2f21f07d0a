"""What the ResNets' runs come to, as tables, and the verdicts on every claim."""

from typing import Any

from harmax.experiments.spec import Summary, Table
from harmax.experiments.vision.classifiers_claims import CLAIMS, Results, interval, judge, outside_sets, values
from harmax.experiments.vision.classifiers_spec import HARMONIC, HEADS, STYLES, ClassifierSpec, tuning_cells
from harmax.experiments.vision.trust_measures import SCORES, detection_key


def summarize(spec: ClassifierSpec, results: Results) -> Summary:
    """Judge every claim, and tabulate what tuning found and what the chosen runs are."""
    groups = [(dataset, head) for dataset in spec.datasets for head in HEADS]
    grids = [
        (dataset, head, exponent)
        for dataset, head in groups
        for exponent in (spec.exponents if head == HARMONIC else (None,))
    ]
    tables = [
        Table(
            "Tuning: accuracy on held-out training images, one seed",
            tuple(_tuning_row(spec, results, *grid) for grid in grids),
        ),
        Table("Test images, means over seeds", tuple(_test_row(results, *group) for group in groups)),
        Table("Neural collapse on training images, means", tuple(_collapse_row(results, *group) for group in groups)),
        Table("Telling outliers: area under the ROC curve, means", tuple(_outlier_rows(results, groups))),
    ]
    judged = tuple(judge(claim.id, spec, results) for claim in CLAIMS)
    return Summary(judged, tuple(table for table in tables if table.rows))


def _named(dataset: str, head: str) -> dict[str, Any]:
    return {"dataset": dataset, "head": STYLES[head].label}


def _tuning_row(
    spec: ClassifierSpec, results: Results, dataset: str, head: str, exponent: float | None
) -> dict[str, Any]:
    grid = [cell for cell in tuning_cells(spec, dataset, head) if cell.exponent == exponent]
    found = {f"lr {cell.lr:g}": results[cell].metrics["accuracy"] if cell in results else None for cell in grid}
    return {**_named(dataset, head), "exponent": exponent, **found}


def _mean(results: Results, dataset: str, head: str, metric: str) -> float | None:
    found = interval(results, dataset, head, metric)
    return None if found is None else found.estimate


def _test_row(results: Results, dataset: str, head: str) -> dict[str, Any]:
    found, group = interval(results, dataset, head, "test_accuracy"), (results, dataset, head)
    return {
        **_named(dataset, head),
        "exponent": _mean(*group, "exponent"),
        "lr": _mean(*group, "lr"),
        "test_accuracy": None if found is None else found.estimate,
        "low": None if found is None else found.low,
        "high": None if found is None else found.high,
        "seeds": len(values(*group, "test_accuracy")),
        "top5": _mean(*group, "test_top5"),
        "nll": _mean(*group, "nll"),
        "ece": _mean(*group, "ece"),
        "brier": _mean(*group, "brier"),
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
        "NC3 centre from mean": _mean(*group, "centre_distance"),
        "NC4 not the nearest mean": _mean(*group, "disagreement"),
        "train accuracy": _mean(*group, "plain_train_accuracy"),
    }


def _outlier_rows(results: Results, groups: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {
            **_named(dataset, head),
            "outside": outside,
            **{score: _mean(results, dataset, head, detection_key(outside, score, "auroc")) for score in SCORES},
        }
        for dataset, head in groups
        for outside in outside_sets(results, dataset)
    ]
