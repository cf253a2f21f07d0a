"""`harmax search`: look for good settings of a small model, in pieces that go on where the last one ended."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from harmax.cli.usage import checking_usage
from harmax.cli.verbs import load_verb
from harmax.environment import choose_device
from harmax.errors import MissingExtraError, unknown
from harmax_lab.kit.rules import Choice
from harmax_lab.search.plan import Search as Plan
from harmax_lab.search.plan import Trial, best, choices, chosen

if TYPE_CHECKING:
    from harmax_lab.kit.tables import Table

SEARCHES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "language": ("harmax_lab.language.recipe_search:plan", ()),
    "vision": ("harmax_lab.vision.recipe_search:plan", ("data",)),
    "speedrun": ("harmax_lab.vision.speedrun:plan", ("script",)),
}
"""What makes the plan of a search, given its size, its table and the device, and the options that only it has."""


@dataclass(frozen=True)
class Search:
    """Search for good settings, or continue a search. Its state is a table of runs: the same command continues it."""

    name: Annotated[str, tyro.conf.Positional]
    """What to search for: language, vision or speedrun."""
    data: str | None = None
    """For vision: cifar10, cifar100 or tiny_imagenet."""
    script: Path | None = None
    """For speedrun: the public file airbench94_muon.py."""
    smoke: bool = False
    """Only check that everything works, in seconds."""
    table: Path | None = None
    """The csv of runs. Default: runs/search/NAME.csv, or NAME-DATA.csv."""
    minutes: float | None = None
    """Start no run after this time. Default: until the search is done."""
    families: tuple[str, ...] = ()
    """Search these families of models only. Default: all."""
    side_by_side: bool = False
    """Give every family a process of its own, so that a GPU is busy while one of them waits. Measured times are then
    those of a shared machine."""
    finals: bool = False
    """After the search: train the best setting of each family with new seeds, and compare them on the test data."""
    seeds: int = 5
    """Seeds of the final runs."""
    device: str | None = None
    """Where to compute: cpu, cuda, cuda:1. Default: a GPU where there is one."""

    def __call__(self) -> int:
        """Search, and print the best runs; or make the final runs, and print how the families compare."""
        from harmax_lab.search.finals import final_table, finals_path, run_finals, winners
        from harmax_lab.search.trials import run_search, turns

        with checking_usage():
            own = self._own_options()
            name = "-".join([self.name, *(str(self.data),) * (self.data is not None), *("smoke",) * self.smoke])
            table = self.table or Path("runs/search") / f"{name}.csv"
            table.parent.mkdir(parents=True, exist_ok=True)
            size, device = "smoke" if self.smoke else "full", choose_device(self.device)
            plan: Plan = load_verb(SEARCHES[self.name][0])(size, table, device, **own)
            if self.finals:
                winners(plan, table, self.families)
            else:
                turns(self.families, tuple(plan.families))
        end = None if self.minutes is None else time.monotonic() + 60 * self.minutes
        how: dict[str, Any] = {
            "families": self.families,
            "wants_more": lambda: end is None or time.monotonic() < end,
            "report": lambda trial: print(line(trial, plan.unit), flush=True),
            "side_by_side": self.side_by_side,
        }
        if self.finals:
            trials = run_finals(plan, table, seeds=self.seeds, **how)
            try:
                print(f"\n{written(final_table(plan, trials))}")
            except MissingExtraError as error:  # the rows are stored, and the table can be made elsewhere
                print(f"\nno table of intervals: {error}")
            print(f"\ntable of final runs: {finals_path(table)}")
            return 0
        trials = run_search(plan, table, **how)
        for family in self.families or plan.families:
            print(f"\n{summary(plan, family, trials)}")
        print(f"\ntable of runs: {table}")
        return 0

    def _own_options(self) -> dict[str, Any]:
        """Return the options that this search alone has; refuse those of another one."""
        if self.name not in SEARCHES:
            raise ValueError(unknown("name", self.name, SEARCHES))
        if self.seeds < 1:
            raise ValueError(f"`seeds` must be at least 1, got {self.seeds}; 5 is usual.")
        given = {"data": self.data, "script": self.script}
        own = SEARCHES[self.name][1]
        for name, value in given.items():
            if value is not None and name not in own:
                raise ValueError(
                    f"`{name}` must be left out for {self.name}, got {str(value)!r}; it has no such option."
                )
        return {name: given[name] for name in own}


def summary(plan: Plan, family: str, trials: Sequence[Trial]) -> str:
    """Write how far the search of a family is, its best runs, and what it has chosen."""
    own = [trial for trial in trials if trial.family == family]
    longest = max((trial.steps for trial in own), default=0)
    budget = f"{sum(trial.steps for trial in own)} of {plan.rounds.budget} {plan.unit}"
    lines = [f"{family}: {len(own)} of {plan.rounds.runs} runs, {budget}; the best of {longest} {plan.unit}:"]
    lines += [f"  {line(one, plan.unit)}" for one in best((one for one in own if one.steps == longest), 3)]
    winner = chosen(family, plan.rounds, trials)
    if winner is not None:
        ends: list[Choice] = [one for one in choices(winner, plan.families[family], natural=plan.natural) if one.at_end]
        lines.append(f"  chosen: {_settings(winner)}")
        lines += [f"  at an end of what was tried: {one}" for one in ends]
    return "\n".join(lines)


def line(trial: Trial, unit: str = "steps") -> str:
    """Write a run in a line.

    >>> line(Trial("ours", 3, "near", 300, 0, {"lr": 0.003, "tied": True}, 4.97))
    'ours 3, near, 300 steps: loss 4.9700  lr=0.003 tied=True'
    """
    return (
        f"{trial.family} {trial.number}, {trial.round}, {trial.steps} {unit}: loss {trial.loss:.4f}  {_settings(trial)}"
    )


def _settings(trial: Trial) -> str:
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in trial.settings.items()
    )


def written(table: "Table") -> str:
    """Write a table with its title for a terminal."""
    if not table.rows:
        return table.title
    rows = [
        list(table.rows[0]),
        *([("none" if cell is None else str(cell)) for cell in row.values()] for row in table.rows),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        [
            table.title,
            *("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows),
        ]
    )
