"""A search over settings whose state is its table of runs: successive halving, then runs beside the best.

The next run is a function of the table alone. So a search goes on anywhere with its table, in any number of pieces, and
no run is counted twice. Every run is a row, diverged ones too.

1. Settings spread evenly over the space (Sobol points) are run for a short time.
2. The best of them are run for longer.
3. Settings near the best so far are run as long, one after the other.
4. The best of all these are run for the full time.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harmax.errors import DamagedError
from harmax.files import write_atomically
from harmax_lab.kit.rules import Choice

DIVERGED = math.inf
"""The loss of a run that diverged: the worst there is."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, evenly spread on a logarithmic scale."""

    low: float
    high: float

    def at(self, place: float) -> float:
        """Return the number at a place between 0 and 1, with four digits.

        >>> Range(1e-4, 1e-2).at(0.5)
        0.001
        """
        return float(f"{self.low * (self.high / self.low) ** place:.4g}")

    def place(self, value: Any) -> float:
        """Return where a number lies between 0 and 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True)
class OneOf:
    """One of a few values."""

    values: tuple[Any, ...]

    def at(self, place: float) -> Any:
        """Return the value at a place between 0 and 1.

        >>> OneOf((True, False)).at(0.7)
        False
        """
        return self.values[min(int(place * len(self.values)), len(self.values) - 1)]

    def place(self, value: Any) -> float:
        """Return the middle of the places of a value."""
        return (self.values.index(value) + 0.5) / len(self.values)


Space = Mapping[str, Range | OneOf]


@dataclass(frozen=True)
class Trial:
    """One run of a search: its settings, how long it is, and what came of it."""

    family: str
    number: int
    round: str
    """"spread", "longer", "near" or "full"."""
    steps: int
    seed: int
    settings: Mapping[str, Any]
    loss: float | None = None
    """None before the run; infinite where it diverged."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What else was measured."""


@dataclass(frozen=True)
class Rounds:
    """How many runs each round has, and how long they are. Families with the same rounds have equal budgets."""

    spread: int
    longer: int
    near: int
    full: int
    steps: tuple[int, int, int]
    """Of the rounds "spread", of "longer" and "near", and of "full"."""
    parents: int = 4
    """The best settings beside which the round "near" looks; every second time it looks beside the very best."""
    reach: float = 0.08
    """Standard deviation of a step away from a parent, as a share of each range."""

    @property
    def runs(self) -> int:
        """Runs of one family."""
        return self.spread + self.longer + self.near + self.full

    @property
    def budget(self) -> int:
        """Steps of one family."""
        short, middle, long = self.steps
        return self.spread * short + (self.longer + self.near) * middle + self.full * long


def next_trial(family: str, space: Space, rounds: Rounds, trials: Iterable[Trial]) -> Trial | None:
    """Return the next run of a family, given those that are finished; None at the end.

    Args:
        family: whose search it is.
        space: what may be set.
        rounds: how many runs, and how long.
        trials: all finished runs, of any family.
    """
    own = [trial for trial in trials if trial.family == family]
    number, by_round = len(own), {name: [t for t in own if t.round == name] for name in PLAN}
    for name, (count, kind) in {name: (getattr(rounds, name), PLAN[name]) for name in PLAN}.items():
        done = by_round[name]
        if len(done) < count:
            steps = rounds.steps[kind]
            settings, seed = _settings(name, family, space, rounds, by_round, len(done))
            return Trial(family, number, name, steps, seed, settings)
    return None


PLAN = {"spread": 0, "longer": 1, "near": 1, "full": 2}
"""The rounds in their order, each with the place of its length in `Rounds.steps`."""


