"""HarmonicClassifier: centers and reasons in the units of the table, calibration, abstaining, bad input."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris

from harmax.sklearn import FewRowsWarning, HarmonicClassifier, draw_centers, draw_regions


def flowers() -> tuple[pd.DataFrame, pd.Series]:
    """Iris with a column of categories that says something."""
    bundle = load_iris(as_frame=True)
    x = bundle.data.set_axis(["sepal", "width", "petal", "petal_width"], axis=1).iloc[::2]
    x.index = [f"row {place}" for place in range(len(x))]
    y = pd.Series(bundle.target_names[bundle.target], name="kind").iloc[::2].set_axis(x.index)
    return x.assign(color=np.where(y == "setosa", "blue", np.where(x.index.str.len() > 5, "red", "white"))), y


def small(**settings: Any) -> HarmonicClassifier:
    return HarmonicClassifier(**{"exponent": 8.0, "temperature": 1.0, "random_state": 0} | settings)


def test_a_large_pull_makes_centers_the_class_means_in_the_units_of_the_table() -> None:
    x, y = flowers()
    centers = small(pull=1e9).fit(x, y).centers_
    numbers = ["sepal", "width", "petal", "petal_width"]
    expected = x[numbers].groupby(y.to_numpy()).mean()
    pd.testing.assert_frame_equal(centers[numbers], expected, check_names=False, atol=1e-5)
    assert centers.loc["setosa", "color=blue"] == pytest.approx(1, abs=1e-5)
    array = small(pull=1e9).fit(x[numbers].to_numpy(), y).centers_
    np.testing.assert_allclose(array, expected, atol=1e-5)


def test_units_do_not_matter() -> None:
    x, y = flowers()
    model, other = small().fit(x, y), small().fit(x.assign(sepal=1000 * x["sepal"] - 5), y)
    moved = x.assign(sepal=1000 * x["sepal"] - 5)
    np.testing.assert_allclose(model.predict_proba(x), other.predict_proba(moved), atol=1e-6)
    np.testing.assert_allclose(other.centers_["sepal"], 1000 * model.centers_["sepal"] - 5, rtol=1e-4)


@pytest.mark.parametrize("place", [0, 40, 74])
def test_reasons_add_up_to_the_difference_of_squared_distances(place: int) -> None:
    x, y = flowers()
    model = small().fit(x, y)
    why = model.explain(x.iloc[place])
    assert why.predicted == model.predict(x.iloc[[place]])[0]
    assert sum(one.part for one in why.reasons) == pytest.approx(why.difference, rel=1e-9)
    assert why.difference == pytest.approx(why.runner_up_distance**2 - why.distance**2, rel=1e-9)
    assert why.probability == pytest.approx(model.predict_proba(x.iloc[[place]]).max())
    assert (why.nearest[0].row, why.nearest[0].distance) == (x.index[place], 0)
    sepal = next(one for one in why.reasons if one.column == "sepal")
    own, other = (model.centers_.loc[name, "sepal"] for name in (why.predicted, why.runner_up))
    assert (sepal.value, sepal.winner, sepal.runner_up) == pytest.approx((x["sepal"].iloc[place], own, other))
    part = ((sepal.value - other) ** 2 - (sepal.value - own) ** 2) / x["sepal"].var(ddof=0)
    assert sepal.part == pytest.approx(part, rel=1e-9)
    assert next(one.value for one in why.reasons if one.column == "color") == x["color"].iloc[place]
    printed = str(why)
    assert printed.startswith(f"{why.predicted} (")
    assert f"{why.nearest[0].row}: {why.nearest[0].label}" in printed


def test_several_rows_have_several_explanations_also_behind_a_hidden_layer() -> None:
    x, y = flowers()
    model = small(hidden=5).fit(x, y)
    found = model.explain(x.iloc[:2], nearest=1)
    assert [len(why.nearest) for why in found] == [1, 1]
    assert found[0].reasons == ()
    assert model.score(x, y) > 0.95
    with pytest.raises(AttributeError, match="must have no hidden layer"):
        _ = model.centers_


def test_a_hidden_layer_learns_what_centers_cannot() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    y = x[:, 0] * x[:, 1] > 0
    assert small().fit(x, y).score(x, y) < 0.75
    assert small(hidden=8).fit(x, y).score(x, y) > 0.95


def noisy(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes whose best accuracy is 84 %."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 2, rows)
    return generator.normal(size=(rows, 2)) + np.stack([2.0 * y, 0 * y], axis=1), y


def test_the_temperature_comes_from_rows_that_were_held_out() -> None:
    x, y = noisy(300, 0)
    sure = small(exponent=64.0, temperature=0.05).fit(x, y)
    calibrated = small(exponent=64.0, temperature="auto", folds=3).fit(x, y)
    assert calibrated.calibration_ == "3-fold cross-validation"
    new, labels = noisy(1000, 1)
    loss = [-np.mean(m.predict_log_proba(new)[np.arange(1000), labels]) for m in (sure, calibrated)]
    assert loss[1] < 0.45 < loss[0]
    assert abs(calibrated.predict_proba(new).max(axis=1).mean() - calibrated.score(new, labels)) < 0.05


def test_the_exponent_is_the_best_of_those_that_were_compared() -> None:
    x, y = noisy(200, 0)
    model = HarmonicClassifier(folds=3, random_state=0).fit(x, y)
    assert len(model.compared_) >= 3
    assert model.exponent_ == min(model.compared_, key=model.compared_.__getitem__)


def test_abstaining_keeps_its_promise_on_new_rows() -> None:
    x, y = noisy(500, 0)
    model = small(temperature="auto", folds=3).fit(x, y)
    rule = model.abstain(accuracy=0.95)
    new, labels = noisy(2000, 1)
    answers = model.predict(new, abstain=rule)
    answered = answers != None  # noqa: E711
    assert (answers[answered] == labels[answered]).mean() == pytest.approx(0.95, abs=0.03)
    assert answered.mean() == pytest.approx(rule.coverage, abs=0.06)
    half = model.abstain(new, labels, coverage=0.5)
    assert half.coverage == pytest.approx(0.5, abs=0.001)
    assert half.accuracy.estimate > 0.95 > model.score(new, labels)
    assert "50.0% of 2000 rows are answered" in str(half)
    with pytest.raises(ValueError, match="`accuracy` must be above 0 and at most 1, got 95"):
        model.abstain(accuracy=95)
    with pytest.raises(TypeError, match="give `accuracy` or `coverage`, one of them"):
        model.abstain(accuracy=0.9, coverage=0.5)
    with pytest.raises(ValueError, match=r"`accuracy` must be reachable, got 0.99 where the clearest rows reach 0\."):
        model.abstain(new, 1 - labels, accuracy=0.99)
    with pytest.raises(ValueError, match="`abstain` must be a probability"):
        model.predict(new, abstain=95)


def test_too_few_rows_warn_and_say_what_to_do() -> None:
    x, y = flowers()
    few = pd.concat([y.head(10), y.tail(2)]).index
    with pytest.warns(FewRowsWarning, match="got 2 of class virginica; exponent 8 is taken and probabilities are not"):
        model = HarmonicClassifier().fit(x.loc[few], y.loc[few])
    assert (model.exponent_, model.temperature_, model.calibration_) == (8, 1, "none: too few rows")
    with pytest.raises(ValueError, match="because `fit` held none out; pass X and y"):
        model.abstain(accuracy=0.9)


def test_bad_tables_are_refused_by_the_names_of_their_columns() -> None:
    x, y = flowers()
    gap = x.copy()
    gap.iloc[[1, 2], 0] = np.nan
    gap.iloc[3, 4] = None
    with pytest.raises(ValueError, match=r"NaN .* column sepal \(2 rows\), column color \(1 row\); drop these rows"):
        small().fit(gap, y)
    with pytest.raises(ValueError, match=r"infinity in column width \(1 row\)"):
        small().fit(x.assign(width=[np.inf, *x["width"][1:]]), y)
    with pytest.raises(ValueError, match="column 'day' must hold numbers or categories, got dates"):
        small().fit(x.assign(day=pd.Timestamp("2020-01-01")), y)
    with pytest.raises(ValueError, match=r"got one class \(setosa\)"):
        small().fit(x.head(10), y.head(10))
    with pytest.raises(ValueError, match=r"X must hold numbers, got text .* in a DataFrame"):
        small().fit(x.to_numpy(), y)
    model = small().fit(x, y)
    with pytest.raises(ValueError, match="column sepal must hold numbers, as in the training rows, got 'long'"):
        model.predict(x.assign(sepal="long"))
    with pytest.warns(UserWarning, match="column color has categories that no training row had: green"):
        model.predict(x.head(1).assign(color="green"))


def test_a_constant_column_decides_nothing() -> None:
    x, y = flowers()
    model = small().fit(x.assign(same=3.0), y)
    assert (model.centers_["same"] == 3).all()
    np.testing.assert_allclose(model.predict_proba(x.assign(same=1e6)), small().fit(x, y).predict_proba(x), atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exponent": -1}, "`exponent` must be a positive number"),
        ({"temperature": "none"}, "`temperature` must be a positive number"),
        ({"pull": -0.1}, "`pull` must be a finite number of at least 0"),
        ({"folds": 1}, "`folds` must be a whole number of at least 2"),
        ({"hidden": 0}, "`hidden` must be a whole number of at least 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**settings).fit([[0.0], [1.0]], [0, 1])


def test_a_network_or_a_function_can_give_the_features() -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 6), torch.nn.Dropout(0.5)).train()
    pictures = np.random.default_rng(0).normal(size=(40, 3, 4)).astype(np.float32)
    y = pictures.sum(axis=(1, 2)) > 0
    model = small(features=network).fit(pictures, y)
    assert model.centers_.shape == (2, 6)
    assert all(one.training for one in network.modules()), "the network is left as it was"
    np.testing.assert_array_equal(model.predict(pictures), model.predict(pictures))
    texts = ["good", "very good", "bad", "really bad"] * 5
    lengths = small(features=lambda given: [[len(one), one.count("b")] for one in given]).fit(
        texts, ["+", "+", "-", "-"] * 5
    )
    assert lengths.predict(["so bad"]).tolist() == ["-"]
    assert lengths.explain(["so bad"])[0].predicted == "-"
    with pytest.raises(ValueError, match=r"`features` must return shape \(20, features\), got \(20,\)"):
        small(features=lambda given: np.zeros(len(given))).fit(texts, ["+", "-"] * 10)


def test_centers_and_regions_are_drawn() -> None:
    x, y = flowers()
    model = small().fit(x, y)
    for picture in (draw_centers(model), draw_regions(model), draw_regions(model, ("sepal", "width"))):
        picture.figure.canvas.draw()
        assert picture.caption
    with pytest.raises(ValueError, match="`columns` must be two columns of numbers"):
        draw_regions(model, ("sepal", "color"))


def test_a_fit_without_surprises_warns_of_nothing() -> None:
    x, y = flowers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HarmonicClassifier(folds=3, random_state=0).fit(x, y)
