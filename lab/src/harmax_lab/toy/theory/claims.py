"""What the paper's three theorems say, and how the `theory` experiment judges each on its finished runs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harmax.analysis import Interval, bootstrap_interval
from harmax.figures import HEAD_STYLES
from harmax_lab.kit.claims import Claim, Finding, Verdict
from harmax_lab.kit.experiment import Summary, conclude
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.toy.theory.training import ARMS, CROSS_ENTROPY, HARMONIC, PLANE, TheoryCell, TheorySpec, cells

Results = Mapping[TheoryCell, CellResult]

LEAST_STEPS = 5000  # below this the last decade is no evidence about growth
STILL_GROWING, STOPPED, FLAT = 0.02, 1e-6, 1e-8
MATCHES, CLOSE_TO_MATCH = 1e-6, 1e-2  # residuals, in units of the classes' spread

CLAIMS = (
    Claim(
        "harmonic_norm_finite",
        "On separable data the harmonic head's |W| converges to a finite value, at a point where the gradient is zero.",
        "Theorem: the harmonic loss has a finite minimizer. The proof scales the data and W together; here the data "
        "stay as they are and W alone is free.",
    ),
    Claim(
        "cross_entropy_norm_grows",
        "On the same data cross-entropy's |W| grows without bound, with or without a bias.",
        "Cross-entropy only approaches its infimum as |W| goes to infinity.",
    ),
    Claim(
        "harmonic_has_smaller_bound",
        "On the same data the margin bound R |W| / (gamma sqrt(m)) is smaller for the harmonic head than for "
        "cross-entropy.",
        "Theorem: the generalization gap is of the order R |W| / (gamma sqrt(m)) at most, with a finite |W|. No "
        "numbers are reported, for either head.",
        control=True,
    ),
    Claim(
        "bound_says_something",
        "The harmonic head's bound is below 1, the largest error there is, at every size of the training set.",
        "Not reported.",
        control=True,
    ),
    Claim(
        "bound_orders_gaps",
        "Of two heads on the same data, the one with the smaller bound has the smaller measured gap between test and "
        "training error.",
        "Not reported.",
        control=True,
    ),
    Claim(
        "convex_combination",
        "At convergence each harmonic weight is a convex combination of the members of its class.",
        "The point of convergence can be read as a class center; the theorem writes it as a weighted sum of the data.",
        control=True,
    ),
    Claim(
        "signed_stationarity",
        "At convergence w_k = sum_i a_i x_i / sum_i a_i with a_i = ([y_i = k] - p_ik) / s_ik over all points, those of "
        "other classes with a negative sign.",
        "Not reported.",
        control=True,
    ),
)


def judge_finite(results: Results) -> Finding:
    """Judge by growth over the last decade of steps and by the gradient at the last."""
    growth, gradient = max(map(abs, _values(results, "late"))), _most(results, "gradient_norm")
    norms = {arm: over_seeds(results, arm, max(_sizes(results)), "weight_norm") for arm in HARMONIC}
    stopped = growth < STOPPED and gradient < FLAT
    return Finding(
        stopped,
        f"Over the last decade of steps no |W| of {len(results)} runs changed by more than {growth:.1e} of itself, and "
        f"no gradient norm ends above {gradient:.1e}{': an interior minimum, with the data held fixed' * stopped}. "
        f"|W| at m = {max(_sizes(results))}: "
        + "; ".join(f"{HEAD_STYLES[arm].label} {norm}" for arm, norm in norms.items())
        + ".",
        {"largest_late_change": growth, "largest_gradient_norm": gradient, **_named("weight_norm", norms)},
    )


def judge_growth(results: Results) -> Finding:
    """Judge by growth over the last decade of steps, and by the slope against the logarithm of the step."""
    samples = max(_sizes(results))
    late = {arm: over_seeds(results, arm, samples, "late") for arm in CROSS_ENTROPY}
    slopes = {arm: over_seeds(results, arm, samples, "slope") for arm in CROSS_ENTROPY}
    least, straight = min(_values(results, "late")), min(_values(results, "straightness"))
    gradient = _most(results, "gradient_norm")
    return Finding(
        least > STILL_GROWING,
        f"At m = {samples} |W| rises by "
        + "; ".join(
            f"{slopes[arm]} per tenfold steps, in the last decade by {late[arm]} of itself ({HEAD_STYLES[arm].label})"
            for arm in CROSS_ENTROPY
        )
        + f". The least growth of {len(results)} runs is {least:.2f}, and against log step the worst straight line has "
        f"R^2 {straight:.4f}. The gradient only fades: no finite W makes it zero, and its norm still is up to "
        f"{gradient:.1e}.",
        {
            **_named("slope_per_decade", slopes),
            **_named("late_growth", late),
            "least_late_growth": least,
            "least_straightness": straight,
            "largest_gradient_norm": gradient,
        },
    )


def bound_ratios(results: Results, harmonic: str = "harmonic") -> dict[str, Interval]:
    """Return the harmonic bound over cross-entropy's, paired by seed, for each opponent and size."""
    ratios = {}
    for arm in CROSS_ENTROPY:
        for samples in _sizes(results):
            ours, theirs = (_by_seed(results, one, samples) for one in (harmonic, arm))
            pairs = [ours[seed].metrics["bound"] / theirs[seed].metrics["bound"] for seed in ours]
            ratios[f"{arm}_m{samples}"] = bootstrap_interval(pairs)
    return ratios