def _settings(
    name: str, family: str, space: Space, rounds: Rounds, by_round: Mapping[str, Sequence[Trial]], index: int
) -> tuple[dict[str, Any], int]:
    if name == "spread":
        points = torch.quasirandom.SobolEngine(len(space), scramble=True, seed=_seed(family)).draw(rounds.spread)
        return {key: one.at(float(at)) for (key, one), at in zip(space.items(), points[index], strict=True)}, 0
    if name == "longer":
        return dict(best(by_round["spread"], rounds.longer)[index].settings), 0
    middle = [*by_round["longer"], *by_round["near"]]
    if name == "near":
        parents = best(middle, rounds.parents)  # as they are by now, so that one improvement leads to the next
        parent = parents[0 if index % 2 else (index // 2) % len(parents)]
        return _beside(parent.settings, space, rounds.reach, np.random.default_rng([_seed(family), index])), 0
    return dict(best(middle, rounds.full)[index].settings), 1


def best(trials: Iterable[Trial], count: int) -> list[Trial]:
    """Return the runs with the lowest losses; of equal ones the earlier."""
    return sorted(trials, key=lambda trial: (DIVERGED if trial.loss is None else trial.loss, trial.number))[:count]


def _beside(settings: Mapping[str, Any], space: Space, reach: float, draw: np.random.Generator) -> dict[str, Any]:
    """Move every number a little; of the values of a `OneOf` another one is taken now and then."""
    found = {}
    for name, one in space.items():
        if isinstance(one, OneOf):
            found[name] = one.at(draw.random()) if draw.random() < 2 * reach else settings[name]
        else:
            found[name] = one.at(float(np.clip(one.place(settings[name]) + reach * draw.normal(), 0, 1)))
    return found


def _seed(family: str) -> int:
    return int.from_bytes(family.encode()[:6], "big") % 2**31


def choices(trial: Trial, space: Space, *, natural: Mapping[str, Sequence[float]] | None = None) -> list[Choice]:
    """Return a chosen setting for the rule about ends of grids.

    A number counts as at an end if it lies within a hundredth of the range from it.

    Args:
        trial: that was chosen.
        space: that was searched.
        natural: ends beyond which there is nothing, by name.
    """
    found = []
    for name, one in space.items():
        if isinstance(one, Range):
            value, place = trial.settings[name], one.place(trial.settings[name])
            end = one.low if place < 0.01 else one.high if place > 0.99 else value
            found.append(Choice(trial.family, name, end, (one.low, one.high), tuple((natural or {}).get(name, ()))))
    return found


def run_search(
    families: Mapping[str, Space],
    rounds: Rounds,
    path: Path,
    run: Callable[[Trial], tuple[float, Mapping[str, Any]]],
    *,
    wants_more: Callable[[], bool] = lambda: True,
) -> list[Trial]:
    """Run the searches of all families in turn, one run each, and return the table; what is there is kept.

    Args:
        families: the space of each.
        rounds: the same for all.
        path: of the table, a csv. It is written after every run.
        run: trains, and returns the loss (infinite: diverged) and what else was measured.
        wants_more: is asked before every run; the search stops where it returns False.
    """
    trials = read_table(path, families)
    while wants_more():
        counts = {family: sum(trial.family == family for trial in trials) for family in families}
        turns = sorted(counts, key=lambda family: counts[family])
        upcoming = (next_trial(family, families[family], rounds, trials) for family in turns)
        trial = next((one for one in upcoming if one is not None), None)
        if trial is None:
            break
        loss, notes = run(trial)
        trials.append(Trial(**{**vars(trial), "loss": loss, "notes": dict(notes)}))
        write_table(path, trials)
    return trials


FIELDS = ("family", "number", "round", "steps", "seed", "loss")


def write_table(path: Path, trials: Sequence[Trial]) -> None:
    """Write the table of runs; a setting that a family does not have is left empty."""
    rows = [
        {**{name: getattr(t, name) for name in FIELDS}, **t.settings, **{f"{k} (note)": v for k, v in t.notes.items()}}
        for t in trials
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
    for line, row in enumerate(csv.DictReader(io.StringIO(path.read_text())), 2):
        try:
            space = families[row["family"]]
            settings = {name: _read(row[name]) for name in space}
            notes = {key.removesuffix(" (note)"): _read(row[key]) for key in row if key.endswith(" (note)")}
            number, steps, seed = (int(row[name]) for name in ("number", "steps", "seed"))
            trial = Trial(row["family"], number, row["round"], steps, seed, settings, float(row["loss"]), notes)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(
                f"{path}, line {line}: not a run of this search ({error!r}); mend or delete it"
            ) from None
        trials.append(trial)
    for family in families:
        numbers = [trial.number for trial in trials if trial.family == family]
        if numbers != list(range(len(numbers))):
            raise DamagedError(f"{path} must hold the runs of {family} once each and in order, got numbers {numbers}")
    return trials


def _read(text: str) -> Any:
    if text in ("True", "False", ""):
        return {"True": True, "False": False, "": None}[text]
    try:
        return float(text)
    except ValueError:
        return text
