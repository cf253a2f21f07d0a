"""Run folders: plain files that are read only when they are whole. `writer.py` writes them.

    <folder>/<experiment>/<spec-hash>/
        config.json  env.json  summary.json
        figures/<figure>.png  captions.json
        cells/<cell>/curves.safetensors  arrays.safetensors  metrics.json
        cells/<cell>/done                 written last: sizes and digests of the three files above
        cells/<cell>/failed.json          the error of the last attempt, if there is no `done`
        partial/<group>/                  partial state of an unfinished group of cells
        .shared/                          which process computes which cells: `reservations.py`

A view has only config.json, summary.json and figures. The `source` in its config names the run folder that holds its
cells.

Nothing here depends on experiments: specs and cells are dictionaries of plain values.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from harmax.errors import DamagedError, needs, unknown
from harmax.files import digest, from_json, read_json, read_whole, to_json
from harmax_lab.kit.notebook_page import run_as_html

CELL_FILES = ("curves.safetensors", "arrays.safetensors", "metrics.json")
MOST_ARRAYS = 2**31
"""Bytes of a file of a cell."""
CELL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,=+-]*")
SOURCE = re.compile(r"\w+/[0-9a-f]{12}")


@dataclass(frozen=True)
class Damage:
    """Something unreadable in a folder of runs. It is reported and left as it is."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class CellResult:
    """The result of one cell: series over steps, final arrays, and scalars."""

    curves: Mapping[str, np.ndarray] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)


def spec_hash(experiment: str, version: int, spec: Mapping[str, Any], *, source: str | None = None) -> str:
    """Return the key of a run: a digest of everything that decides its numbers, and of a view's source.

    >>> spec_hash("toy_cases", 1, {"steps": 10})
    '8ad8100f4302'
    """
    # Sorted, so that the key does not depend on the order in which fields are declared.
    fields = dict(sorted(from_json(to_json(spec)).items()))
    origin = {} if source is None else {"source": source}
    text = to_json({"experiment": experiment, "spec": fields, "version": version, **origin})
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Run:
    """One run folder, for reading.

    Args:
        folder: of the run.
        config: what its config.json holds.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.config = folder, config
        self.experiment: str = config["experiment"]
        self.profile: str = config["profile"]
        self.cells: dict[str, dict[str, Any]] = config["cells"]
        """Every cell that the run should have, by name."""
        self.source: str | None = config.get("source")
        """The run whose cells a view reads, as <experiment>/<spec-hash>; None for other runs."""
        self.home = folder if self.source is None else folder.parents[1] / self.source
        """The folder with the cells."""

    def __repr__(self) -> str:
        return (
            f"Run({self.experiment!r}, profile={self.profile!r}, cells={len(self.cells)}, "
            f"done={len(self.done)}, failed={len(self.failed)}, folder={str(self.folder)!r})"
        )

    @staticmethod
    def open(folder: Path | str) -> "Run":
        """Open a run folder; raise DamagedError if its config.json is missing, damaged or of another run."""
        return Run(Path(folder), read_config(Path(folder)))

    @cached_property
    def _checked(self) -> tuple[list[str], list[Damage]]:
        done, damaged = [], []
        for name in self.cells:
            cell = self.cell_folder(name)
            try:
                if not self.is_written(name):
                    continue
                _check_cell(cell)
                done.append(name)
            except (DamagedError, OSError) as error:
                damaged.append(Damage(cell, str(error)))
        return done, damaged

    @property
    def done(self) -> list[str]:
        """Names of the finished cells whose files are whole."""
        return self._checked[0]

    @property
    def damaged(self) -> list[Damage]:
        """Finished cells with missing or changed files."""
        return self._checked[1]

    def is_written(self, name: str) -> bool:
        """Return whether a cell has been finished by now, also by another process."""
        return (self.cell_folder(name) / "done").exists()

    def look_again(self) -> None:
        """See what other processes have finished meanwhile."""
        self.__dict__.pop("_checked", None)

    @property
    def failed(self) -> dict[str, str]:
        """The error text of every cell whose last attempt failed."""
        failures = {}
        for name in self.cells:
            cell = self.cell_folder(name)
            if (cell / "failed.json").exists() and not self.is_written(name):
                try:
                    failures[name] = str(read_json(cell / "failed.json")["error"])
                except (DamagedError, KeyError, TypeError):
                    failures[name] = "unknown: failed.json is unreadable"
        return failures

    @property
    def pending(self) -> list[str]:
        """Names of the cells that remain to be run: neither finished nor damaged."""
        skip = {*self.done, *(damage.path.name for damage in self.damaged)}
        return [name for name in self.cells if name not in skip]

    @property
    def results(self) -> dict[str, CellResult]:
        """Results of the finished cells, by name."""
        return {name: self.read(name) for name in self.done}

    def read(self, name: str) -> CellResult:
        """Read one finished cell; raise DamagedError with the file that cannot be read."""
        cell = self.cell_folder(name)
        curves, arrays = (_read_arrays(cell / file) for file in CELL_FILES[:2])
        metrics = read_json(cell / CELL_FILES[2])
        if not isinstance(metrics, dict):
            raise DamagedError(f"{cell / CELL_FILES[2]} must hold a value per metric, and does not")
        return CellResult(american(curves), american(arrays), american(metrics))

    @property
    def seconds(self) -> float:
        """Time spent on the finished cells."""
        return sum(read_json(self.cell_folder(name) / "done")["seconds"] for name in self.done)

    @property
    def summary(self) -> dict[str, Any] | None:
        """What summary.json holds; None if the run was never completed."""
        path = self.folder / "summary.json"
        return read_json(path) if path.exists() else None

    @property
    def figures(self) -> Path:
        """The folder with the figures of the run; `harmax run` fills it."""
        return self.folder / "figures"

    def _repr_html_(self) -> str:
        """Show the run in a notebook: what is done, the verdicts, and the figures."""
        return run_as_html(self)

    @property
    def environments(self) -> list[dict[str, Any]]:
        """Every environment in which cells of this run were computed, in the order of their first use."""
        path = self.home / "env.json"
        found = read_json(path) if path.exists() else []
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise DamagedError(f"{path} must hold a list of environments, and does not; delete it to do without it")
        return found

    def cell_folder(self, name: str) -> Path:
        """Return the folder of a cell."""
        return self.home / "cells" / name


@dataclass(frozen=True)
class Runs:
    """Every readable run of a folder, in a fixed order, and what could not be read."""

    runs: tuple[Run, ...]
    damaged: tuple[Damage, ...] = ()

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def query(self, *, experiment: str | None = None, profile: str | None = None, **fields: Any) -> "Runs":
        """Keep the runs of an experiment, of a profile, or with the given fields in their spec."""
        known = {name for run in self.runs for name in run.config["spec"]}
        for name in fields:
            if self.runs and name not in known:
                raise ValueError(unknown("field", name, sorted(known)))
        wanted = from_json(to_json(fields))  # as it is stored, so with lists for tuples
        chosen = (
            run
            for run in self.runs
            if experiment in (None, run.experiment)
            and profile in (None, run.profile)
            and wanted.items() <= run.config["spec"].items()
        )
        return Runs(tuple(chosen), self.damaged)


def open_runs(folder: Path | str = "runs") -> Runs:
    """Read a folder of runs. Damaged runs and cells are listed in `.damaged` with the reason, and left as they are.

    Args:
        folder: what was given to `harmax run --folder`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"`folder` must be a folder of runs, got {str(folder)!r}; make one with `harmax run NAME`.")
    runs: list[Run] = []
    damaged: list[Damage] = []
    for path in sorted(folder.glob("[!.]*/[!.]*/")):
        try:
            if not is_started(path):
                continue
            run = Run.open(path)
        except (DamagedError, OSError) as error:
            damaged.append(Damage(path, str(error)))
        else:
            runs.append(run)
            if run.source is None:  # a view would list the cells of its source a second time
                damaged.extend(run.damaged)
    return Runs(tuple(runs), tuple(damaged))


