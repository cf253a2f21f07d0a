"""Theorem 2: the margin bound on the test error, and whether it is tighter for the harmonic head."""

import math
from typing import Any

import torch
from torch import Tensor

from harmax.analysis import Interval, bootstrap_interval
from harmax.figures import HEAD_STYLES
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.judges import below, both, listed
from harmax_lab.kit.results import Results, interval, where
from harmax_lab.kit.tables import combinations
from harmax_lab.paper.readings import MUCH_LESS
from harmax_lab.toy.heads import margins
from harmax_lab.toy.theory.separable import BLOBS, CROSS_ENTROPY, PLAIN, scores_of
from harmax_lab.toy.theory.settings import EVERYWHERE, TRAINED, below_everywhere, plain, ranges, settings

CHANCE_OF_FAILURE = 0.05
"""The theorem's delta."""


def bound(radius: float, norm: float, margin: float, samples: int) -> float:
    """Return R |W| / (gamma sqrt(m)), infinite where a training point is on the wrong side.

    >>> bound(2.0, 3.0, 0.5, 16)
    3.0
    """
    return radius * norm / (margin * math.sqrt(samples)) if margin > 0 else math.inf


def right_side(first: float, samples: int) -> float:
    """Return the theorem's whole right side with 1 for the constant that it leaves open.

    >>> round(right_side(0.5, 300), 3)
    0.6
    """
    return first + math.sqrt(math.log(1 / CHANCE_OF_FAILURE) / samples)


def distance_margin(points: Tensor, target: Tensor, centers: Tensor) -> float:
    """Return the theorem's gamma: by how much the nearest wrong center is farther than the right one, at least."""
    return float(margins(-torch.cdist(points, centers), target).min())


def error_rate(arm: str, points: Tensor, target: Tensor, weight: Tensor, bias: Tensor) -> float:
    """Return the share of points that a head puts into a wrong class."""
    return float((scores_of(arm, points, weight, bias).argmax(-1) != target).double().mean())


def _judge_error(results: Results) -> Finding:
    found = [(result.metrics["test_error"], result.metrics["distance_bound"], cell) for cell, result in results.items()]
    sides = [(error, right_side(first, cell.samples)) for error, first, cell in found if math.isfinite(first)]
    kept, telling = sum(error <= side for error, side in sides), sum(side < 1 for _, side in sides)
    return Finding(
        None if not sides else kept == len(sides),
        f"With 1 for the constant, delta = {CHANCE_OF_FAILURE} and the theorem's margin of distances, the test error "
        f"is below the right side in {kept} of {len(sides)} runs with a positive margin. The right side is below 1, "
        f"and so says something, in {telling} of them.",
        {"runs": len(sides), "below": kept, "below_one": telling},
    )


def _judge_norm(results: Results) -> Finding:
    groups, share = settings(results), results.spec.steps // 100
    ratio, early = (
        {name: interval(_ratios(own, metric)) for name, own in groups.items()}
        for metric in ("weight_norm", "early_norm")
    )
    seeds = zip(*(_ratios(own, "weight_norm") for own in groups.values()), strict=True)
    overall = interval([sum(own) / len(own) for own in seeds])
    return Finding(
        below(overall, MUCH_LESS),
        f"|W| of the harmonic head over cross-entropy's after {results.spec.steps:,} steps of gradient descent: "
        f"{overall} on average ({ranges(ratio)}). After {share:,} steps: {ranges(early)}. It falls as long as one "
        "trains, because cross-entropy's norm grows without end.",
        {"ratio": overall._asdict(), **plain(ratio, "ratio"), **plain(early, "early ratio")},
    )


def _judge_tighter(results: Results) -> Finding:
    groups = settings(results)
    ratio = below_everywhere(groups, lambda own: _ratios(own, "bound"), 1.0, bootstrap_interval)
    lengths = {name: bootstrap_interval(_ratios(own, "distance_bound", "bound")) for name, own in groups.items()}
    lost = sum(not math.isfinite(one) for one in results.where(arm="harmonic").metric("bound"))
    return Finding(
        ratio.holds,
        f"Harmonic bound over cross-entropy's on the same data, median: {ranges(ratio.found)}. {lost} harmonic runs "
        "leave a training point on the wrong side. With the theorem's margin of distances, which is in the units of "
        f"x: {ranges(lengths)}. |W| / gamma does not change when cross-entropy's W is scaled, so its growing norm "
        "costs it nothing.",
        {**plain(ratio.found, "ratio"), **plain(lengths, "margin of distances"), "harmonic_runs_without_margin": lost},
    )


