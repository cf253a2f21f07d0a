"""Three theorems of the paper, measured: finite norms, the margin bound, and where a harmonic center stands.

    harmax run theory            5 seeds, about a minute on one CPU core
    harmax run theory --full     20 seeds, more sizes of the training set, longer training: a few minutes

The data are Gaussian blobs that a linear rule separates by construction; the model is the head alone, as in the
theorems. Every head is trained by full-batch gradient descent with one constant learning rate, in float64. On separable
data gradient descent is the case in which cross-entropy's growth is known: |W| rises with the logarithm of the step and
W / |W| tends to the widest margin. Adam, which divides by the size of a gradient that fades away, would hide both.

separable.py has the data and how heads are trained on them; measures.py what is measured; figures.py the pictures. The
losses and the descent are those of the toy cases too: ../heads.py.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from harmax.analysis import Interval, bootstrap_interval
from harmax.figures import HEAD_STYLES
from harmax_lab.kit.claims import Claim, Finding, at_least
from harmax_lab.kit.experiment import Experiment, Progress, Work
from harmax_lab.kit.judges import Judge, below, both
from harmax_lab.kit.results import Results, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, combinations, places
from harmax_lab.toy.heads import Trajectory, loss_of, tabulate_last_step
from harmax_lab.toy.theory.figures import figures
from harmax_lab.toy.theory.measures import class_spread, growth, hull_distance, stationarity
from harmax_lab.toy.theory.separable import (
    ARMS,
    CROSS_ENTROPY,
    HARMONIC,
    PLANE,
    Blobs,
    TheoryCell,
    TheorySpec,
    blobs_of,
    cells,
    exponent_of,
    margins,
    scores_of,
    train,
)

STILL_GROWING, STOPPED, FLAT = 0.02, 1e-6, 1e-8
MATCHES, CLOSE_TO_MATCH = 1e-6, 1e-2  # residuals, in units of the classes' spread


def run_cells(
    spec: TheorySpec, group: Sequence[TheoryCell], progress: Progress
) -> Iterator[tuple[TheoryCell, CellResult]]:
    """Train the seeds of one head and size together, and measure each."""
    blobs = [blobs_of(spec, cell.features, cell.samples, cell.seed) for cell in group]
    trained = train(spec, group[0].arm, blobs, [cell.seed for cell in group], progress)
    for place, cell in enumerate(group):
        yield cell, measure(cell, blobs[place], trained.alone(place))


def measure(cell: TheoryCell, blobs: Blobs, trained: Trajectory) -> CellResult:
    """Turn one seed's trajectory into curves over steps and numbers at the last one."""
    points, target, test_points, test_target = blobs
    weight, bias, exponent = trained.weight[-1], trained.bias[-1], exponent_of(cell.arm, cell.features)
    scores_TBK, radius = scores_of(cell.arm, points, trained.weight, trained.bias), float(points.norm(dim=1).max())
    series = {
        "loss": trained.loss,
        "weight_norm": trained.weight.flatten(1).norm(dim=1),
        "gradient_norm": trained.gradient.flatten(1).norm(dim=1),
        "margin": margins(scores_TBK, target).amin(1),
    }
    last = {name: float(one[-1]) for name, one in series.items()}
    metrics: dict[str, Any] = {
        **last,
        **growth(trained.step[1:].numpy(), series["weight_norm"][1:].numpy())._asdict(),
        "radius": radius,
        "bound": bound(radius, last["weight_norm"], last["margin"], cell.samples),
        "train_error": error_rate(cell.arm, points, target, weight, bias),
        "test_error": error_rate(cell.arm, test_points, test_target, weight, bias),
        "test_loss": float(loss_of(cell.arm, exponent, test_points, test_target, weight, bias)),
    }
    if cell.arm in HARMONIC:
        readings = [stationarity(points, target, centers, exponent) for centers in trained.weight]
        series |= {name: torch.tensor([getattr(r, name) for r in readings]) for name in ("signed", "own")}
        outside = [hull_distance(points[target == k], center) for k, center in enumerate(weight)]
        metrics |= {
            **readings[-1]._asdict(),
            "hull_distance": sum(outside) / len(outside) / class_spread(points, target),
            "outside_hull": sum(distance > 0 for distance in outside) / len(outside),
        }
    kept = {"points": points, "target": target, "weight": trained.weight} if cell.features == PLANE else {}
    curves, arrays = (
        {name: one.numpy() for name, one in found.items()} for found in ({"step": trained.step, **series}, kept)
    )
    return CellResult(curves, arrays, metrics)


