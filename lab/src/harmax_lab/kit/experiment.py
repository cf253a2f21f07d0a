"""What an experiment is: profiles, the work that they ask for, claims, tables and figures.

An experiment is one file that ends in an `Experiment(...)`, and one line in `EXPERIMENTS`. Specs and cells are
frozen dataclasses of numbers, texts, booleans and tuples of them, so that they can be stored as JSON.
An experiment that judges and draws the runs of another one is a `view` of it.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from harmax.figures import Picture
from harmax_lab.kit.claims import Claim, Verdict, conclude, of_variant
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult, Run, american, spec_hash
from harmax_lab.kit.tables import Table
from harmax_lab.kit.variants import in_words, stored, with_changes

PROFILES = ("smoke", "quick", "full")  # from least to most thorough
MOST_SEEDS = 100_000
"""Seeds of a run. A seed itself that was given as their number would fill the memory."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything that decides an experiment's numbers. Each experiment adds its own fields."""

    seeds: tuple[int, ...] = (0,)
    """The experiment is repeated once per seed."""

    def stand_in(self) -> str:
        """Say what stands in for real data, and so decides nothing; empty for real data."""
        return ""

    def short_of(self, cells: Sequence[Any]) -> str:
        """Say in what runs of these cells fall short of the paper's, or of the full profile's; empty if in nothing."""
        return ""


@dataclass(frozen=True)
class Cell:
    """The smallest piece of work that is stored, failed or skipped on its own."""

    @property
    def name(self) -> str:
        """A readable name that is unique within a run and safe as the name of a folder."""
        return ",".join(f"{key}={_word(value)}" for key, value in asdict(self).items())


def _word(value: Any) -> str:
    return "+".join(map(_word, value)) if isinstance(value, tuple) else str(value).replace(" ", "-")


@dataclass(frozen=True)
class Summary:
    """One verdict per claim, and the tables behind them."""

    verdicts: tuple[Verdict, ...]
    tables: tuple[Table, ...] = ()


S = TypeVar("S", bound=Spec)
C = TypeVar("C", bound=Cell)


class Progress(Protocol):
    """How running cells report their progress: the fraction that is done, and a short message."""

    def __call__(self, fraction: float, message: str = "", /) -> None:
        """Report progress."""


@dataclass(frozen=True)
class Context:
    """Where a group of cells runs. Call it to report progress."""

    scratch: Path
    """A folder for partial state, which `run_cells` must make. It stays after an interrupt or a failure, and is removed
    when all cells of the group are stored. Processes that run cells of the same group share it."""
    device: str = "cpu"
    """Where to compute. It is not part of the spec, so results must not depend on it."""
    progress: Progress = lambda fraction, message="": None

    def __call__(self, fraction: float, message: str = "", /) -> None:
        """Report progress."""
        self.progress(fraction, message)


