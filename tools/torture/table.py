"""The table of trials: which seeds were tried, and what failed."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from harmax.files import from_json, to_json, write_atomically


class Trial(NamedTuple):
    """One kind of trial."""

    case: Callable[[int], str | None]
    """Runs the case of a seed; returns what failed, or None if everything held."""
    about: str
    calls: int = 1
    """What one case counts for."""
    batch: int = 1
    """Cases per line of the table."""


class Line(NamedTuple):
    """Cases with consecutive seeds."""

    trial: str
    seed: int
    cases: int
    tried: int
    failed: dict[str, str]
    """What failed, by seed."""
    seconds: float
    """Processor time of this process and of those that it started."""


class Tally(NamedTuple):
    """All lines of one trial, added up."""

    tried: int
    failed: dict[str, str]
    hours: float
    """Processor time of all pieces, with those that were repeated."""
    seeds: str
    """The seeds that were tried, as ranges."""

    @property
    def held(self) -> int:
        """How many held."""
        return self.tried - len(self.failed)


def read(path: Path) -> list[Line]:
    """Return the lines of a table."""
    return [Line(**from_json(line)) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, line: Line) -> None:
    """Add a line to a table, which one process writes at a time; lines with consecutive seeds become one."""
    lines = read(path)
    for place, one in enumerate(lines):
        if (one.trial, one.seed + one.cases) == (line.trial, line.seed):
            cases, tried, seconds = one.cases + line.cases, one.tried + line.tried, one.seconds + line.seconds
            lines[place] = Line(one.trial, one.seed, cases, tried, {**one.failed, **line.failed}, round(seconds, 1))
            break
    else:
        lines.append(line)
    write_atomically(path, "".join(to_json(one._asdict()) + "\n" for one in lines).encode())


def next_seed(lines: Iterable[Line], trial: str) -> int:
    """Return the first seed after all that were tried."""
    return max((line.seed + line.cases for line in lines if line.trial == trial), default=0)


def tally(lines: Iterable[Line]) -> dict[str, Tally]:
    """Add up the lines of each trial. A seed that was repeated counts once, with its last outcome."""
    seen: dict[str, dict[int, tuple[int, str | None]]] = {}
    seconds: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        seconds[line.trial] += line.seconds
        own = seen.setdefault(line.trial, {})
        for seed in range(line.seed, line.seed + line.cases):
            own[seed] = line.tried // line.cases, line.failed.get(str(seed))
    return {
        name: Tally(
            sum(calls for calls, _ in own.values()),
            {str(seed): words for seed, (_, words) in own.items() if words},
            seconds[name] / 3600,
            _ranges(sorted(own)),
        )
        for name, own in seen.items()
    }


def _ranges(numbers: list[int]) -> str:
    """Return rising numbers as ranges, such as 0-13, 20."""
    ends = [last for last, following in pairwise([*numbers, None]) if following is None or following != last + 1]
    starts = [first for before, first in pairwise([None, *numbers]) if before is None or first != before + 1]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def as_text(tallies: dict[str, Tally], trials: dict[str, Any]) -> str:
    """Return the table that is printed: tried, held, failed, and how to repeat each failure."""
    rows = [f"{'trial':<16}{'tried':>12}{'held':>12}{'failed':>8}{'CPU hours':>12}  seeds"]
    rows += [
        f"{name:<16}{one.tried:>12,}{one.held:>12,}{len(one.failed):>8,}{one.hours:>12.2f}  {one.seeds}"
        for name in trials
        if (one := tallies.get(name))
    ]
    for name, one in tallies.items():
        for seed, words in one.failed.items():
            rows += ["", f"{name}, seed {seed}: {words}", f"  repeat: make torture TRIALS={name} SEED={seed} COUNT=1"]
    return "\n".join(rows)
