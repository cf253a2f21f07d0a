"""`harmax search`: look for good settings of a small model, in pieces that go on where the last one ended."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from harmax.environment import choose_device
from harmax.errors import unknown
from harmax_lab.kit.search import Trial, best

SEARCHES = ("language",)


@dataclass(frozen=True)
class Search:
    """Search for good settings, or go on with a search. The table of runs is its state: the same command goes on."""

    name: Annotated[str, tyro.conf.Positional]
    """What to search for: language."""
    smoke: bool = False
    """Only check that everything works, in seconds."""
    table: Path | None = None
    """The csv of runs. Default: runs/search/NAME.csv."""
    minutes: float | None = None
    """Start no run after this time. Default: until the search is done."""
    families: tuple[str, ...] = ()
    """Search these families of models only. Default: all."""
    device: str | None = None
    """Where to compute: cpu, cuda, cuda:1. Default: a GPU where there is one."""

    def __call__(self) -> int:
        """Search, and print the best runs."""
        from harmax_lab.language import recipe_search

        if self.name not in SEARCHES:
            raise ValueError(unknown("name", self.name, SEARCHES))
        for family in self.families:
            if family not in recipe_search.FAMILIES:
                raise ValueError(unknown("families", family, recipe_search.FAMILIES))
        table = self.table or Path("runs/search") / f"{self.name}{'-smoke' * self.smoke}.csv"
        table.parent.mkdir(parents=True, exist_ok=True)
        end = None if self.minutes is None else time.monotonic() + 60 * self.minutes
        families = self.families or tuple(recipe_search.FAMILIES)
        trials = recipe_search.search(
            "smoke" if self.smoke else "full",
            table,
            device=choose_device(self.device),
            wants_more=lambda: end is None or time.monotonic() < end,
            report=lambda trial: print(line(trial), flush=True),
            families=families,
        )
        for family in families:
            own = [trial for trial in trials if trial.family == family]
            longest = max((trial.steps for trial in own), default=0)
            print(f"\n{family}: {len(own)} runs; the best of {longest} steps:")
            for trial in best((trial for trial in own if trial.steps == longest), 3):
                print(f"  {line(trial)}")
        print(f"\ntable of runs: {table}")
        return 0


def line(trial: Trial) -> str:
    """Write a run in a line.

    >>> line(Trial("ours", 3, "near", 300, 0, {"lr": 0.003, "tied": True}, 4.97))
    'ours 3, near, 300 steps: loss 4.9700  lr=0.003 tied=True'
    """
    settings = " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in trial.settings.items()
    )
    return f"{trial.family} {trial.number}, {trial.round}, {trial.steps} steps: loss {trial.loss:.4f}  {settings}"