@dataclass(frozen=True)
class Work(Generic[S, C]):
    """What an experiment computes, and how. A view shares the work of its source.

    `cells` lists the cells of a spec. Cells with the same `group` key are given to one call of `run_cells`, which may
    train them together. It yields the result of each cell as soon as it is known. Results must not depend on which
    other cells are in the call by more than rounding, because after an interruption only the unfinished ones are run.
    Costs may. Cells that share sums are set aside together (`together.py`), so that a kill changes no bit.
    """

    cells: Callable[[S], Sequence[C]]
    run_cells: Callable[[S, Sequence[C], Context], Iterable[tuple[C, CellResult]]]
    _: KW_ONLY
    group: Callable[[C], Hashable] = lambda cell: cell
    """Its key must have the same `repr` in every process, as that of texts, numbers and tuples has."""
    pieces: Callable[[C], Hashable] = lambda cell: None
    """An engine with several devices may split a group, but keeps cells of one key together. Default: never split."""
    accelerated: bool = False
    """Whether `run_cells` computes on the device of its context. If not, it computes on the CPU."""
    seeds_apart: bool = False
    """Whether a cell's result is the same whatever other seeds its spec has. Then a run with more seeds takes the
    finished cells of a run with fewer. False where seeds share a search or a picture."""

    def groups(self, cells: Iterable[C]) -> list[list[C]]:
        """Sort cells into groups, in the order in which each group first appears."""
        groups: dict[Hashable, list[C]] = {}
        for cell in cells:
            groups.setdefault(self.group(cell), []).append(cell)
        return list(groups.values())


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[S, C]):
    """One figure or table of the paper, from its settings to its verdicts.

    `tables` and `figures` get the finished cells, which may be a part of all cells, as they were stored.
    """

    name: str
    title: str
    figure: str
    """The place in the paper, for example "Fig. 1 b, c"."""
    claims: tuple[Claim, ...]
    profiles: Mapping[str, S]
    work: Work[S, C]
    tables: Callable[[Results[S, C]], Iterable[Table]] = lambda results: ()
    figures: Callable[[Results[S, C]], Mapping[str, Picture]] = lambda results: {}
    measure: Callable[[S, C, CellResult], Mapping[str, Any]] | None = None
    """Computes what claims and tables need per cell: flat metrics and arrays, which are added to the stored ones."""
    keeps: tuple[str, ...] = ()
    """Curves and arrays that claims or tables read: names, or patterns such as "probes/*". They are published."""
    version: int = 1
    """Raise it when a change of code changes the numbers. The report then leaves out older runs."""
    source: "Experiment[S, C] | None" = None
    """The experiment whose runs a view reads."""

    def key(self, spec: S) -> str:
        """Return the name of a spec's run folder. That of a view changes with its source."""
        return spec_hash(self.name, self.version, stored(spec), source=self.source_key(spec))

    @property
    def versions(self) -> list[int]:
        """Own version, and that of the experiment whose runs a view reads."""
        return [self.version] if self.source is None else [self.version, *self.source.versions]

    def source_key(self, spec: S) -> str | None:
        """Return the run that a view reads, as <experiment>/<spec-hash>; None for other experiments."""
        return None if self.source is None else f"{self.source.name}/{self.source.key(spec)}"

    def resolve(
        self, profile: str, seeds: Sequence[int] | int | None = None, changes: Mapping[str, Any] | None = None
    ) -> S:
        """Return the spec of a profile.

        Args:
            profile: a name in `PROFILES`.
            seeds: replaces its seeds; a number stands for 0, 1, ...
            changes: replaces other fields; texts are read as the types of the fields.
        """
        if profile not in self.profiles:
            raise ValueError(f"`profile` must be one of {', '.join(self.profiles)}, got {profile!r}.")
        spec = self.profiles[profile]
        if changes:
            spec = with_changes(self.name, spec, changes)
            try:
                self.work.cells(spec)
            except (LookupError, TypeError, ArithmeticError) as error:
                raise ValueError(
                    f"`{self.name}` cannot be run with {in_words(changes)}: {type(error).__name__} {error}; set values "
                    "like those of its profiles."
                ) from error
        if seeds is None:
            return spec
        if isinstance(seeds, int) and seeds > MOST_SEEDS:
            raise ValueError(
                f"`seeds` must be at most {MOST_SEEDS:,} seeds, got {seeds:,}; for one seed of that number give a list "
                f"with a comma, such as --seeds {seeds},"
            )
        chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
        if not chosen or len(set(chosen)) != len(chosen) or any(not 0 <= seed < 2**63 for seed in chosen):
            raise ValueError(
                "`seeds` must be a positive number of seeds or a list of different ones from 0 to 2^63 - 1, got "
                f"{seeds!r}; give other ones."
            )
        return replace(spec, seeds=chosen)

    def check_version(self, run: Run) -> None:
        """Refuse a run of another version of this experiment."""
        if run.config["version"] != self.version:
            raise ValueError(
                f"written by version {run.config['version']} of the experiment, which is now at {self.version}; run it "
                "again"
            )

    def load_spec(self, config: Mapping[str, Any]) -> S:
        """Make a spec from what config.json holds; raise ValueError if this version has other fields."""
        found = american(config)
        kind = type(next(iter(self.profiles.values())))
        expected = {entry.name for entry in fields(kind)}
        since = {entry.name for entry in fields(kind) if "added" in entry.metadata}
        absent, strange = sorted(expected - since - set(found)), sorted(set(found) - expected)
        if absent or strange:
            got = [f"{words} {', '.join(names)}" for words, names in (("no", absent), ("also", strange)) if names]
            raise ValueError(
                f"the spec of `{self.name}` must have the fields of this version, got {' and '.join(got)}; it was "
                "written by another version of harmax, so run the experiment again."
            )
        return kind(**{name: _tuples(value) for name, value in found.items()})

    def by_cell(self, spec: S, results: Mapping[str, CellResult]) -> dict[C, CellResult]:
        """Key stored results by cell instead of by name, in the order of all cells."""
        return {cell: results[cell.name] for cell in self.work.cells(spec) if cell.name in results}

    def results(self, spec: S, found: Mapping[C, CellResult]) -> Results[S, C]:
        """Return finished cells as a table, with what `measure` adds."""
        if self.measure is not None:
            found = {cell: _join(result, self.measure(spec, cell, result)) for cell, result in found.items()}
        return Results(spec, found, self.work.cells(spec))

    def judge(self, results: Results[S, C], variant: str = "") -> Summary:
        """Judge every claim, and make the tables. Tables without rows are left out.

        `variant` says what a user has changed in the settings. Such a run decides no claim.
        """
        tables = tuple(table for table in self.tables(results) if table.rows)
        verdicts = (conclude(claim, results) for claim in self.claims)
        return Summary(tuple(of_variant(one, variant) if variant else one for one in verdicts), tables)

    def summarize(self, spec: S, found: Mapping[C, CellResult]) -> Summary:
        """Measure and judge finished cells."""
        return self.judge(self.results(spec, found))

    def draw(self, spec: S, found: Mapping[C, CellResult]) -> Mapping[str, Picture]:
        """Measure finished cells, and draw the figures."""
        return self.figures(self.results(spec, found))

    def summary_of(self, run: Run, judged: Summary | None = None) -> dict[str, Any]:
        """Return what summary.json holds. The run is judged here, unless its summary is given."""
        spec = self.load_spec(run.config["spec"])
        counts = {name: len(getattr(run, name)) for name in ("done", "failed", "damaged")}
        return {
            "experiment": self.name,
            "versions": self.versions,
            "profile": run.profile,
            "cells": {**counts, "total": len(run.cells)},
            "spec": stored(spec),
            **asdict(judged or self.summarize(spec, self.by_cell(spec, run.results))),
        }


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
        source: the experiment whose runs it reads.
        name, title, figure, claims, version: as in `Experiment`.
        own: its tables, figures, measure and keeps.
    """
    words: dict[str, Any] = {"name": name, "title": title, "figure": figure, "claims": claims, "version": version}
    return Experiment(source=source, profiles=source.profiles, work=source.work, **words, **own)


def _join(result: CellResult, measures: Mapping[str, Any]) -> CellResult:
    arrays = {name: value for name, value in measures.items() if isinstance(value, np.ndarray)}
    metrics = {name: value for name, value in measures.items() if name not in arrays}
    return replace(result, arrays={**result.arrays, **arrays}, metrics={**result.metrics, **metrics})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