def readable_runs(folder: Path) -> Iterator[Run]:
    """Yield the runs of a folder, which may not exist, without a look at their cells: cheap for runs of any size."""
    for path in filter(is_started, sorted(folder.glob("[!.]*/[!.]*/"))):
        with suppress(DamagedError):
            yield Run.open(path)


def is_started(folder: Path) -> bool:
    """Return whether a run folder holds anything. Its config is written first, so an early crash leaves it empty."""
    return folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())


def read_config(folder: Path) -> dict[str, Any]:
    """Return what config.json holds; raise DamagedError if that is not the config of this run folder."""
    config = read_json(folder / "config.json")
    try:
        source = config.get("source")
        key = spec_hash(config["experiment"], config["version"], config["spec"], source=source)
        known = isinstance(config["profile"], str) and (source is None or SOURCE.fullmatch(source) is not None)
        known = known and all(isinstance(config[name], dict) for name in ("spec", "cells", "overrides"))
        known = known and all(CELL_NAME.fullmatch(name) for name in config["cells"])
    except (KeyError, TypeError, AttributeError, RecursionError):
        known = False
    if not known:
        raise DamagedError("config.json must hold experiment, version, profile, spec and cells, and does not")
    if (config["experiment"], key) != (folder.parent.name, folder.name):
        raise DamagedError(f"config.json belongs to {config['experiment']}/{key}, not to this folder")
    return config


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    with needs("run"):
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DamagedError(f"{path} cannot be read ({error})") from None


def _check_cell(cell: Path) -> None:
    done = read_json(cell / "done")
    files = done.get("files") if isinstance(done, dict) else None
    if not isinstance(files, dict) or set(files) != set(CELL_FILES):
        raise DamagedError("`done` must name the cell's three files, and does not")
    for file, expected in files.items():
        try:
            data = read_whole(cell / file, MOST_ARRAYS)
        except FileNotFoundError:
            raise DamagedError(f"{file} is missing") from None
        except DamagedError as error:
            raise DamagedError(str(error).removeprefix(f"{cell}/")) from None
        except OSError as error:
            raise DamagedError(f"{file} cannot be read ({error.strerror})") from None
        if digest(data) != expected:
            raise DamagedError(f"{file} is not the file that was written ({len(data)} bytes)")


def american(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored values under today's names: older runs use British spelling.

    >>> american({"centre_distance": 1.0})
    {'center_distance': 1.0}
    """
    return {name.replace("centre", "center").replace("neighbour", "neighbor"): stored[name] for name in stored}
