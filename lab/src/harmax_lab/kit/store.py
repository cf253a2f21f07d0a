"""Run folders: plain files, written atomically, read back only when whole.

    <folder>/<experiment>/<spec-hash>/
        config.json  env.json  summary.json
        cells/<cell>/curves.safetensors  arrays.safetensors  metrics.json
        cells/<cell>/done                 written last: sizes and digests of the three files above
        cells/<cell>/failed.json          the error of the last attempt, where there is no `done`
        partial/<group>/                  what an unfinished group of cells keeps for itself

A view has config.json and summary.json alone: its config names the run folder that holds its cells, as `source`.

Nothing here knows what an experiment is: a spec and a cell are dictionaries of plain values.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from harmax.environment import environment
from harmax.errors import DamagedError, needs, unknown
from harmax.files import digest, read_json, to_json, write_atomically, write_json

CELL_FILES = ("curves.safetensors", "arrays.safetensors", "metrics.json")
CELL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,=+-]*")
SOURCE = re.compile(r"\w+/[0-9a-f]{12}")


@dataclass(frozen=True)
class Damage:
    """Something unreadable in a folder of runs: it is named and left alone."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class CellResult:
    """What one cell leaves behind: series over steps, final arrays, and scalars."""

    curves: Mapping[str, np.ndarray] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)


