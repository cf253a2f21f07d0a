"""A search over settings: successive halving, then settings near the best. Its state is its table of runs.

The next run depends on the table alone. So a search can stop at any time and continue on any machine that has the
table, and no run is counted twice. Every run has a row, also a run that diverged.

1. Some known settings, and settings spread evenly over the space (Sobol points), are run for a short time.
2. The best of them are run for longer.
3. Settings near the best so far are run for the same time, one after the other.
4. The best of all these are run for the full time, with other seeds. The setting with the best mean is chosen.

`trials.py` keeps the table. `finals.py` trains the chosen settings again and measures them on the test data.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import torch

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
class Even:
    """Numbers from `low` to `high`, evenly spread; for what may be 0."""

    low: float
    high: float

    def at(self, place: float) -> float:
        """Return the number at a place between 0 and 1, with four digits.

        >>> Even(0.0, 0.4).at(0.25)
        0.1
        """
        return float(f"{self.low + (self.high - self.low) * place:.4g}")

    def place(self, value: Any) -> float:
        """Return where a number lies between 0 and 1."""
        return float((value - self.low) / (self.high - self.low))


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


Space = Mapping[str, Range | Even | OneOf]
Outcome = tuple[float, Mapping[str, Any]]
"""What a run returns: its loss (infinite: diverged), and what else was measured."""


@dataclass(frozen=True)
class Trial:
    """One run of a search: its settings, its length and its result."""

    family: str
    number: int
    round: str
    """"spread", "longer", "near" or "full"; "final" for a run after the search, see `finals.py`."""
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
    """Lengths: of the round "spread", of "longer" and "near", and of "full"."""
    parents: int = 4
    """How many of the best settings the round "near" starts from. Every second run starts from the very best."""
    reach: float = 0.08
    """Standard deviation of a step away from a parent, as a share of each range."""
    seeds: tuple[int, int, int, int] = (0, 0, 0, 1)
    """Seed of the runs in each of the four rounds; in "full" the first of `repeats` seeds."""
    repeats: int = 1
    """Seeds per setting in the round "full": it runs `full / repeats` settings."""

    @property
    def runs(self) -> int:
        """Number of runs per family."""
        return self.spread + self.longer + self.near + self.full

    @property
    def budget(self) -> int:
        """Number of steps per family."""
        short, middle, long = self.steps
        return self.spread * short + (self.longer + self.near) * middle + self.full * long


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, how its runs are trained, and what its final runs are."""

    families: Mapping[str, Space]
    """The space of each family."""
    rounds: Rounds
    """The same for all families."""
    train: Callable[[Trial], Outcome]
    """Trains a run. It must be picklable, so that processes can share the work. Runs of the round "final" learn from
    all training data and are measured on the test data. No other run sees the test data."""
    final_steps: int
    """Length of a final run."""
    controls: tuple[str, ...] = ()
    """Arms of the final runs without anything to search. `train` knows their settings."""
    measures: tuple[str, ...] = ("loss",)
    """What the table of final runs shows: the loss, or names of notes."""
    unit: str = "steps"
    """Unit of the lengths."""
    natural: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Ends of a range that are natural limits, such as 0, by name of the setting."""
    known: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Settings that were used before, by family. They replace the first of the evenly spread ones."""

    def __post_init__(self) -> None:
        for family, settings in self.known.items():
            if len(settings) > self.rounds.spread or any(
                one.keys() != self.families[family].keys() for one in settings
            ):
                raise ValueError(
                    f"`known` must hold at most {self.rounds.spread} settings of {family}, each with the names "
                    f"{', '.join(self.families[family])}, got {list(settings)}; correct them."
                )


def next_trial(
    family: str, space: Space, rounds: Rounds, trials: Iterable[Trial], known: Sequence[Mapping[str, Any]] = ()
) -> Trial | None:
    """Return the next run of a family, given those that are finished; None at the end.

    Args:
        family: the family to search.
        space: its settings and their ranges.
        rounds: how many runs, and how long.
        trials: all finished runs, of any family.
        known: settings to run first.
    """
    own = [trial for trial in trials if trial.family == family]
    number, by_round = len(own), {name: [t for t in own if t.round == name] for name in PLAN}
    for name, (count, kind) in {name: (getattr(rounds, name), PLAN[name]) for name in PLAN}.items():
        done = by_round[name]
        if len(done) < count:
            steps = rounds.steps[kind]
            settings, seed = _settings(name, family, space, rounds, by_round, len(done))
            if name == "spread" and len(done) < len(known):
                settings = dict(known[len(done)])
            return Trial(family, number, name, steps, seed, settings)
    return None


PLAN = {"spread": 0, "longer": 1, "near": 1, "full": 2}
"""The rounds in their order, each with the place of its length in `Rounds.steps`."""


def _settings(
    name: str, family: str, space: Space, rounds: Rounds, by_round: Mapping[str, Sequence[Trial]], index: int
) -> tuple[dict[str, Any], int]:
    seed = rounds.seeds[tuple(PLAN).index(name)]
    if name == "spread":
        points = torch.quasirandom.SobolEngine(len(space), scramble=True, seed=_seed(family)).draw(rounds.spread)
        return {key: one.at(float(at)) for (key, one), at in zip(space.items(), points[index], strict=True)}, seed
    if name == "longer":
        return dict(best(by_round["spread"], rounds.longer)[index].settings), seed
    middle = [*by_round["longer"], *by_round["near"]]
    if name == "near":
        parents = best(middle, rounds.parents)  # as they are by now, so that one improvement leads to the next
        parent = parents[0 if index % 2 else (index // 2) % len(parents)]
        return _beside(parent.settings, space, rounds.reach, np.random.default_rng([_seed(family), index])), seed
    place, repeat = divmod(index, rounds.repeats)
    return dict(best(middle, rounds.full)[place].settings), seed + repeat


def chosen(family: str, rounds: Rounds, trials: Iterable[Trial]) -> Trial | None:
    """Return a run with the setting that a finished search has chosen; None while runs are missing.

    It has the lowest mean loss over the seeds of the round "full".
    """
    own = [trial for trial in trials if trial.family == family]
    full = [trial for trial in own if trial.round == "full"]
    if len(own) < rounds.runs or not full:
        return None
    groups = [full[start : start + rounds.repeats] for start in range(0, len(full), rounds.repeats)]
    means = [fmean(DIVERGED if one.loss is None else one.loss for one in group) for group in groups]
    return groups[means.index(min(means))][0]


def best(trials: Iterable[Trial], count: int) -> list[Trial]:
    """Return the runs with the lowest losses; of equal ones the earlier."""
    return sorted(trials, key=lambda trial: (DIVERGED if trial.loss is None else trial.loss, trial.number))[:count]


def _beside(settings: Mapping[str, Any], space: Space, reach: float, draw: np.random.Generator) -> dict[str, Any]:
    """Move every number a little. Now and then, take another value of a `OneOf`."""
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
    """Return the values of a chosen run, for the rule about values at an end of their range.

    A number is at an end if its distance from it is below a hundredth of the range.

    Args:
        trial: the chosen run.
        space: the space that was searched.
        natural: as in `Search`.
    """
    found = []
    for name, one in space.items():
        if not isinstance(one, OneOf):
            value, place = trial.settings[name], one.place(trial.settings[name])
            end = one.low if place < 0.01 else one.high if place > 0.99 else value
            found.append(Choice(trial.family, name, end, (one.low, one.high), tuple((natural or {}).get(name, ()))))
    return found
