"""The table of a search: read, written, and filled run by run, by one process or by one per family."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypedDict, Unpack

from harmax.errors import DamagedError, unknown
from harmax.files import read_whole, write_atomically
from harmax_lab.search.plan import Outcome, Search, Space, Trial, next_trial

FIELDS = ("family", "number", "round", "steps", "seed", "loss")


class Filling(TypedDict, total=False):
    """How a table is filled."""

    wants_more: Callable[[], bool]
    """Is asked before every run; no run starts after it has returned False. Left out: all runs."""
    report: Callable[[Trial], object]
    """Is called with every finished run."""
    side_by_side: bool
    """Whether every family has a process of its own, so that a GPU is busy while one of them waits."""


def run_search(search: Search, path: Path, *, families: Iterable[str] = (), **filling: Unpack[Filling]) -> list[Trial]:
    """Run a search, or what is left of it, and return all its runs. Runs that are in the table are not repeated.

    Args:
        search: what is searched.
        path: of the table, a csv. It is written after every run.
        families: which families to run; empty: all.
        filling: as in `Filling`.
    """

    def upcoming(family: str, trials: Sequence[Trial]) -> Trial | None:
        return next_trial(family, search.families[family], search.rounds, trials, search.known.get(family, ()))

    return fill(path, search, turns(families, tuple(search.families)), upcoming, **filling)


def turns(families: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the families that are named, or all if none is. Refuse an unknown one."""
    for family in (named := tuple(families)):
        if family not in known:
            raise ValueError(unknown("families", family, known))
    return named or tuple(known)


def fill(
    path: Path,
    search: Search,
    families: Sequence[str],
    upcoming: Callable[[str, Sequence[Trial]], Trial | None],
    *,
    wants_more: Callable[[], bool] = lambda: True,
    report: Callable[[Trial], object] = lambda trial: None,
    side_by_side: bool = False,
) -> list[Trial]:
    """Run what is missing in a table, family by family in turn or side by side, and write it after every run.

    Args:
        path, search, wants_more, report, side_by_side: as for `run_search`.
        families: which families to run.
        upcoming: returns the next run of a family, given all finished ones; None at its end.
    """
    trials = read_table(path, {**search.families, **{name: {} for name in search.controls}})

    def keep(trial: Trial, outcome: Outcome) -> None:
        trials.append(replace(trial, loss=outcome[0], notes=dict(outcome[1])))
        write_table(path, trials)
        report(trials[-1])

    if side_by_side:
        _side_by_side(search, families, lambda family: upcoming(family, trials), wants_more, keep)
        return trials
    while wants_more():
        fewest = sorted(families, key=lambda family: sum(trial.family == family for trial in trials))
        trial = next((one for family in fewest if (one := upcoming(family, trials)) is not None), None)
        if trial is None:
            break
        keep(trial, search.train(trial))
    return trials


def _side_by_side(
    search: Search,
    families: Sequence[str],
    upcoming: Callable[[str], Trial | None],
    wants_more: Callable[[], bool],
    keep: Callable[[Trial, Outcome], None],
) -> None:
    """Give every family a process. The next run of a family depends on its own runs alone, so no family waits."""
    running: dict[Future[Outcome], Trial] = {}
    with ExitStack() as stack:
        pools = {
            family: stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn"))) for family in families
        }

        def start(family: str) -> None:
            if wants_more() and (trial := upcoming(family)) is not None:
                running[pools[family].submit(search.train, trial)] = trial

        for family in families:
            start(family)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                trial = running.pop(future)
                keep(trial, future.result())
                start(trial.family)


def write_table(path: Path, trials: Sequence[Trial]) -> None:
    """Write the table of runs, by number; a setting that a family does not have is left empty."""
    rows = [
        {**{name: getattr(t, name) for name in FIELDS}, **t.settings, **{f"{k} (note)": v for k, v in t.notes.items()}}
        for t in sorted(trials, key=lambda trial: (trial.number, trial.family))
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def read_table(path: Path, families: Mapping[str, Space]) -> list[Trial]:
    """Read a table of runs; an empty list where there is none.

    Raises:
        DamagedError: if it holds a run twice, or one that cannot be of these families.
    """
    if not path.exists():
        return []
    trials: list[Trial] = []
    for line, row in enumerate(csv.DictReader(io.StringIO(read_whole(path).decode(errors="replace"))), 2):
        try:
            space = families[row["family"]]
            settings = {name: _read(row[name]) for name in space}
            notes = {key.removesuffix(" (note)"): _read(row[key]) for key in row if key.endswith(" (note)")}
            number, steps, seed = (int(row[name]) for name in ("number", "steps", "seed"))
            trial = Trial(row["family"], number, row["round"], steps, seed, settings, float(row["loss"]), notes)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(
                f"{path}, line {line}: not a run of this search ({error!r}); correct or delete the line"
            ) from None
        trials.append(trial)
    for family in families:
        numbers = [trial.number for trial in trials if trial.family == family]
        if numbers != list(range(len(numbers))):
            raise DamagedError(
                f"{path} must hold the runs of {family} once each and in order, got numbers {numbers}; restore or "
                "delete the table"
            )
    return trials


def _read(text: str) -> Any:
    if text in ("True", "False", ""):
        return {"True": True, "False": False, "": None}[text]
    try:
        return float(text)
    except ValueError:
        return text
