"""What an experiment is: profiles, cells, one function that runs cells, claims, tables and figures.

An experiment is one file that ends in an `Experiment(...)` and one line in `EXPERIMENTS`. Specs and cells are
frozen dataclasses of numbers, texts, booleans and tuples of them, so that they survive a trip through JSON.
A figure drawn from runs that another experiment has trained is a `view` of that experiment.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from harmax.figures import Picture
from harmax_lab.kit.claims import Claim, Verdict, conclude
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult, Run, american, spec_hash
from harmax_lab.kit.tables import Table

PROFILES = ("smoke", "quick", "full")  # from least to most thorough


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything that decides an experiment's numbers; each experiment adds its own fields."""

    seeds: tuple[int, ...] = (0,)
    """One independent repetition each."""


@dataclass(frozen=True)
class Cell:
    """The smallest piece of work that is stored, failed or skipped on its own."""

    @property
    def name(self) -> str:
        """A readable name that is unique within a run and safe as a folder's name."""
        return ",".join(f"{key}={_word(value)}" for key, value in asdict(self).items())


def _word(value: Any) -> str:
    return "+".join(map(_word, value)) if isinstance(value, tuple) else str(value).replace(" ", "-")


@dataclass(frozen=True)
class Summary:
    """One verdict a claim, and the tables behind them."""

    verdicts: tuple[Verdict, ...]
    tables: tuple[Table, ...] = ()


S = TypeVar("S", bound=Spec)
C = TypeVar("C", bound=Cell)


class Progress(Protocol):
    """How a running group says how far it is: the fraction done, and a few words."""

    def __call__(self, fraction: float, message: str = "", /) -> None:
        """Tell."""


def _silently(fraction: float, message: str = "", /) -> None:
    pass


@dataclass(frozen=True)
class Context:
    """What a running group is handed beside its cells; called, it says how far the group is."""

    scratch: Path
    """A folder for partial state: it outlives interrupts and failures, and goes once the group's cells are stored.
    Processes that share the group's cells share it too; make it before use."""
    device: str = "cpu"
    """Where to compute: no part of the spec, so it must not be part of what is computed."""
    progress: Progress = _silently

    def __call__(self, fraction: float, message: str = "", /) -> None:
        """Tell."""
        self.progress(fraction, message)


def _nothing(results: Any) -> tuple[Table, ...]:
    return ()


def _no_pictures(results: Any) -> dict[str, Picture]:
    return {}


