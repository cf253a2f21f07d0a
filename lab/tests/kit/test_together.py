"""Cells of one stack keep their bits when a kill comes while they are being stored."""

from pathlib import Path

import numpy as np
import pytest

from harmax_lab.algorithmic.protocols import settings
from harmax_lab.algorithmic.training import RunCell, train
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.together import FOLDER

CELLS = [
    RunCell("matched", task, "mlp", "harmonic", 0.8, seed)
    for task in ("modular_addition", "genealogy")
    for seed in (0, 1)
]


def trained(cells: list[RunCell], scratch: Path, *, stored: int = 10**6) -> dict[str, CellResult]:
    """Train cells; a kill comes after so many of them have been stored."""
    found = {}
    for cell, result in train(
        cells, lambda cell: settings(cell.protocol, cell.model, cell.head, epochs=2), Context(scratch)
    ):
        found[cell.name] = result
        if len(found) == stored:
            break
    return found


@pytest.mark.parametrize("stored", [1, 3])
def test_what_a_kill_left_of_a_stack_comes_out_as_if_nothing_had_been(tmp_path: Path, stored: int) -> None:
    whole = trained(CELLS, tmp_path / "whole")
    assert len({result.metrics["waste"] for result in whole.values()}) == 1
    first = trained(CELLS, tmp_path / "killed", stored=stored)
    rest = trained([cell for cell in CELLS if cell.name not in first], tmp_path / "killed")
    assert {**first, **rest}.keys() == whole.keys()
    for name, result in {**first, **rest}.items():
        assert result.metrics == whole[name].metrics
        for kind in ("curves", "arrays"):
            got, wanted = getattr(result, kind), getattr(whole[name], kind)
            assert got.keys() == wanted.keys()
            for key in wanted:
                np.testing.assert_array_equal(got[key], wanted[key], err_msg=f"{name} {key}")
                assert got[key].dtype == wanted[key].dtype


def test_a_damaged_file_is_passed_over(tmp_path: Path) -> None:
    trained(CELLS, tmp_path, stored=1)
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:-40])
    assert trained(CELLS, tmp_path).keys() == {cell.name for cell in CELLS}
