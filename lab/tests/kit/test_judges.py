"""Rules about several things at once."""

from functools import partial

from harmax.analysis import PairedDifference
from harmax_lab.kit.judges import everywhere
from harmax_lab.kit.results import compare
from harmax_lab.kit.rules import LEAST_SEEDS


def lower(pairs: int, thing: str, level: float) -> PairedDifference:
    return compare([1.0, 1.1, 1.2][:pairs], [2.0, 2.1, 2.22][:pairs], level=level)


def test_three_pairs_decide_and_two_do_not() -> None:
    three, two = partial(lower, LEAST_SEEDS), partial(lower, LEAST_SEEDS - 1)
    assert everywhere(("a", "b"), three, wanted=-1).holds is True
    assert everywhere(("a", "b"), three, wanted=1).holds is False
    assert everywhere(("a", "b"), two, wanted=-1).holds is None
    assert everywhere(("a", "b"), two, wanted=1).holds is None