def spec_hash(experiment: str, version: int, spec: Mapping[str, Any], *, source: str | None = None) -> str:
    """Return the key of a run: a digest of everything that decides its numbers, a view's source included.

    >>> spec_hash("toy_cases", 1, {"steps": 10})
    '8ad8100f4302'
    """
    # Sorted, so that the order in which fields are declared does not count.
    fields = dict(sorted(json.loads(to_json(spec)).items()))
    origin = {} if source is None else {"source": source}
    text = to_json({"experiment": experiment, "spec": fields, "version": version, **origin})
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Run:
    """One run folder: what was asked, the cells that are finished, those that failed, the summary.

    `config` is what config.json holds; `damaged` lists cells whose files are not what `done` says. `home` is the folder
    with the cells: another one than `folder` for a view, which shows its source's cells as if they were its own.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config
        self.home = folder if self.source is None else folder.parents[1] / self.source

    def __repr__(self) -> str:
        return (
            f"Run({self.experiment!r}, profile={self.profile!r}, cells={len(self.cells)}, "
            f"done={len(self.done)}, failed={len(self.failed)}, folder={str(self.folder)!r})"
        )

    @classmethod
    def create(
        cls,
        root: Path | str,
        *,
        experiment: str,
        version: int,
        profile: str,
        spec: Mapping[str, Any],
        cells: Mapping[str, Mapping[str, Any]],
        overrides: Mapping[str, Any] | None = None,
        source: str | None = None,
    ) -> "Run":
        """Open the run folder of a spec, making it first where there is none.

        `source` is the folder of the run whose cells this one reads, as <experiment>/<spec-hash>.
        """
        for name in cells:
            if not CELL_NAME.fullmatch(name):
                raise ValueError(f"a cell's name must match {CELL_NAME.pattern}, got {name!r}; rename the cell.")
        folder = Path(root) / experiment / spec_hash(experiment, version, spec, source=source)
        if not is_started(folder):
            config = {
                "experiment": experiment,
                "version": version,
                "profile": profile,
                "spec": spec,
                "overrides": overrides or {},
                "cells": cells,
                **({} if source is None else {"source": source}),
            }
            write_json(folder / "config.json", config)
        try:
            run = cls.open(folder)
            if set(run.cells) != set(cells):
                raise DamagedError("config.json lists other cells than the experiment has")
            return run
        except DamagedError as error:
            raise DamagedError(f"{folder} must be a whole run folder, but {error}; move or delete it to run.") from None

    @classmethod
    def open(cls, folder: Path | str) -> "Run":
        """Open an existing run folder; raise DamagedError where its config is not to be trusted."""
        folder = Path(folder)
        config = read_json(folder / "config.json")
        try:
            source = config.get("source")
            key = spec_hash(config["experiment"], config["version"], config["spec"], source=source)
            known = isinstance(config["profile"], str) and all(
                isinstance(config[name], dict) for name in ("spec", "cells", "overrides")
            )
            known = known and (source is None or SOURCE.fullmatch(source) is not None)
        except (KeyError, TypeError, AttributeError):
            known = False
        if not known:
            raise DamagedError("config.json must hold experiment, version, profile, spec and cells, and does not")
        if (config["experiment"], key) != (folder.parent.name, folder.name):
            raise DamagedError(f"config.json belongs to {config['experiment']}/{key}, not to this folder")
        return cls(folder, config)

    @property
    def experiment(self) -> str:
        """Name of the experiment."""
        return str(self.config["experiment"])

    @property
    def profile(self) -> str:
        """Name of the profile that was asked for."""
        return str(self.config["profile"])

    @property
    def source(self) -> str | None:
        """The run whose cells a view reads, as <experiment>/<spec-hash>; None where the cells are its own."""
        return self.config.get("source")

    @property
    def cells(self) -> dict[str, dict[str, Any]]:
        """Every cell the run should have, by name."""
        return dict(self.config["cells"])

    @cached_property
    def _checked(self) -> tuple[list[str], list[Damage]]:
        done, damaged = [], []
        for name in self.cells:
            cell = self._cell(name)
            if not (cell / "done").exists():
                continue
            try:
                _check_cell(cell)
                done.append(name)
            except DamagedError as error:
                damaged.append(Damage(cell, str(error)))
        return done, damaged

    @property
    def done(self) -> list[str]:
        """Names of the finished, undamaged cells."""
        return self._checked[0]

    @property
    def damaged(self) -> list[Damage]:
        """Finished cells whose files are missing or not those that were written, each with its path and the reason."""
        return self._checked[1]

    @property
    def failed(self) -> dict[str, str]:
        """The error text of every cell whose last attempt failed."""
        failures = {}
        for name in self.cells:
            cell = self._cell(name)
            if (cell / "failed.json").exists() and not (cell / "done").exists():
                try:
                    failures[name] = str(read_json(cell / "failed.json")["error"])
                except (DamagedError, KeyError, TypeError):
                    failures[name] = "unknown: failed.json is unreadable"
        return failures

    @property
    def pending(self) -> list[str]:
        """Names of the cells to run: neither finished nor damaged."""
        skip = {*self.done, *(damage.path.name for damage in self.damaged)}
        return [name for name in self.cells if name not in skip]

    @property
    def results(self) -> dict[str, CellResult]:
        """Results of the finished cells, by name."""
        return {name: self.read(name) for name in self.done}

    @property
    def seconds(self) -> float:
        """Time spent on the finished cells."""
        return sum(read_json(self._cell(name) / "done")["seconds"] for name in self.done)

    @property
    def summary(self) -> dict[str, Any] | None:
        """What summary.json holds, or None where the run never came to its end."""
        path = self.folder / "summary.json"
        return read_json(path) if path.exists() else None

    @property
    def environments(self) -> list[dict[str, Any]]:
        """Every environment that worked on this run, first one first."""
        path = self.home / "env.json"
        found = read_json(path) if path.exists() else []
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise DamagedError("env.json must hold a list of environments, and does not")
        return found

    def record_environment(self, device: str | None = None) -> None:
        """Add this process's environment, computing on a device, to env.json unless it is already there."""
        self.add_environment(environment(device))

    def add_environment(self, present: Mapping[str, Any]) -> None:
        """Add an environment, of this process or of another, to env.json unless it is already there."""
        known = self.environments
        if present not in known:
            write_json(self.folder / "env.json", [*known, present])

    def read(self, name: str) -> CellResult:
        """Read one finished cell."""
        with needs("run"):
            from safetensors.numpy import load_file

        cell = self._cell(name)
        return CellResult(
            american(load_file(cell / "curves.safetensors")),
            american(load_file(cell / "arrays.safetensors")),
            american(read_json(cell / "metrics.json")),
        )

    def write(self, name: str, result: CellResult, *, seconds: float = 0.0) -> None:
        """Store one cell; it counts as finished only once everything is on disk."""
        with needs("run"):
            from safetensors.numpy import save

        cell = self._cell(name)
        contents = {
            "curves.safetensors": save(_plain_arrays(result.curves)),
            "arrays.safetensors": save(_plain_arrays(result.arrays)),
            "metrics.json": (to_json(result.metrics) + "\n").encode(),
        }
        for file, data in contents.items():
            write_atomically(cell / file, data)
        (cell / "failed.json").unlink(missing_ok=True)
        digests = {file: digest(data) for file, data in contents.items()}
        write_json(cell / "done", {"files": digests, "seconds": round(seconds, 3)})
        self.__dict__.pop("_checked", None)

    def fail(self, name: str, error: str) -> None:
        """Record that an attempt at a cell failed; the next run tries it again."""
        write_json(self._cell(name) / "failed.json", {"error": error})

    def partial(self, group: str) -> Path:
        """Return the folder in which a group of cells may keep partial state."""
        return self.folder / "partial" / hashlib.sha256(group.encode()).hexdigest()[:12]

    def drop_partial(self, group: str | None = None) -> None:
        """Remove the partial state of a group, or of all, if there is any."""
        shutil.rmtree(self.folder / "partial" if group is None else self.partial(group), ignore_errors=True)

    def _cell(self, name: str) -> Path:
        return self.home / "cells" / name

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Store the summary of the run."""
        write_json(self.folder / "summary.json", summary)


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
        wanted = json.loads(to_json(fields))
        return Runs(
            tuple(
                run
                for run in self.runs
                if experiment in (None, run.experiment)
                and profile in (None, run.profile)
                and all(name in run.config["spec"] for name in wanted)
                and all(json.loads(to_json(run.config["spec"][name])) == value for name, value in wanted.items())
            ),
            self.damaged,
        )


def open_runs(folder: Path | str = "runs") -> Runs:
    """Read a folder of runs; whatever is damaged is listed in `.damaged` with its reason and left alone.

    Args:
        folder: what was given to `harmax run --folder`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"`folder` must be a folder of runs, got {str(folder)!r}; make one with `harmax run NAME`.")
    runs: list[Run] = []
    damaged: list[Damage] = []
    for path in sorted(folder.glob("[!.]*/[!.]*/")):
        if not is_started(path):
            continue
        try:
            run = Run.open(path)
        except DamagedError as error:
            damaged.append(Damage(path, str(error)))
        else:
            runs.append(run)
            if run.source is None:  # a view would name its source's cells once more
                damaged.extend(run.damaged)
    return Runs(tuple(runs), tuple(damaged))


def is_started(folder: Path) -> bool:
    """Whether a run folder holds anything: its config comes first, so an empty one was left by an early crash."""
    return folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())


def _check_cell(cell: Path) -> None:
    done = read_json(cell / "done")
    files = done.get("files") if isinstance(done, dict) else None
    if not isinstance(files, dict) or set(files) != set(CELL_FILES):
        raise DamagedError("`done` must name the cell's three files, and does not")
    for file, expected in files.items():
        try:
            data = (cell / file).read_bytes()
        except OSError:
            raise DamagedError(f"{file} is missing") from None
        if digest(data) != expected:
            raise DamagedError(f"{file} is not the file that was written ({len(data)} bytes)")


def _plain_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    # safetensors stores the bytes as they lie, so views and transposes must be laid out first.
    return {name: np.array(array, order="C", copy=True) for name, array in arrays.items()}


def american(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was stored, possibly under names of British spelling, as older runs have them, by today's names.

    >>> american({"centre_distance": 1.0})
    {'center_distance': 1.0}
    """
    return {name.replace("centre", "center").replace("neighbour", "neighbor"): stored[name] for name in stored}
