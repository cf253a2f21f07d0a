"""How long experiments take: measured on stored runs of this machine or, without one, in the table durations.csv."""

import csv
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from harmax.errors import DamagedError
from harmax.files import read_json
from harmax_lab.kit.store import readable_runs

Key = tuple[str, str]


class Duration(NamedTuple):
    """A measured time, and where it was measured."""

    seconds: float
    machine: str

    def __str__(self) -> str:
        """Write the time as people say it.

        >>> str(Duration(7.2, "")), str(Duration(300.0, "")), str(Duration(9000.0, ""))
        ('7 s', '5 min', '2.5 h')
        """
        if self.seconds < 90:
            return f"{max(self.seconds, 1):.0f} s"
        return f"{self.seconds / 60:.0f} min" if self.seconds < 5400 else f"{self.seconds / 3600:.1f} h"


def durations(folder: Path) -> Mapping[Key, Duration]:
    """Return the measured times by experiment and profile; those of runs in a folder come before the table's.

    A run counts if all its cells are finished and none of its settings was changed.
    """
    found = dict(committed())
    for run in readable_runs(folder):
        if run.source is not None or run.config["overrides"]:
            continue
        try:
            seconds = sum(float(read_json(run.cell_folder(name) / "done")["seconds"]) for name in run.cells)
        except (DamagedError, KeyError, TypeError, ValueError):
            continue  # a cell is missing, or damaged, which the report says
        found[run.experiment, run.profile] = Duration(seconds, f"here, in {folder}")
    return found


def committed() -> Mapping[Key, Duration]:
    """Return the times of the table that comes with the package."""
    text = resources.files("harmax_lab").joinpath("durations.csv").read_text()
    return {
        (row["experiment"], row["profile"]): Duration(float(row["seconds"]), row["machine"])
        for row in csv.DictReader(text.splitlines())
    }
