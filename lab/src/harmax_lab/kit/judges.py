"""Rules by which claims are judged, and their statistics.

A rule about several things (five tasks, thirteen rivals) holds if each of them holds with its 95 % interval. This needs
no correction. The rule is broken if one of them clearly goes the other way. That one is chosen among several, so its
interval must have a higher level: `shared_level`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from harmax.analysis import Interval, PairedDifference, share_interval
from harmax_lab.kit.claims import Finding
from harmax_lab.kit.results import Results
from harmax_lab.kit.rules import LEAST_SEEDS

SIGNIFICANT = 0.05
Judge = Callable[[Results[Any, Any]], Finding]


def shared_level(number: int) -> float:
    """Return the level that each of several intervals needs, so that all of them together keep 95 %.

    >>> round(shared_level(5), 6)
    0.99
    """
    return 1 - SIGNIFICANT / number


def pairs_of(difference: PairedDifference | None) -> int:
    """Return how many pairs a comparison rests on."""
    return 0 if difference is None else difference.greater + difference.less + difference.ties


def side(difference: PairedDifference | None) -> int:
    """Return 1 if the whole interval of a difference is above 0, -1 if below, else 0; 0 with too few pairs."""
    if difference is None or pairs_of(difference) < LEAST_SEEDS:
        return 0
    above = difference.difference.above(0)
    return 0 if above is None else 1 if above else -1


class Everywhere(NamedTuple):
    """What `everywhere` found: whether the claim holds, each difference, and its `side`."""

    holds: bool | None
    found: Mapping[Any, PairedDifference | None]
    sides: Mapping[Any, int]


def everywhere(
    things: Iterable[Any],
    compare: Callable[[Any, float], PairedDifference | None],
    *,
    wanted: int = 1,
    ignored: Callable[[Any], bool] = lambda thing: False,
) -> Everywhere:
    """Judge whether a difference lies on the wanted side of 0 for all things of a list.

    Args:
        things: for example tasks.
        compare: returns the difference for a thing, with an interval of the given level.
        wanted: 1 for above 0, -1 for below.
        ignored: returns whether a thing does not count.
    """
    names = list(things)
    found = {thing: compare(thing, 0.95) for thing in names}
    sides = {thing: side(difference) for thing, difference in found.items()}
    counted = [thing for thing in names if not ignored(thing)]
    broken = any(side(compare(thing, shared_level(len(names)))) == -wanted for thing in counted)
    holds = False if broken else True if counted and all(sides[thing] == wanted for thing in counted) else None
    return Everywhere(holds, found, sides)


def both(*answers: bool | None) -> bool | None:
    """Return whether all answers are yes: False if one is no, else None if one is missing.

    >>> both(True, None), both(None, False)
    (None, False)
    """
    return False if False in answers else None if None in answers else True


def listed(values: Mapping[str, Any], *, form: Callable[[Any], str] = str) -> str:
    """Write named values as part of a sentence.

    >>> listed({"harmonic": 0.5, "standard": 0.25})
    'harmonic 0.5; standard 0.25'
    """
    return "; ".join(f"{name} {form(value)}" for name, value in values.items())


def percent(value: Interval | float, digits: int = 2) -> str:
    """Write a share, or an interval of shares, in percent.

    >>> percent(Interval(0.5, 0.25, 0.75), 0)
    '50 % [25, 75]'
    """
    if isinstance(value, Interval):
        estimate, low, high = (f"{100 * one:.{digits}f}" for one in value)
        return f"{estimate} % [{low}, {high}]"
    return f"{100 * value:.{digits}f} %"


def below(found: Interval, limit: float) -> bool | None:
    """Return whether an interval lies below a limit: False if it lies above, None if the limit is inside.

    >>> below(Interval(2.0, 1.0, 3.0), 4), below(Interval(2.0, 1.0, 3.0), 2)
    (True, None)
    """
    above = found.above(limit)
    return None if above is None else not above


def reaches(count: int, total: int, least: float) -> bool | None:
    """Return whether at least this share of the runs does something.

    True if the share of our runs is as high. False if its whole 95 % interval is lower. None in between, and without a
    run. The interval of 20 runs never lies wholly above 0.9, so it is not asked to.

    >>> reaches(18, 20, 0.9), reaches(17, 20, 0.9), reaches(10, 20, 0.9), reaches(0, 0, 0.9)
    (True, None, False, None)
    """
    return share_reaches(share_interval(count, total), least) if total else None


def share_reaches(share: Interval, least: float) -> bool | None:
    """Return the same for a share with its interval."""
    return True if share.estimate >= least else False if share.high < least else None


def opposite(answer: bool | None) -> bool | None:
    """Return the opposite of an answer; None stays None."""
    return None if answer is None else not answer


def signed(found: Interval, digits: int = 2, *, scale: float = 1.0) -> str:
    """Write a difference and its interval, all with signs.

    >>> signed(Interval(0.01, -0.002, 0.03), scale=100)
    '+1.00 [-0.20, +3.00]'
    """
    estimate, low, high = (f"{scale * value:+.{digits}f}" for value in found)
    return f"{estimate} [{low}, {high}]"
