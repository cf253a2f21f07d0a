"""Published rows: what claims and tables need from every cell. They are small enough to commit.

rows.csv.gz           one line per cell: its fields, then its metrics, numbers with all their digits
arrays.safetensors    the curves and arrays that an experiment names in `keeps`, as <cell>/<name>
"""

import csv
import gzip
import io
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from harmax.data.folder import read_gzip
from harmax.errors import DamagedError
from harmax.files import MOST_BYTES, read_json, write_atomically
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult, american

ROWS, ARRAYS = "rows.csv.gz", "arrays.safetensors"
OLD_ROWS = "cells.csv.gz"
"""The rows of older results. They have six digits and lack the measures of views."""


def write_rows(experiment: Experiment[Any, Any], results: Results[Any, Any], folder: Path) -> None:
    """Write the rows of finished cells, and the arrays that the experiment keeps."""
    # Without a time stamp, the same rows give the same file.
    write_atomically(folder / ROWS, gzip.compress(rows_of(results).encode(), mtime=0))
    kept = {
        f"{cell.name}/{name}": np.ascontiguousarray(array)
        for cell, result in results.items()
        for name, array in {**result.curves, **result.arrays}.items()
        if any(fnmatchcase(name, pattern) for pattern in experiment.keeps)
    }
    if kept:
        write_atomically(folder / ARRAYS, save(kept))


def rows_of(results: Results[Any, Any]) -> str:
    """Return finished cells as a csv. A metric with the name of a field is called "<name>, found"."""
    rows = []
    for cell, result in results.items():
        row = asdict(cell)
        metrics = {f"{key}, found" if key in row else key: value for key, value in result.metrics.items()}
        rows.append(row | {key: value for key, value in metrics.items() if not isinstance(value, dict | list | tuple)})
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _text(value) for key, value in row.items()} for row in rows)
    return file.getvalue()


def read_rows(experiment: Experiment[Any, Any], folder: Path) -> Results[Any, Any]:
    """Read published rows as the results of their run; raise DamagedError if they do not fit the experiment."""
    summary = read_json(folder / "summary.json")
    stored = summary.get("spec")
    spec = experiment.profiles[summary["profile"]] if stored is None else experiment.load_spec(stored)
    path = folder / ROWS if (folder / ROWS).exists() else folder / OLD_ROWS
    try:
        lines = list(csv.DictReader(io.StringIO(read_gzip(path, MOST_BYTES).decode())))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path} must hold the rows of a run, but cannot be read: {error}") from None
    kept = load_file(folder / ARRAYS) if (folder / ARRAYS).exists() else {}
    cells = experiment.work.cells(spec)
    known = {tuple(map(_text, asdict(cell).values())): cell for cell in cells}
    fields = list(asdict(cells[0]))
    found = {}
    for line in lines:
        cell = known.get(tuple(line.get(field, "") for field in fields))
        if cell is None:
            raise DamagedError(
                f"{path} has a row that is no cell of `{experiment.name}`: {dict(list(line.items())[:6])}"
            )
        metrics = {key.removesuffix(", found"): _value(text) for key, text in line.items() if key not in fields}
        own = {key.partition("/")[2]: array for key, array in kept.items() if key.startswith(f"{cell.name}/")}
        found[cell] = CellResult(own, own, american(metrics))  # whether it was a curve or an array is not stored
    return Results(spec, {cell: found[cell] for cell in cells if cell in found}, cells)


def _text(value: Any) -> str:
    return "" if value is None else repr(float(value)) if isinstance(value, float | np.floating) else str(value)


def _value(text: str) -> Any:
    """Read what `_text` wrote.

    >>> [_value(text) for text in ("", "3", "0.5", "inf", "True", "harmonic")]
    [None, 3, 0.5, inf, True, 'harmonic']
    """
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