def judge_bound(results: Results) -> Finding:
    """Judge by the paired ratio of bounds: its interval must lie below 1 at every size, against both opponents."""
    ratios = bound_ratios(results)
    two = [ratio.estimate for ratio in bound_ratios(results, "harmonic_2").values()]
    harmonic = [r.metrics["margin"] for cell, r in results.items() if cell.arm in HARMONIC]
    lost = sum(margin <= 0 for margin in harmonic)
    return Finding(
        _all_below(ratios.values(), 1),
        "Harmonic bound over cross-entropy's on the same data, median and 95 % interval: "
        + "; ".join(f"{_opponent(key)} {ratio}" for key, ratio in ratios.items())
        + f". With exponent 2 the medians are {min(two):.3g} to {max(two):.3g}. {lost} of {len(harmonic)} harmonic "
        "runs leave a training point on the wrong side, where the bound says nothing. |W| / gamma does not change when "
        "W is scaled, so its growing norm costs cross-entropy nothing: under gradient descent its direction tends to "
        "the widest margin, and |W| / gamma to the smallest value that a linear head without a bias can have.",
        {**_named("ratio", ratios), "harmonic_runs_without_margin": lost, "harmonic_runs": len(harmonic)},
    )


def judge_vacuous(results: Results) -> Finding:
    """Judge by the harmonic head's bound at every size; list all heads."""
    bounds = {arm: {m: over_seeds(results, arm, m, "bound") for m in _sizes(results)} for arm in ARMS}
    return Finding(
        _all_below(bounds["harmonic"].values(), 1),
        "Median bounds: "
        + "; ".join(
            f"{HEAD_STYLES[arm].label} " + ", ".join(f"{b.estimate:.2f} (m = {m})" for m, b in by_size.items())
            for arm, by_size in bounds.items()
        )
        + f". The largest measured gap of {len(results)} runs is {max(map(error_gap, results.values())):.3f}.",
        {f"bound_{arm}_m{m}": _plain(b) for arm, by_size in bounds.items() for m, b in by_size.items()},
    )


def error_gap(result: CellResult) -> float:
    """Return test error minus training error."""
    return float(result.metrics["test_error"] - result.metrics["train_error"])


def loss_gap(result: CellResult) -> float:
    """Return test loss minus training loss."""
    return float(result.metrics["test_loss"] - result.metrics["loss"])


def agreement(results: Results, gap: Callable[[CellResult], float]) -> Interval:
    """Return, over seeds, the share of comparisons in which the smaller bound has the smaller gap, ties left out."""
    shares = []
    for seed in sorted({cell.seed for cell in results}):
        agree = []
        for samples in _sizes(results):
            ours = _by_seed(results, "harmonic", samples)[seed]
            for arm in CROSS_ENTROPY:
                theirs = _by_seed(results, arm, samples)[seed]
                difference = gap(ours) - gap(theirs)
                if difference:
                    agree.append((ours.metrics["bound"] < theirs.metrics["bound"]) == (difference < 0))
        if agree:
            shares.append(sum(agree) / len(agree))
    return bootstrap_interval(shares) if shares else Interval(0.5, 0.0, 1.0)


def judge_order(results: Results) -> Finding:
    """Judge by the share of comparisons in which bound and gap in error agree: its interval against one half."""
    errors, losses = agreement(results, error_gap), agreement(results, loss_gap)
    gaps = {
        f"{kind}_gap_{arm}_m{m}": bootstrap_interval([gap(result) for result in _by_seed(results, arm, m).values()])
        for kind, gap in (("error", error_gap), ("loss", loss_gap))
        for arm in ARMS
        for m in _sizes(results)
    }
    return Finding(
        errors.above(0.5),
        "Harmonic against cross-entropy, seed by seed, the smaller bound has the smaller gap in error in a share of "
        f"{errors} of the comparisons, and the smaller gap in loss in {losses} (0.5 is chance). Median gaps in error: "
        + "; ".join(
            f"{HEAD_STYLES[arm].label} "
            + ", ".join(f"{gaps[f'error_gap_{arm}_m{m}'].estimate:.4f} (m = {m})" for m in _sizes(results))
            for arm in ARMS
        )
        + ".",
        {
            "agreement_error": _plain(errors),
            "agreement_loss": _plain(losses),
            **{key: _plain(gap) for key, gap in gaps.items()},
        },
    )