def _alone(cell: Cell) -> Hashable:
    return cell


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[S, C]):
    """One figure or table of the paper, from its settings to its verdict.

    `cells` lists the work of a spec. Cells with the same `group` key are handed to one call of `run_cells`, which
    may stack them; it yields each cell's result as soon as it has it. What a cell gives (though not what it cost) must
    not depend on the other cells of the call, because after an interruption only the unfinished ones come back.
    `summarize` and `figures` see the finished cells only, possibly not all of them, and nothing but stored arrays.
    """

    name: str
    title: str
    figure: str
    """Where it stands in the paper, for example "Fig. 1 b, c"."""
    claims: tuple[Claim, ...]
    profiles: Mapping[str, S]
    cells: Callable[[S], Sequence[C]]
    run_cells: Callable[[S, Sequence[C], Context], Iterable[tuple[C, CellResult]]]
    tables: Callable[[Results[S, C]], Iterable[Table]] = _nothing
    figures: Callable[[Results[S, C]], Mapping[str, Picture]] = _no_pictures
    measure: Callable[[S, C, CellResult], Mapping[str, Any]] | None = None
    """Returns what claims and tables look at, per cell: flat metrics, which join those that are stored, and arrays."""
    keeps: tuple[str, ...] = ()
    """Names of curves and arrays that claims or tables read beside the metrics, or patterns such as "probes/*".
    They are published with the rows."""
    version: int = 1
    """Raised whenever a change of code changes the numbers: older runs are then left out of the report."""
    group: Callable[[C], Hashable] = _alone
    """Its key must look the same in every process (texts, numbers and tuples of them do)."""
    pieces: Callable[[C], Hashable] | None = None
    """Along what an engine with several devices may cut a group: cells of one key stay together. None: nowhere."""
    accelerated: bool = False
    """Whether `run_cells` computes on the device of its context; if not, it computes on the CPU."""
    source: "Experiment[S, C] | None" = None
    """Where the cells and results come from, for a view; see `view`."""

    def key(self, spec: S) -> str:
        """Return the name of a spec's run folder; a view's changes with its source's."""
        return spec_hash(self.name, self.version, asdict(spec), source=self.source_key(spec))

    def source_key(self, spec: S) -> str | None:
        """Return where a view's cells are stored, as <experiment>/<spec-hash>; None for other experiments."""
        return None if self.source is None else f"{self.source.name}/{self.source.key(spec)}"

    def resolve(self, profile: str, seeds: Sequence[int] | int | None = None) -> S:
        """Return the spec of a profile, with other seeds where asked (a number stands for 0, 1, ...)."""
        if profile not in self.profiles:
            raise ValueError(f"`profile` must be one of {', '.join(self.profiles)}, got {profile!r}.")
        spec = self.profiles[profile]
        if seeds is None:
            return spec
        chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
        if not chosen or len(set(chosen)) != len(chosen) or any(seed < 0 for seed in chosen):
            raise ValueError(
                f"`seeds` must be a positive number of seeds or a list of different non-negative ones, got {seeds!r}."
            )
        return replace(spec, seeds=chosen)

    def load_spec(self, stored: Mapping[str, Any]) -> S:
        """Rebuild a spec from what config.json holds; raise ValueError where this version has other fields."""
        stored = american(stored)
        kind = type(next(iter(self.profiles.values())))
        expected = {entry.name for entry in fields(kind)}
        if expected != set(stored):
            raise ValueError(
                f"the spec of `{self.name}` must have the fields {sorted(expected)}, got {sorted(stored)}; "
                f"it was written by another version of harmax, so run the experiment again."
            )
        return kind(**{name: _tuples(value) for name, value in stored.items()})

    def summary_of(self, run: Run, judged: Summary | None = None) -> dict[str, Any]:
        """Return what summary.json holds: the run as it stands now, judged here unless it was before."""
        spec = self.load_spec(run.config["spec"])
        counts = {name: len(getattr(run, name)) for name in ("done", "failed", "damaged")}
        return {
            "experiment": self.name,
            "profile": run.profile,
            "cells": {**counts, "total": len(run.cells)},
            "spec": asdict(spec),
            **asdict(judged or self.summarize(spec, self.by_cell(spec, run.results))),
        }

    def results(self, spec: S, found: Mapping[C, CellResult]) -> Results[S, C]:
        """Make finished cells a table, each with its measures."""
        if self.measure is None:
            return Results(spec, found, self.cells(spec))
        measured = {cell: _join(result, self.measure(spec, cell, result)) for cell, result in found.items()}
        return Results(spec, measured, self.cells(spec))

    def judge(self, results: Results[S, C]) -> Summary:
        """Judge every claim, and make the tables that have rows."""
        tables = tuple(table for table in self.tables(results) if table.rows)
        return Summary(tuple(conclude(claim, results) for claim in self.claims), tables)

    def summarize(self, spec: S, found: Mapping[C, CellResult]) -> Summary:
        """Measure finished cells, and judge them."""
        return self.judge(self.results(spec, found))

    def draw(self, spec: S, found: Mapping[C, CellResult]) -> Mapping[str, Picture]:
        """Measure finished cells, and draw every figure for which there are some."""
        return self.figures(self.results(spec, found))

    def groups(self, cells: Iterable[C]) -> list[list[C]]:
        """Sort cells into groups, in the order in which each group first appears."""
        groups: dict[Hashable, list[C]] = {}
        for cell in cells:
            groups.setdefault(self.group(cell), []).append(cell)
        return list(groups.values())

    def by_cell(self, spec: S, results: Mapping[str, CellResult]) -> dict[C, CellResult]:
        """Key stored results by cell instead of by name, in the order of `cells`."""
        return {cell: results[cell.name] for cell in self.cells(spec) if cell.name in results}


def view(
    source: Experiment[S, C],
    name: str,
    title: str,
    figure: str,
    claims: tuple[Claim, ...],
    *,
    version: int = 1,
    **own: Any,
) -> Experiment[S, C]:
    """Return an experiment that judges and draws the runs of another one and trains nothing itself.

    Args:
        source: whose cells it reads.
        name: of the view.
        title: as `Experiment` has it, like `figure` and `claims`.
        figure: where it stands in the paper.
        claims: its own.
        version: of the view; its run folders change with its source's too.
        own: its tables, figures, measure and keeps.
    """
    fresh: dict[str, Any] = {"tables": _nothing, "figures": _no_pictures, "measure": None, "keeps": ()}
    words: dict[str, Any] = {"name": name, "title": title, "figure": figure, "claims": claims, "version": version}
    return replace(source, source=source, **words, **(fresh | own))


def _join(result: CellResult, measures: Mapping[str, Any]) -> CellResult:
    arrays = {name: value for name, value in measures.items() if isinstance(value, np.ndarray)}
    metrics = {name: value for name, value in measures.items() if name not in arrays}
    return replace(result, arrays={**result.arrays, **arrays}, metrics={**result.metrics, **metrics})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