def bound(radius: float, norm: float, margin: float, samples: int) -> float:
    """Return R |W| / (gamma sqrt(m)), infinite where a training point is on the wrong side.

    >>> bound(2.0, 3.0, 0.5, 16)
    3.0
    """
    return radius * norm / (margin * math.sqrt(samples)) if margin > 0 else math.inf


def error_rate(arm: str, points: Tensor, target: Tensor, weight: Tensor, bias: Tensor) -> float:
    """Return the share of points that a head puts into a wrong class."""
    return float((scores_of(arm, points, weight, bias).argmax(-1) != target).double().mean())


def gaps(spec: TheorySpec, cell: TheoryCell, result: CellResult) -> dict[str, float]:
    """Return by how much error and loss are larger on the test points than on the training points."""
    found = result.metrics
    return {
        "error_gap": float(found["test_error"] - found["train_error"]),
        "loss_gap": float(found["test_loss"] - found["loss"]),
    }


def _medians(results: Results, metric: str, arms: Sequence[str] = ARMS) -> dict[tuple[str, int], Interval]:
    """Return the median over seeds by head and size, and its interval."""
    return {
        (at.arm, at.samples): bootstrap_interval(results.where(arm=at.arm, samples=at.samples).metric(metric).values)
        for at in combinations(arm=arms, samples=_sizes(results))
    }


def _sizes(results: Results) -> list[int]:
    return sorted(results.distinct("samples"))


def _plain(found: Interval) -> dict[str, float]:
    # Summaries on disk say which statistic it is.
    return {"median": found.estimate, "low": found.low, "high": found.high}


def _named(what: str, intervals: Mapping[tuple[str, int], Interval], sizes: bool = True) -> dict[str, Any]:
    return {f"{what}_{arm}" + f"_m{m}" * sizes: _plain(found) for (arm, m), found in intervals.items()}


def _by_size(intervals: Mapping[tuple[str, int], Interval], form: str) -> str:
    words: dict[str, list[str]] = {}
    for (arm, m), found in intervals.items():
        words.setdefault(HEAD_STYLES[arm].label, []).append(f"{found.estimate:{form}} (m = {m})")
    return "; ".join(f"{label} {', '.join(some)}" for label, some in words.items())


def _judge_finite(results: Results) -> Finding:
    growth, gradient = max(map(abs, results.metric("late"))), max(results.metric("gradient_norm"))
    largest = max(_sizes(results))
    norms = _medians(results.where(samples=largest), "weight_norm", HARMONIC)
    stopped = growth < STOPPED and gradient < FLAT
    return Finding(
        stopped,
        f"Over the last decade of steps no |W| of {len(results)} runs changed by more than {growth:.1e} of itself, and "
        f"no gradient norm ends above {gradient:.1e}{': an interior minimum, with the data held fixed' * stopped}. "
        f"|W| at m = {largest}: " + "; ".join(f"{HEAD_STYLES[arm].label} {n}" for (arm, _), n in norms.items()) + ".",
        {"largest_late_change": growth, "largest_gradient_norm": gradient, **_named("weight_norm", norms, sizes=False)},
    )


def _judge_growth(results: Results) -> Finding:
    largest = results.where(samples=max(_sizes(results)))
    late, slopes = (_medians(largest, metric, CROSS_ENTROPY) for metric in ("late", "slope"))
    least, straight = min(results.metric("late")), min(results.metric("straightness"))
    gradient = max(results.metric("gradient_norm"))
    words = [
        f"{slopes[key]} per tenfold steps, in the last decade by {late[key]} of itself ({HEAD_STYLES[key[0]].label})"
        for key in slopes
    ]
    return Finding(
        least > STILL_GROWING,
        f"At m = {max(_sizes(results))} |W| rises by {'; '.join(words)}. The least growth of {len(results)} runs is "
        f"{least:.2f}. Against log step the worst straight line has R^2 {straight:.4f}. The gradient only fades: no "
        f"finite W makes it zero, and its norm still is up to {gradient:.1e}.",
        {
            **_named("slope_per_decade", slopes, sizes=False),
            **_named("late_growth", late, sizes=False),
            "least_late_growth": least,
            "least_straightness": straight,
            "largest_gradient_norm": gradient,
        },
    )


