"""Columns of a table as numbers of variance 1, and back to the units of the table."""

# N rows, C columns of the table, D columns after encoding

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_NAMED = 5


@dataclass(frozen=True)
class Column:
    """One column of the table, and how it becomes numbers."""

    name: str
    mean: np.ndarray
    """Of a number, (1,), or the share of each category, (K,)."""
    spread: float
    """Standard deviation; of a category the root of the summed variances of its indicators. 0 if constant."""
    categories: tuple[Any, ...] = ()
    """Of a column of categories, in order; empty for a column of numbers."""

    @property
    def names(self) -> list[str]:
        """Names after encoding: the column's own, or `column=category`."""
        return [f"{self.name}={one}" for one in self.categories] or [self.name]


def is_table(x: Any) -> bool:
    """Return whether this is a DataFrame of pandas; pandas is not imported."""
    return type(x).__module__.partition(".")[0] == "pandas" and hasattr(x, "columns")


def plain_columns(x: Any, names: Sequence[str]) -> list[np.ndarray]:
    """Return the columns of a table or matrix: float64 for numbers, objects for categories.

    Missing and infinite values are refused, with the names of their columns.
    """
    found = [_plain(x.iloc[:, place]) if is_table(x) else x[:, place] for place in range(len(names))]
    _refuse_missing(dict(zip(names, found, strict=True)))
    return found


def _plain(series: Any) -> np.ndarray:
    from pandas.api import types

    if types.is_numeric_dtype(series.dtype) and not types.is_bool_dtype(series.dtype):
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    if types.is_datetime64_any_dtype(series.dtype) or types.is_timedelta64_dtype(series.dtype):
        raise ValueError(
            f"column {series.name!r} must hold numbers or categories, got dates; turn them into numbers first, such as "
            f"x[{series.name!r}].dt.year, or drop the column."
        )
    return series.astype(object).where(series.notna(), None).to_numpy(dtype=object)


def _refuse_missing(columns: dict[str, np.ndarray]) -> None:
    missing = {name: _count_missing(values) for name, values in columns.items()}
    bad = {name: count for name, count in missing.items() if count}
    if bad:
        raise ValueError(
            f"every column must be filled, got NaN or missing values in {_listed(bad)}; drop these rows "
            "(x.dropna()), or fill them with sklearn.impute.SimpleImputer in a pipeline."
        )
    endless = {name: int(np.isinf(values).sum()) for name, values in columns.items() if values.dtype != object}
    bad = {name: count for name, count in endless.items() if count}
    if bad:
        raise ValueError(f"every number must be finite, got infinity in {_listed(bad)}; look for a division by 0.")


def _count_missing(values: np.ndarray) -> int:
    if values.dtype == object:
        return sum(value is None for value in values)
    return int(np.isnan(values).sum())


def _listed(counts: dict[str, int]) -> str:
    shown = [f"column {name} ({count} row{'s' * (count > 1)})" for name, count in list(counts.items())[:MOST_NAMED]]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more} more columns" if more else "")


class Columns:
    """Encoding of a table, found on the training rows.

    A number becomes (value - mean) / standard deviation. A category becomes one indicator per value, centered and
    divided by one common number, so that the column as a whole has variance 1, as a number has. A constant column
    becomes 0, also where new rows differ, because training rows say nothing about it. A category that is new becomes
    the average of the training rows, with a warning.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)

    @classmethod
    def fit(cls, values: Sequence[np.ndarray], names: Sequence[str], weights_N: np.ndarray) -> "Columns":
        """Find means, spreads and categories; rows count by their weights."""
        share_N = weights_N / weights_N.sum()
        return cls([_fitted(name, column, share_N) for name, column in zip(names, values, strict=True)])

    def encode(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return the rows as numbers, (N, D)."""
        parts = [_encoded(column, given) for column, given in zip(self.columns, values, strict=True)]
        return np.concatenate(parts, axis=1)

    @property
    def names(self) -> list[str]:
        """Names after encoding, (D,)."""
        return [name for column in self.columns for name in column.names]

    @property
    def places(self) -> list[slice]:
        """Where each column of the table is after encoding, (C,)."""
        ends = np.cumsum([len(column.mean) for column in self.columns])
        return [slice(int(end) - len(column.mean), int(end)) for column, end in zip(self.columns, ends, strict=True)]

    def in_units(self, x_ND: np.ndarray) -> np.ndarray:
        """Return encoded rows or centers in the units of the table, (N, D); indicators are 0 or 1 for a row."""
        mean_D = np.concatenate([column.mean for column in self.columns])
        spread_D = np.concatenate([np.full(len(column.mean), column.spread) for column in self.columns])
        return x_ND * spread_D + mean_D


def _fitted(name: str, values: np.ndarray, share_N: np.ndarray) -> Column:
    if values.dtype != object:
        mean = float(share_N @ values)
        spread = float(np.sqrt(share_N @ np.square(values - mean)))
        if values.min() == values.max():
            return Column(name, values[:1].copy(), 0.0)
        return Column(name, np.array([mean]), spread if spread > 1e-12 * abs(mean) else 0.0)
    categories = tuple(sorted(set(values), key=str))
    shares_K = np.array([share_N[values == one].sum() for one in categories])
    spread = float(np.sqrt((shares_K * (1 - shares_K)).sum())) if len(categories) > 1 else 0.0
    return Column(name, shares_K, spread, categories)


def _encoded(column: Column, values: np.ndarray) -> np.ndarray:
    if not column.categories:
        raw_NK = _numbers(column, values)[:, None]
    else:
        raw_NK = (values[:, None] == np.array(column.categories, dtype=object)).astype(np.float64)
        unknown_N = ~raw_NK.any(axis=1)
        if unknown_N.any():
            new = sorted({str(value) for value in values[unknown_N]})
            warnings.warn(
                f"column {column.name} has categories that no training row had: {', '.join(new[:MOST_NAMED])}; they "
                "are taken as the average of the training rows.",
                UserWarning,
                stacklevel=2,
            )
            raw_NK[unknown_N] = column.mean
    return (raw_NK - column.mean) / column.spread if column.spread else np.zeros_like(raw_NK)


def _numbers(column: Column, values: np.ndarray) -> np.ndarray:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        odd = next(value for value in values if not isinstance(value, (int, float, np.number)))
        raise ValueError(
            f"column {column.name} must hold numbers, as in the training rows, got {odd!r}; convert it first."
        ) from None
