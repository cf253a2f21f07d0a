"""Final runs, after a search: the chosen setting of every family, with new seeds, measured on the test data.

Final runs have a table of their own, with one row per run. The table is their state: after an interrupt the same
command continues, and no run is counted twice. Each seed is run for all families before the next seed. So the runs that
are there after an interrupt can be paired.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

from harmax.analysis import Interval, PairedDifference
from harmax.errors import DamagedError
from harmax_lab.kit.judges import signed
from harmax_lab.kit.results import compare, interval
from harmax_lab.kit.tables import Table, tabulate
from harmax_lab.search.plan import Search, Trial, chosen
from harmax_lab.search.trials import Filling, fill, read_table, turns

FINAL = "final"
FIRST_SEED = 100
"""Seeds of final runs begin here, so that no run that chose is among those that count."""


def finals_path(table: Path) -> Path:
    """Return where the final runs of a search lie: beside its table."""
    return table.with_name(f"{table.stem}-finals.csv")


def winners(search: Search, table: Path, families: Iterable[str] = ()) -> dict[str, Trial]:
    """Return a run with the chosen setting of every family that is named (none: all), and of every control.

    Raises:
        ValueError: if the search of one of them is not finished.
    """
    found, best = read_table(table, search.families), {}
    for name in turns(families, (*search.families, *search.controls)):
        winner: Trial | None = Trial(name, 0, FINAL, search.final_steps, FIRST_SEED, {})
        if name in search.families:
            winner = chosen(name, search.rounds, found)
        if winner is None:
            done = sum(trial.family == name for trial in found)
            raise ValueError(
                f"the search of {name} must be finished before its final runs, got {done} of {search.rounds.runs} "
                f"runs in {table}; go on with the search first."
            )
        best[name] = winner
    return best


def run_finals(
    search: Search, table: Path, *, seeds: int, families: Iterable[str] = (), **filling: Unpack[Filling]
) -> list[Trial]:
    """Train the chosen setting of every family with new seeds, or what is left of that, and return these runs.

    Args:
        search: what was searched.
        table: its table of runs. The search of every family that is named must be finished.
        seeds: number of new seeds.
        families, filling: as for `run_search`; controls count as families.
    """
    best, path = winners(search, table, families), finals_path(table)

    def upcoming(family: str, trials: Sequence[Trial]) -> Trial | None:
        own = [trial for trial in trials if trial.family == family]
        for number, trial in enumerate(own):
            known = (FINAL, search.final_steps, FIRST_SEED + number, dict(best[family].settings))
            if (trial.round, trial.steps, trial.seed, dict(trial.settings)) != known:
                raise DamagedError(
                    f"{path} must hold final runs of what {table} has chosen for {family}, got run {number} with "
                    "another setting, length or seed; move this file away and start the final runs again."
                )
        if len(own) >= seeds:
            return None
        return Trial(family, len(own), FINAL, search.final_steps, FIRST_SEED + len(own), dict(best[family].settings))

    return fill(path, search, tuple(best), upcoming, **filling)


def final_table(search: Search, trials: Sequence[Trial]) -> Table:
    """Compare final runs: means over seeds, and paired differences from the first family, with 95 % intervals.

    A family with a diverged run has no mean, because no number says how bad a diverged run is.
    """
    arms = (*search.families, *search.controls)
    families = [family for family in arms if any(trial.family == family for trial in trials)]
    pairs = [(measure, family) for measure in search.measures for family in families]

    def values(measure: str, family: str) -> dict[int, float]:
        own = [trial for trial in trials if trial.family == family]
        found = ((one.seed, one.loss if measure == "loss" else one.notes[measure]) for one in own if _ended(one))
        return {seed: float(value) for seed, value in found if value is not None}

    def diverged(family: str) -> int:
        return sum(not _ended(trial) for trial in trials if trial.family == family)

    def mean(measure: str, family: str) -> Interval | None:
        found = list(values(measure, family).values())
        return interval(found) if len(found) > 1 and not diverged(family) else None

    def apart(measure: str, family: str) -> PairedDifference | None:
        first = families[0]
        if family == first or diverged(family) or diverged(first):
            return None
        one, two = values(measure, family), values(measure, first)
        both = [seed for seed in one if seed in two]
        return compare([one[seed] for seed in both], [two[seed] for seed in both]) if len(both) > 1 else None

    def spread(found: Interval | None, write: Callable[[Interval], str]) -> str | None:
        return None if found is None else write(found)

    def difference(measure: str, family: str) -> str | None:
        found = apart(measure, family)
        return spread(None if found is None else found.difference, lambda one: signed(one, 5))

    columns: dict[str, Callable[[tuple[str, str]], Any]] = {
        "measure": lambda at: at[0],
        "family": lambda at: at[1],
        "runs": lambda at: sum(trial.family == at[1] for trial in trials),
        "diverged": lambda at: diverged(at[1]),
        "mean [95 %]": lambda at: spread(mean(*at), _written),
        f"minus {families[0]} [95 %], paired" if families else "paired": lambda at: difference(*at),
    }
    return tabulate("Final runs: the chosen setting of every family, the same seeds", pairs, columns)


def _ended(trial: Trial) -> bool:
    return trial.loss is not None and math.isfinite(trial.loss)


def _written(found: Interval) -> str:
    return f"{found.estimate:.5f} [{found.low:.5f}, {found.high:.5f}]"
