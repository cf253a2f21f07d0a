"""`harmax bench tabular`: one row per table, method and split, and differences that know about shared rows."""

import math

import numpy as np
import pytest

from harmax.bench import BenchOptions, tabular
from harmax.bench.tables import TABLES


def test_smoke_has_a_row_for_each_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular, "FOLDS", 2)
    monkeypatch.setattr(tabular, "METHODS", {name: tabular.METHODS[name] for name in ("harmonic_paper", "centroid")})
    rows = list(tabular.rows(BenchOptions(smoke=True)))
    assert [(row["table"], row["method"], row["split"]) for row in rows] == [
        ("iris", "harmonic_paper", 0),
        ("iris", "centroid", 0),
    ]
    for row in rows:
        assert row["accuracy"] > 0.8
        assert 0 < row["log_loss"] < math.log(3)
        assert (row["train_rows"], row["test_rows"], row["columns"], row["classes"]) == (100, 50, 4, 3)


def test_a_difference_is_paired_and_its_interval_longer_than_the_usual_one() -> None:
    generator = np.random.default_rng(0)
    splits = generator.normal(0.8, 0.1, 20)  # splits differ far more than methods
    gaps = generator.normal(0.02, 0.01, 20)
    rows = [
        {"table": "t", "method": method, "split": split, "accuracy": accuracy, "train_rows": 100, "test_rows": 50}
        for split in range(20)
        for method, accuracy in (("a", splits[split] + gaps[split]), ("b", splits[split]))
    ]
    found = tabular.difference(rows, "t", "a", "b", "accuracy")
    assert found.estimate == pytest.approx(gaps.mean())
    usual = 2.093 * gaps.std(ddof=1) / math.sqrt(20)
    assert found.high - found.estimate == pytest.approx(usual * math.sqrt(1 + 20 * 0.5), rel=1e-3)
    with pytest.raises(ValueError, match="must share 2 splits of t, got 0"):
        tabular.difference(rows, "t", "a", "c", "accuracy")


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_tables_are_whole(name: str) -> None:
    table = TABLES[name]()
    assert len(table.x) == len(table.y) > 100
    assert not table.x.isna().any(axis=None)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="run pip install --no-deps palmerpenguins"):
        TABLES["penguins"]()
