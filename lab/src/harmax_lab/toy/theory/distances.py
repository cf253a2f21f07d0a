"""Where n ~ sqrt(D) comes from: distances between points of a D-dimensional Gaussian, and their powers."""

# P pairs of points, D dimensions

import math

import numpy as np
import torch

from harmax.analysis import Interval
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.judges import below, both
from harmax_lab.kit.results import Results, interval, where
from harmax_lab.kit.store import CellResult
from harmax_lab.toy.theory.separable import GAUSSIAN, TheoryCell

BASE = 16
"""The dimensions at which all three exponents are 4."""
EXPONENTS = {"root": lambda size: math.sqrt(size), "fixed": lambda size: 4.0, "proportional": lambda size: size / 4}
"""n = sqrt(D), n = 4 and n = D / 4."""
REACH = 0.05
"""By how much a measured power of D may differ from the one that the paper gives."""


def measure_pairs(cell: TheoryCell) -> CellResult:
    """Draw pairs of points; return how far their squared distances scatter, and their distances to three powers."""
    generator = torch.Generator().manual_seed(cell.seed)
    one_PD, two_PD = (torch.randn(cell.samples, cell.features, dtype=torch.float64, generator=generator) for _ in "12")
    squared = (one_PD - two_PD).square().mean(1).numpy()
    distance = np.sqrt(squared) / np.median(np.sqrt(squared))
    return CellResult(
        metrics={
            "mean_square": float(squared.mean()),
            "scatter": float(squared.std() / squared.mean()),
            **{f"spread_{name}": spread(distance ** rule(cell.features)) for name, rule in EXPONENTS.items()},
        }
    )


def spread(values: np.ndarray) -> float:
    """Return the distance between the quartiles, as a share of the median.

    >>> spread(np.array([1.0, 2.0, 4.0, 6.0, 9.0]))
    1.0
    """
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float((high - low) / middle)


def powers(results: Results, metric: str) -> Interval:
    """Return with which power of D a metric grows: the slope in logarithms, over seeds."""
    slopes = []
    for own in results.groups("seed").values():
        sizes, found = zip(*own.metric(metric).by("features").items(), strict=True)
        slopes.append(float(np.polyfit(np.log(sizes), np.log(found), 1)[0]))
    return interval(slopes)


def _near(found: Interval, wanted: float) -> bool | None:
    return both(found.above(wanted - REACH), below(found, wanted + REACH))


def _judge_scatter(results: Results) -> Finding:
    power, mean = powers(results, "scatter"), powers(results, "mean_square")
    largest = max(results.distinct("features"))
    own = results.where(features=largest)
    return Finding(
        both(_near(power, -0.5), _near(mean, 0.0)),
        f"Over D = {min(results.distinct('features'))} to {largest} the scatter goes with D to the power {power}, and "
        f"the mean with the power {mean}. At D = {largest} the mean is {own.metric('mean_square').mean()} (with "
        f"variance 1 in each dimension it is 2, not 1) and the scatter {own.metric('scatter').mean()} of it.",
        {"power_of_scatter": power._asdict(), "power_of_mean": mean._asdict()},
    )


def _judge_power(results: Results) -> Finding:
    found = {name: powers(results, f"spread_{name}") for name in EXPONENTS}
    return Finding(
        both(_near(found["root"], 0.0), below(found["fixed"], -REACH), found["proportional"].above(REACH)),
        "The distance between the quartiles of d^n, as a share of its median, goes with D to the power "
        f"{found['root']} if n = sqrt(D), {found['fixed']} if n = 4, and {found['proportional']} if n = D / 4.",
        {f"power_{name}": power._asdict() for name, power in found.items()},
    )


CLAIMS = (
    Claim(
        "squared_distances_concentrate",
        "The squared distance between two points of a D-dimensional Gaussian, divided by D, is of the order 1 within "
        f"O(1 / sqrt(D)). Its scatter goes with D to the power -0.5 and its mean with the power 0, both within {REACH} "
        "with 95 % intervals over draws.",
        sentences=("2/17",),
        needs=where(data=GAUSSIAN),
        judge=_judge_scatter,
    ),
    Claim(
        "root_exponent_keeps_spread",
        "The harmonic distance d^n stays as it is while D grows only if n grows with sqrt(D). Its spread goes with D "
        f"to the power 0 within {REACH} if n = sqrt(D), falls if n is fixed, and rises if n grows with D, all with 95 "
        "% intervals over draws.",
        sentences=("2/18",),
        needs=where(data=GAUSSIAN),
        judge=_judge_power,
    ),
    Claim(
        "intrinsic_dimension",
        "In language models the intrinsic dimension of the data is about the width of the embedding.",
        sentences=("2/15",),
        not_run="The paper assumes this and measures no intrinsic dimension. The step that it takes from there is "
        "tested: theory/squared_distances_concentrate and theory/root_exponent_keeps_spread.",
    ),
)
