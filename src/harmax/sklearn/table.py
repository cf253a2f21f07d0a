"""A table from a CSV file, with clear words about what a classifier cannot use."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harmax.errors import needs, unknown
from harmax.files import check_ordinary

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MOST_CATEGORIES = 20
"""A column of text with more different values is taken for free text or for names of rows."""
FEW_CATEGORIES = 5
"""So many values may be categories also in a short file."""


def read_csv(
    path: str | Path, *, target: str, drop: Sequence[str] = (), drop_missing: bool = False, **options: Any
) -> "tuple[DataFrame, Series]":
    """Return the columns and the classes of a CSV file, ready for `HarmonicClassifier.fit`.

    Nothing is changed silently. Missing values, constant columns, free text and a single class are errors that name the
    column and say what to do.

    Args:
        path: the file, with names of columns in its first line.
        target: the column of classes.
        drop: columns to leave out.
        drop_missing: leave out rows with missing values.
        options: of `pandas.read_csv`, such as sep=";".

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "plants.csv"
    ...     _ = path.write_text("height,leaf,kind\\n3.1,round,oak\\n2.0,long,ash\\n3.3,round,oak\\n")
    ...     x, y = read_csv(path, target="kind")
    >>> list(x.columns), list(y)
    (['height', 'leaf'], ['oak', 'ash', 'oak'])
    """
    with needs("sklearn"):
        import pandas

    name = Path(path).name
    if Path(path).exists():  # else it is an address, or an error of pandas
        check_ordinary(Path(path))
    try:
        table = pandas.read_csv(path, **options)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, UnicodeDecodeError, MemoryError) as error:
        raise ValueError(
            f"{name} must be a CSV file, got one that cannot be read ({str(error) or 'memory ran out'}); give its "
            'separator and encoding, such as sep=";" or encoding="latin-1".'
        ) from error
    for column in (target, *drop):
        if column not in table.columns:
            words = unknown("column", column, map(str, table.columns))
            hint = ' The file has a single column; is its separator another one, such as sep=";"?'
            raise ValueError(f"{name}: {words}" + (hint if table.shape[1] == 1 else ""))
    table = table.drop(columns=list(drop))
    if drop_missing:
        table = table.dropna().reset_index(drop=True)
    _refuse_missing(table, name)
    x, y = table.drop(columns=target), table[target]
    _check_classes(y, name)
    for column in x.columns:
        _check_column(x[column], name)
    if not x.shape[1]:
        raise ValueError(
            f"{name} must have columns beside {target!r}, got none; drop fewer, or give another separator."
        )
    return x, y


def _refuse_missing(table: "DataFrame", name: str) -> None:
    counts = table.isna().sum()
    if counts.any():
        told = ", ".join(f"column {column!r} ({count} rows)" for column, count in counts[counts > 0].items())
        rows = int(table.isna().any(axis=1).sum())
        raise ValueError(
            f"{name} must have no missing values, got some in {told}, {rows} of {len(table)} rows in all; leave these "
            "rows out with drop_missing=True or the columns with drop=[...], or read the file yourself and fill them "
            "with sklearn.impute.SimpleImputer."
        )


def _check_classes(y: "Series", name: str) -> None:
    found = y.unique()
    if len(found) < 2:
        raise ValueError(
            f"column {y.name!r} of {name} must have at least 2 classes, got {len(found)} "
            f"({', '.join(map(str, found))}); name the column of classes as target=..., or add rows of another class."
        )
    if y.dtype.kind == "f" and (y % 1 != 0).any():
        raise ValueError(
            f"column {y.name!r} of {name} must hold classes, got numbers with fractions such as "
            f"{y[y % 1 != 0].iloc[0]}; name another column as target=..., or cut the numbers into classes with "
            "pandas.cut."
        )


def _check_column(column: "Series", name: str) -> None:
    distinct = column.nunique()
    leave = f"leave it out with drop=[{column.name!r}]"
    if distinct == 1:
        raise ValueError(f"column {column.name!r} of {name} must vary, got {column.iloc[0]!r} in all rows; {leave}.")
    if column.dtype.kind not in "biuf" and distinct > min(MOST_CATEGORIES, max(FEW_CATEGORIES, len(column) / 2)):
        raise ValueError(
            f"column {column.name!r} of {name} must hold numbers or few categories, got {distinct} different texts in "
            f"{len(column)} rows, such as {column.iloc[0]!r}; {leave}, repair numbers that are written as text "
            '(decimal=","), or give free text to HarmonicClassifier(features=...).'
        )