def judge_convex(results: Results) -> Finding:
    """Judge by how far members alone, with their own positive weights, are from giving the center back."""
    metrics = ("negative_mass", "own", "mean", "outside_hull", "hull_distance")
    found = {
        f"{metric}_{arm}_m{m}": over_seeds(results, arm, m, metric)
        for metric in metrics
        for arm in HARMONIC
        for m in _sizes(results)
    }
    samples, least = max(_sizes(results)), min(_values(results, "own"))
    mass, own, mean, outside, distance = (found[f"{metric}_harmonic_m{samples}"] for metric in metrics)
    convex = _most(results, "own") < CLOSE_TO_MATCH
    return Finding(
        convex,
        f"{'Convex' if convex else 'Affine, not convex'}. At m = {samples} the other classes enter with negative "
        f"weights of {mass} times the own "
        f"class's mass. Without them the formula misses the center by {own} of the class's spread (by {least:.2g} or "
        f"more in all {len(results)} runs), and the plain class mean does by {mean}. No convex weights whatever would "
        f"do for a share of {outside} of the centers: these lie outside the hull of their class, all centers on "
        f"average {distance} of the spread away from it.",
        {"least_own_residual": least, **{key: _plain(value) for key, value in found.items()}},
    )


def judge_signed(results: Results) -> Finding:
    """Judge by the largest residual of all runs."""
    residual = _most(results, "signed")
    return Finding(
        residual < MATCHES,
        f"The largest residual of {len(results)} runs is {residual:.1e} of the classes' spread.",
        {"largest_residual": residual, "runs": len(results)},
    )


# Each claim rests on some of the heads.
JUDGES: dict[str, tuple[tuple[str, ...], Callable[[Results], Finding]]] = {
    "harmonic_norm_finite": (HARMONIC, judge_finite),
    "cross_entropy_norm_grows": (CROSS_ENTROPY, judge_growth),
    "harmonic_has_smaller_bound": (ARMS, judge_bound),
    "bound_says_something": (ARMS, judge_vacuous),
    "bound_orders_gaps": (ARMS, judge_order),
    "convex_combination": (HARMONIC, judge_convex),
    "signed_stationarity": (HARMONIC, judge_signed),
}


def summarize(spec: TheorySpec, results: Results) -> Summary:
    """Judge every claim on every size and seed, and tabulate the last step."""
    columns = {
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
    measured = {cell: result for cell, result in results.items() if cell.features != PLANE}
    rows = []
    for samples in spec.samples:
        for arm in ARMS:
            found = list(_by_seed(measured, arm, samples).values())
            medians = {
                title: bootstrap_interval([r.metrics[metric] for r in found]).estimate if found else None
                for title, metric in columns.items()
            }
            rows.append({"m": samples, "head": HEAD_STYLES[arm].label, "seeds": len(found), **medians})
    table = Table(f"At step {spec.steps}, median over seeds", tuple(rows))
    return Summary(tuple(_judge(claim.id, spec, measured) for claim in CLAIMS), (table,))


def _judge(claim: str, spec: TheorySpec, results: Results) -> Verdict:
    arms, judge = JUDGES[claim]
    wanted = [cell for cell in cells(spec) if cell.arm in arms and cell.features != PLANE]
    short = spec.steps < LEAST_STEPS
    too_short = f"Only {spec.steps} of at least {LEAST_STEPS} steps were run." if short else ""
    return conclude(claim, judge, wanted, results, too_short=too_short)


def _values(results: Results, metric: str) -> list[float]:
    return [result.metrics[metric] for result in results.values()]


def over_seeds(results: Results, arm: str, samples: int, metric: str) -> Interval:
    """Return a metric's median and interval over the seeds of one head and size."""
    return bootstrap_interval([result.metrics[metric] for result in _by_seed(results, arm, samples).values()])


def _all_below(intervals: Iterable[Interval], limit: float) -> bool | None:
    """Whether every interval lies below a limit: no where one lies above, unknown where one spans it."""
    found = list(intervals)
    return False if any(one.low > limit for one in found) else True if all(one.high < limit for one in found) else None


def _most(results: Results, metric: str) -> float:
    return max(_values(results, metric))


def _sizes(results: Results) -> list[int]:
    return sorted({cell.samples for cell in results})


def _by_seed(results: Results, arm: str, samples: int) -> dict[int, CellResult]:
    return {cell.seed: r for cell, r in results.items() if (cell.arm, cell.samples) == (arm, samples)}


def _named(what: str, intervals: Mapping[str, Interval]) -> dict[str, Any]:
    return {f"{what}_{key}": _plain(found) for key, found in intervals.items()}


def _plain(found: Interval) -> dict[str, float]:
    # Summaries on disk say which statistic it is.
    return {"median": found.estimate, "low": found.low, "high": found.high}


def _opponent(key: str) -> str:
    arm, samples = key.rsplit("_m", 1)
    return f"against {HEAD_STYLES[arm].label}, m = {samples}:"