def _ratios(results: Results, ours: str, theirs: str = "") -> list[float]:
    """Return a metric of the harmonic head over one of cross-entropy's, seed by seed."""
    of = results.where(arm="harmonic").metric(ours).by("seed")
    over = results.where(arm="cross_entropy").metric(theirs or ours).by("seed")
    return [of[seed] / over[seed] for seed in of]


def _judge_telling(results: Results) -> Finding:
    bounds = {(arm, m): own.metric("bound").median() for (arm, m), own in results.groups("arm", "samples").items()}
    words = {f"{HEAD_STYLES[arm].label}, m = {m}": found for (arm, m), found in bounds.items()}
    harmonic = [found for (arm, _), found in bounds.items() if arm == "harmonic" and found is not None]
    return Finding(
        both(*(below(found, 1) for found in harmonic)),
        f"Median bounds: {listed(words)}. The largest measured gap of {len(results)} runs is "
        f"{max(results.metric('error_gap')):.3f}.",
        {name: found._asdict() for name, found in words.items() if found is not None},
    )


def _judge_order(results: Results) -> Finding:
    errors, losses = (_agreement(results, gap) for gap in ("error_gap", "loss_gap"))
    return Finding(
        errors.above(0.5),
        "Harmonic against cross-entropy, seed by seed, the smaller bound has the smaller gap in error in a share of "
        f"{errors} of the comparisons, and the smaller gap in loss in {losses} (0.5 is chance).",
        {"agreement_error": errors._asdict(), "agreement_loss": losses._asdict()},
    )


def _agreement(results: Results, gap: str) -> Interval:
    """Return, over seeds, the share of comparisons in which the smaller bound has the smaller gap, ties left out."""
    agree: dict[int, list[bool]] = {}
    for at in combinations(samples=results.distinct("samples"), arm=CROSS_ENTROPY):
        own = results.where(samples=at.samples)
        bounds, found = (own.pairs(metric, "arm", "harmonic", at.arm) for metric in ("bound", gap))
        for seed, (ours, theirs) in found.items():
            if ours != theirs:
                agree.setdefault(seed, []).append((bounds[seed][0] < bounds[seed][1]) == (ours < theirs))
    shares = [sum(agree[seed]) / len(agree[seed]) for seed in sorted(agree)]
    return interval(shares) if shares else Interval(0.5, 0.0, 1.0)


BOUND = "R |W| / (gamma sqrt(m))"
CLAIMS = (
    Claim(
        "test_error_below_bound",
        f"The test error of a harmonic classifier is at most of the order {BOUND} + sqrt(ln(1 / delta) / m).",
        sentences=("G/26",),
        needs=where(data=TRAINED, arm="harmonic"),
        judge=_judge_error,
        not_run="The order leaves a constant open, so no measured error can contradict it. Besides, the theorem's "
        "margin is a length: in another unit of x the first term is different, and the classifier is the same.",
    ),
    Claim(
        "norm_is_much_smaller",
        "The harmonic head's |W| is typically much smaller than cross-entropy's on the same data. Holds if it is at "
        f"most {100 * MUCH_LESS:.0f} % of it, averaged over blobs of every size and digits, with a 95 % interval over "
        "seeds. The budget is part of the verdict, because cross-entropy's norm grows.",
        sentences=("G/27",),
        needs=where(data=TRAINED, arm=PLAIN),
        judge=_judge_norm,
    ),
    Claim(
        "tighter_bound",
        f"The margin bound {BOUND} is smaller for the harmonic head than for cross-entropy on the same data. gamma is "
        "the least margin of the scores, in the units of W x for both heads. Holds if the median ratio is below 1 "
        f"{EVERYWHERE}.",
        sentences=("G/28",),
        needs=where(data=TRAINED, arm=PLAIN),
        judge=_judge_tighter,
    ),
    Claim(
        "bound_says_something",
        "On blobs the harmonic head's bound is below 1, the largest error there is, at every size of the training set.",
        needs=where(data=BLOBS),
        judge=_judge_telling,
    ),
    Claim(
        "bound_orders_gaps",
        "Of two heads on the same blobs, the one with the smaller bound has the smaller measured gap between test and "
        "training error.",
        needs=where(data=BLOBS),
        judge=_judge_order,
    ),
)


def measure_bound(metrics: dict[str, Any], samples: int) -> dict[str, float]:
    """Return both bounds and both measured gaps of a run from its other numbers."""
    radius, norm = metrics["radius"], metrics["weight_norm"]
    return {
        "bound": bound(radius, norm, metrics["margin"], samples),
        "distance_bound": bound(radius, norm, metrics["distance_margin"], samples),
        "error_gap": metrics["test_error"] - metrics["train_error"],
        "loss_gap": metrics["test_loss"] - metrics["loss"],
    }
