"""What scikit-learn asks of an estimator: all of its checks, and the tools that are built on them."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import check_estimator

from harmax.sklearn import HarmonicClassifier

# scikit-learn skips this check by itself unless the variable SCIPY_ARRAY_API is set before it is imported. With the
# variable it passes.
SKIPPED = {"check_array_api_input"}


@pytest.mark.filterwarnings("ignore")  # the checks give odd data on purpose, and warnings are right there
@pytest.mark.parametrize(
    "model",
    [
        HarmonicClassifier(exponent=4.0, temperature=1.0, random_state=0),
        HarmonicClassifier(exponent=4.0, temperature=1.0, hidden=4, max_iter=10, random_state=0),
    ],
    ids=["centers", "hidden"],
)
def test_every_check_of_scikit_learn_passes(model: HarmonicClassifier) -> None:
    results = check_estimator(model, on_skip=None)
    assert {one["check_name"] for one in results if one["status"] != "passed"} <= SKIPPED
    assert len(results) > 50


@pytest.mark.filterwarnings("ignore")
def test_every_check_passes_with_the_choices_of_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmax.sklearn.search.LARGEST", 8.0)  # one exponent: the checks fit hundreds of times
    monkeypatch.setattr("harmax.sklearn.search.SMALLEST", 8.0)
    results = check_estimator(HarmonicClassifier(folds=2, max_iter=20, random_state=0), on_skip=None)
    assert {one["check_name"] for one in results if one["status"] != "passed"} <= SKIPPED


@pytest.fixture(scope="module")
def iris() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_iris(return_X_y=True)
    return x[::2], np.array(["setosa", "versicolor", "virginica"])[y[::2]]


def small(**settings: Any) -> HarmonicClassifier:
    return HarmonicClassifier(**{"exponent": 8.0, "temperature": 1.0, "random_state": 0} | settings)


def test_it_works_in_a_pipeline_a_grid_search_and_a_calibrator(iris: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = iris
    search = GridSearchCV(small(), {"exponent": [2.0, 8.0], "pull": [0.1, 10.0]}, cv=3, error_score="raise").fit(x, y)
    assert search.best_score_ > 0.9
    piped = make_pipeline(PolynomialFeatures(2, include_bias=False), small()).fit(x, y)
    assert piped.score(x, y) > 0.95
    calibrated = CalibratedClassifierCV(small(), cv=3).fit(x, y)
    np.testing.assert_allclose(calibrated.predict_proba(x).sum(axis=1), 1)
    copy = clone(small(hidden=3))
    assert copy.get_params() == small(hidden=3).get_params()


def test_a_random_state_fixes_everything(iris: tuple[np.ndarray, np.ndarray]) -> None:
    for settings in ({"exponent": "auto", "temperature": "auto", "folds": 3}, {"hidden": 4}, {"batch_size": 16}):
        one, two = (small(**settings).fit(*iris).predict_log_proba(iris[0]) for _ in range(2))
        np.testing.assert_array_equal(one, two)


def test_a_weight_means_copies_also_in_cross_validation(iris: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = iris
    weight = np.random.default_rng(0).integers(0, 4, len(x))
    model = small(exponent="auto", temperature="auto", folds=3)
    weighted = clone(model).fit(x, y, sample_weight=weight)
    repeated = clone(model).fit(x.repeat(weight, axis=0), y.repeat(weight))
    assert weighted.exponent_ == repeated.exponent_
    np.testing.assert_allclose(weighted.predict_proba(x), repeated.predict_proba(x), atol=1e-8)


def test_class_weights_move_the_border(iris: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = iris
    plain = small().fit(x, y).predict(x)
    heavy = small(class_weight={"versicolor": 50.0}).fit(x, y).predict(x)
    assert (heavy == "versicolor").sum() > (plain == "versicolor").sum()


def test_mini_batches_come_near_to_the_whole(iris: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = iris
    whole, parts = small().fit(x, y), small(batch_size=16).fit(x, y)
    assert np.abs(whole.predict_proba(x) - parts.predict_proba(x)).mean() < 0.1