def _bound_ratios(results: Results, harmonic: str = "harmonic") -> dict[tuple[str, int], Interval]:
    """Return the harmonic bound over cross-entropy's, paired by seed, for each opponent and size."""
    ratios = {}
    for at in combinations(arm=CROSS_ENTROPY, samples=_sizes(results)):
        pairs = results.where(samples=at.samples).pairs("bound", "arm", harmonic, at.arm)
        ratios[at.arm, at.samples] = bootstrap_interval([ours / theirs for ours, theirs in pairs.values()])
    return ratios


def _judge_bound(results: Results) -> Finding:
    ratios = _bound_ratios(results)
    two = [ratio.estimate for ratio in _bound_ratios(results, "harmonic_2").values()]
    harmonic = results.where(arm=HARMONIC).metric("margin")
    lost = sum(margin <= 0 for margin in harmonic)
    words = [f"against {HEAD_STYLES[arm].label}, m = {m}: {ratio}" for (arm, m), ratio in ratios.items()]
    return Finding(
        both(*(below(ratio, 1) for ratio in ratios.values())),
        f"Harmonic bound over cross-entropy's on the same data, median and 95 % interval: {'; '.join(words)}. With "
        f"exponent 2 the medians are {min(two):.3g} to {max(two):.3g}. {lost} of {len(harmonic)} harmonic runs leave a "
        "training point on the wrong side, where the bound says nothing. |W| / gamma does not change when W is scaled, "
        "so its growing norm costs cross-entropy nothing: under gradient descent its direction tends to the widest "
        "margin, and |W| / gamma to the smallest value that a linear head without a bias can have.",
        {**_named("ratio", ratios), "harmonic_runs_without_margin": lost, "harmonic_runs": len(harmonic)},
    )


def _judge_vacuous(results: Results) -> Finding:
    bounds = _medians(results, "bound")
    return Finding(
        both(*(below(found, 1) for (arm, _), found in bounds.items() if arm == "harmonic")),
        f"Median bounds: {_by_size(bounds, '.2f')}. The largest measured gap of {len(results)} runs is "
        f"{max(results.metric('error_gap')):.3f}.",
        _named("bound", bounds),
    )


def _agreement(results: Results, gap: str) -> Interval:
    """Return, over seeds, the share of comparisons in which the smaller bound has the smaller gap, ties left out."""
    agree: dict[int, list[bool]] = {}
    for at in combinations(samples=_sizes(results), arm=CROSS_ENTROPY):
        own = results.where(samples=at.samples)
        bounds, found = (own.pairs(metric, "arm", "harmonic", at.arm) for metric in ("bound", gap))
        for seed, (ours, theirs) in found.items():
            if ours != theirs:
                agree.setdefault(seed, []).append((bounds[seed][0] < bounds[seed][1]) == (ours < theirs))
    shares = [sum(agree[seed]) / len(agree[seed]) for seed in sorted(agree)]
    return bootstrap_interval(shares) if shares else Interval(0.5, 0.0, 1.0)


def _judge_order(results: Results) -> Finding:
    errors, losses = (_agreement(results, gap) for gap in ("error_gap", "loss_gap"))
    found = {gap: _medians(results, gap) for gap in ("error_gap", "loss_gap")}
    return Finding(
        errors.above(0.5),
        "Harmonic against cross-entropy, seed by seed, the smaller bound has the smaller gap in error in a share of "
        f"{errors} of the comparisons, and the smaller gap in loss in {losses} (0.5 is chance). Median gaps in error: "
        f"{_by_size(found['error_gap'], '.4f')}.",
        {
            "agreement_error": _plain(errors),
            "agreement_loss": _plain(losses),
            **_named("error_gap", found["error_gap"]),
            **_named("loss_gap", found["loss_gap"]),
        },
    )


def _judge_convex(results: Results) -> Finding:
    metrics = ("negative_mass", "own", "mean", "outside_hull", "hull_distance")
    found = {metric: _medians(results, metric, HARMONIC) for metric in metrics}
    samples, least = max(_sizes(results)), min(results.metric("own"))
    mass, own, mean, outside, distance = (found[metric]["harmonic", samples] for metric in metrics)
    convex = max(results.metric("own")) < CLOSE_TO_MATCH
    return Finding(
        convex,
        f"{'Convex' if convex else 'Affine, not convex'}. At m = {samples} the other classes enter with negative "
        f"weights of {mass} times the own class's mass. Without them the formula misses the center by {own} of the "
        f"class's spread (by {least:.2g} or more in all {len(results)} runs), and the plain class mean does by {mean}. "
        f"No convex weights would do for a share of {outside} of the centers: these lie outside the hull of their "
        f"class. All centers are on average {distance} of the spread away from it.",
        {
            "least_own_residual": least,
            **{key: value for metric in metrics for key, value in _named(metric, found[metric]).items()},
        },
    )


