"""Cells that were trained as one stack: their results are set aside together before the first of them is stored.

A kill may come while they are being stored. The others would then be trained again in a smaller stack, whose sums are
rounded otherwise. So what was set aside is taken up instead, with the same bits.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from harmax.errors import needs
from harmax.files import from_json, to_json, write_atomically
from harmax_lab.kit.experiment import Cell, Context
from harmax_lab.kit.store import CellResult

FOLDER, KINDS = "together", ("curves", "arrays")
C = TypeVar("C", bound=Cell)


def set_aside(results: Sequence[tuple[C, CellResult]], context: Context) -> Iterator[tuple[C, CellResult]]:
    """Write the results of one stack to the scratch folder, then yield one after the other."""
    with needs("run"):
        from safetensors.numpy import save

    arrays = {
        f"{place}/{kind}/{name}": np.array(array, order="C")
        for place, (_, result) in enumerate(results)
        for kind in KINDS
        for name, array in getattr(result, kind).items()
    }
    words = {"cells": to_json([cell.name for cell, _ in results])}
    words["metrics"] = to_json([result.metrics for _, result in results])
    name = hashlib.sha256(words["cells"].encode()).hexdigest()[:16]
    write_atomically(context.scratch / FOLDER / f"{name}.safetensors", save(arrays, metadata=words))
    yield from results


def take_up(cells: Sequence[C], context: Context) -> tuple[list[tuple[C, CellResult]], list[C]]:
    """Return those of some cells that were set aside, with their results, and the cells that remain to be trained."""
    wanted = {cell.name: cell for cell in cells}
    found: list[tuple[C, CellResult]] = []
    for path in sorted((context.scratch / FOLDER).glob("*.safetensors")):
        for name, result in _read(path):
            if name in wanted:
                found.append((wanted.pop(name), result))
    return found, list(wanted.values())


def _read(path: Path) -> Iterator[tuple[str, CellResult]]:
    with needs("run"):
        from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            words = file.metadata()
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (it is no dictionary)
    except (OSError, SafetensorError):
        return  # a damaged one is trained again
    names, metrics = from_json(words["cells"]), from_json(words["metrics"])
    for place, name in enumerate(names):
        own = {kind: dict[str, np.ndarray]() for kind in KINDS}
        for key, array in arrays.items():
            number, kind, label = key.split("/", 2)
            if int(number) == place:
                own[kind][label] = array
        yield name, CellResult(own["curves"], own["arrays"], metrics[place])
