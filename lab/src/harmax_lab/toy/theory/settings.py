"""The settings in which a claim about trained heads is judged: blobs of every size, and digits."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from harmax.analysis import Interval
from harmax_lab.kit.judges import below, shared_level
from harmax_lab.kit.results import Results, interval
from harmax_lab.toy.theory.separable import BLOBS, DIGITS

TRAINED = (BLOBS, DIGITS)
"""The data of the settings."""
EVERYWHERE = "on blobs of every size and on digits, with a 95 % interval over seeds"


class Average(Protocol):
    """How a number is averaged over seeds, and its interval."""

    def __call__(self, values: Sequence[float], *, level: float) -> Interval:
        """Return the average with an interval of a level."""


class Everywhere(NamedTuple):
    """A number in each setting, and whether it is below a limit."""

    holds: bool | None
    """By the rule for several things: each of them must hold, and one that clearly does not breaks the claim."""
    typically: bool | None
    """For "usually" and "in many settings": whether all say the same, and what; None if they differ."""
    found: Mapping[str, Interval]


def settings(results: Results, *, by_arm: bool = False) -> dict[str, Results]:
    """Split results by data and size, and on request by head."""
    found = {}
    for (data, m, arm), own in results.groups("data", "samples", "arm").items():
        name = f"{data}, m = {m}" + (", exponent 2" if by_arm and arm == "harmonic_2" else "")
        found[name] = own if by_arm else results.where(data=data, samples=m)
    return found


def averages(results: Results, metric: str) -> dict[str, Interval]:
    """Return the mean of a metric over seeds in each setting and for each head."""
    return {name: interval(own.metric(metric).values) for name, own in settings(results, by_arm=True).items()}


def below_everywhere(
    groups: Mapping[str, Results],
    values: Callable[[Results], Sequence[float]],
    limit: float,
    average: Average = interval,
) -> Everywhere:
    """Judge whether a number lies below a limit in every setting; `values` returns one number per seed."""
    found = {name: average(values(own), level=0.95) for name, own in groups.items()}
    level = shared_level(len(groups))
    broken = any(average(values(own), level=level).above(limit) for own in groups.values())
    answers = [below(one, limit) for one in found.values()]
    typically = answers[0] if len(set(answers)) == 1 else None
    return Everywhere(False if broken else True if all(answers) else None, typically, found)


def ranges(found: Mapping[str, Interval], form: str = ".3g") -> str:
    """Write a number per data set: its interval, or its range over the settings and what their intervals span.

    >>> ranges({"blobs, m = 8": Interval(1.0, 0.5, 1.5), "blobs, m = 9": Interval(2.0, 1.5, 2.5)})
    'blobs 1 to 2 (intervals within 0.5 to 2.5)'
    """
    words = []
    for data in dict.fromkeys(name.partition(",")[0] for name in found):
        own = [one for name, one in found.items() if name.startswith(data)]
        middles = [one.estimate for one in own]
        ends = f"{min(one.low for one in own):{form}} to {max(one.high for one in own):{form}}"
        between = f"{min(middles):{form}} to {max(middles):{form}} (intervals within {ends})"
        words.append(f"{data} {between}" if len(own) > 1 else f"{data} {own[0]}")
    return "; ".join(words)


def plain(found: Mapping[str, Interval], what: str) -> dict[str, dict[str, float]]:
    """Return intervals by name, for the numbers of a finding."""
    return {f"{what}, {name}": one._asdict() for name, one in found.items()}