def _judge_signed(results: Results) -> Finding:
    residual = max(results.metric("signed"))
    return Finding(
        residual < MATCHES,
        f"The largest residual of {len(results)} runs is {residual:.1e} of the classes' spread.",
        {"largest_residual": residual, "runs": len(results)},
    )


def _is_measured(cell: TheoryCell) -> bool:
    return cell.features != PLANE


def _claim(id: str, statement: str, paper: str, arms: tuple[str, ...], judge: Judge, control: bool = True) -> Claim:
    needs, enough = where(_is_measured, arm=arms), at_least(steps=5000)  # below, the last decade shows no growth
    return Claim(id, statement, paper, control, needs=needs, judge=judge, enough=enough)


CLAIMS = (
    _claim(
        "harmonic_norm_finite",
        "On separable data the harmonic head's |W| converges to a finite value, at a point where the gradient is zero.",
        "Theorem: the harmonic loss has a finite minimizer. The proof scales the data and W together; here the data "
        "stay as they are and W alone is free.",
        HARMONIC,
        _judge_finite,
        control=False,
    ),
    _claim(
        "cross_entropy_norm_grows",
        "On the same data cross-entropy's |W| grows without bound, with or without a bias.",
        "Cross-entropy only approaches its infimum as |W| goes to infinity.",
        CROSS_ENTROPY,
        _judge_growth,
        control=False,
    ),
    _claim(
        "harmonic_has_smaller_bound",
        "On the same data the margin bound R |W| / (gamma sqrt(m)) is smaller for the harmonic head than for "
        "cross-entropy.",
        "Theorem: the generalization gap is of the order R |W| / (gamma sqrt(m)) at most, with a finite |W|. No "
        "numbers are reported, for either head.",
        ARMS,
        _judge_bound,
    ),
    _claim(
        "bound_says_something",
        "The harmonic head's bound is below 1, the largest error there is, at every size of the training set.",
        "Not reported.",
        ARMS,
        _judge_vacuous,
    ),
    _claim(
        "bound_orders_gaps",
        "Of two heads on the same data, the one with the smaller bound has the smaller measured gap between test and "
        "training error.",
        "Not reported.",
        ARMS,
        _judge_order,
    ),
    _claim(
        "convex_combination",
        "At convergence each harmonic weight is a convex combination of the members of its class.",
        "The point of convergence can be read as a class center; the theorem writes it as a weighted sum of the data.",
        HARMONIC,
        _judge_convex,
    ),
    _claim(
        "signed_stationarity",
        "At convergence w_k = sum_i a_i x_i / sum_i a_i with a_i = ([y_i = k] - p_ik) / s_ik over all points, those of "
        "other classes with a negative sign.",
        "Not reported.",
        HARMONIC,
        _judge_signed,
    ),
)


def tables(results: Results) -> list[Table]:
    """Tabulate the last step."""
    medians = {
        "weight norm": "weight_norm",
        "growth in the last decade": "late",
        "gradient norm": "gradient_norm",
        "margin": "margin",
        "bound": "bound",
        "training error": "train_error",
        "test error": "test_error",
        "training loss": "loss",
        "test loss": "test_loss",
    }
    rows = places(results.where(_is_measured), samples=results.spec.samples, arm=ARMS)
    return [tabulate_last_step(results, rows, {"m": lambda at: at.samples}, medians)]


EXPERIMENT = Experiment(
    name="theory",
    title="Three theorems on separable data",
    figure="Theorems; the paper has no figure of them",
    claims=CLAIMS,
    profiles={
        "smoke": TheorySpec(seeds=(0, 1), samples=(16, 32), steps=300, test_samples=2000),
        "quick": TheorySpec(seeds=tuple(range(5)), samples=(16, 64), steps=6000),
        "full": TheorySpec(seeds=tuple(range(20))),
    },
    work=Work(cells, run_cells, group=lambda cell: (cell.arm, cell.features, cell.samples)),
    measure=gaps,
    tables=tables,
    figures=figures,
)
