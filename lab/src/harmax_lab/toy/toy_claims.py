"""What the paper says about the two toy cases, and how each sentence is judged."""

import math
from typing import Any

from harmax.analysis import Interval
from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.judges import below, both
from harmax_lab.kit.results import Results, interval, where
from harmax_lab.kit.rules import LEAST_RUNS
from harmax_lab.paper.readings import ALMOST_ALL_RUNS, MACHINE_PRECISION, ON_POINT, PLATEAU
from harmax_lab.toy.toy_training import LEVELS, PLAIN

PRECISE, CLOSE = 1e-10, 1e-5
# Case 2 without a bias: the origin's logits are all 0 and its loss ln 5 for ever, however small the other four get.
FLOOR = math.log(5) / 5
ROUNDING = 1e-6  # of FLOOR in float32


def _ratio(results: Results) -> Interval:
    """Return cross-entropy's wait divided by the harmonic layer's, averaged over levels and paired by seed."""
    found = results.paired("wait", "arm", "cross_entropy", "harmonic")
    assert found is not None
    return Interval(*(10**value for value in found.difference))


def _waits(results: Results) -> str:
    words = []
    for level in LEVELS:
        ours, theirs = (results.where(arm=arm).metric(f"below_{level:g}").median() for arm in PLAIN)
        words.append(f"{level:g} {in_steps(ours)} against {in_steps(theirs)}")
    return "; ".join(words)


def in_steps(found: Interval | None) -> str:
    """Write a median number of steps, which is infinite where most runs never get there."""
    return "never" if found is None or not math.isfinite(found.estimate) else f"{found.estimate:g}"


def _judge_loss(results: Results) -> Finding:
    ratio = _ratio(results)
    return Finding(
        ratio.above(1),
        f"Cross-entropy takes {ratio} times as many steps, averaged over the levels. Median steps until the loss stays "
        f"below a level, harmonic against cross-entropy: {_waits(results)}.",
        {"times_as_many_steps": ratio._asdict()},
    )


def _judge_both(results: Results) -> Finding:
    ratio, norm = _ratio(results), results.paired("norm_settled", "arm", "cross_entropy", "harmonic")
    ours, theirs = (results.where(arm=arm).metric("norm_settled").median() for arm in PLAIN)
    assert norm is not None
    return Finding(
        both(ratio.above(1), norm.difference.above(0)),
        f"Loss: cross-entropy takes {ratio} times as many steps, averaged over the levels. Norm: the harmonic one "
        f"settles after {in_steps(ours)} steps (median), cross-entropy's after {in_steps(theirs)} of "
        f"{results.spec.steps}; mean difference {norm.difference}.",
        {"times_as_many_steps": ratio._asdict(), "later_norm": norm.difference._asdict()},
    )


def _judge_norms(results: Results) -> Finding:
    ours, theirs = (results.where(arm=arm) for arm in PLAIN)
    still, moved = _mean(ours, "late_norm_change"), _mean(theirs, "late_norm_change")
    now, before = _mean(theirs, "norm_growth"), _mean(theirs, "norm_growth_before")
    steady = interval(
        [new - old for new, old in zip(*map(theirs.metric, ("norm_growth", "norm_growth_before")), strict=True)]
    )
    plateaus = below(still, PLATEAU)
    return Finding(
        both(plateaus, moved.above(PLATEAU), steady.above(0)),
        f"Harmonic: in the second half of training the norm stays within {_share(still)} of its end, "
        f"{_mean(ours, 'weight_norm').estimate:.3f} on average. Cross-entropy: it grows to "
        f"{_mean(theirs, 'weight_norm')}, by {now} in the second half of training and by {before} in the quarter "
        "before.",
        {"late_change_harmonic": still._asdict(), "late_change": moved._asdict(), "acceleration": steady._asdict()},
    )


def _mean(results: Results, metric: str) -> Interval:
    found = results.metric(metric).mean()
    assert found is not None
    return found


def _share(found: Interval) -> str:
    return f"{100 * found.estimate:.2g} %"


def _judge_plateau(results: Results) -> Finding:
    change, loss, right = (_mean(results, metric) for metric in ("late_loss_change", "loss", "accuracy"))
    return Finding(
        both(below(change, PLATEAU), loss.above(FLOOR - ROUNDING), below(right, 1)),
        f"The loss changes by {_share(change)} in the second half of training and ends at {loss.estimate:.4f} "
        f"(ln(5)/5 = {FLOOR:.4f}), with {100 * right.estimate:.0f} % of the points right.",
        {"late_change": change._asdict(), "loss": loss._asdict(), "accuracy": right._asdict()},
    )


def _judge_precision(results: Results) -> Finding:
    smallest = results.metric("smallest_loss").values
    reached = sum(loss < MACHINE_PRECISION for loss in smallest)
    return Finding(
        reached >= ALMOST_ALL_RUNS * len(smallest),
        f"{reached} of {len(smallest)} runs reach it. The largest of their smallest losses is {max(smallest):.1e}.",
        {"runs": len(smallest), "reached": reached, "largest": max(smallest)},
    )


def _judge_points(results: Results) -> Finding:
    answers, words = [], []
    numbers: dict[str, Any] = {}
    for case, own in results.groups("case").items():
        ours = _mean(own.where(arm="harmonic"), "weight_distance")
        theirs, scaled = (
            _mean(own.where(arm="cross_entropy"), name) for name in ("weight_distance", "scaled_distance")
        )
        farther = own.paired("scaled_distance", "arm", "cross_entropy", "harmonic")
        assert farther is not None
        answers += [below(ours, ON_POINT), farther.difference.above(0)]
        words.append(
            f"Case {case}: harmonic {ours.estimate:.1e}; cross-entropy {theirs}, and {scaled} after the best factor."
        )
        numbers |= {f"harmonic_{case}": ours._asdict(), f"cross_entropy_scaled_{case}": scaled._asdict()}
    return Finding(both(*answers), f"Farthest weight from its point, mean over seeds. {' '.join(words)}", numbers)


def _judge_red(results: Results) -> Finding:
    ours, theirs = (results.where(arm=arm).metric("red_point_right").values for arm in PLAIN)
    holds = sum(ours) >= ALMOST_ALL_RUNS * len(ours) and sum(theirs) <= (1 - ALMOST_ALL_RUNS) * len(theirs)
    return Finding(
        holds,
        f"It is right in {sum(ours)} of {len(ours)} harmonic runs and in {sum(theirs)} of {len(theirs)} runs of "
        "cross-entropy, where all its logits are 0.",
        {"runs": len(ours), "harmonic": sum(ours), "cross_entropy": sum(theirs)},
    )


def _judge_last_step(results: Results) -> Finding:
    ends = results.take(lambda cell, result: (result.metrics["loss"], result.metrics["weight_distance"]))
    there = sum(loss < PRECISE and distance < CLOSE for loss, distance in ends)
    loss, distance = map(max, zip(*ends, strict=True))
    return Finding(
        there == len(results),
        f"{there} of {len(results)} runs are. The largest loss is {loss:.1e}, the farthest weight {distance:.1e} away.",
        {"runs": len(results), "there": there, "largest_loss": loss, "largest_distance": distance},
    )


def _judge_bias(results: Results) -> Finding:
    loss, right = max(results.metric("loss")), sum(one == 1 for one in results.metric("accuracy"))
    return Finding(
        right == len(results) and loss < FLOOR / 10,
        f"{right} of {len(results)} runs have all five points right; the largest last loss is {loss:.1e}.",
        {"runs": len(results), "runs_all_right": right, "largest_loss": loss},
    )


def _judge_spikes(results: Results) -> Finding:
    loss, distance = (max(results.metric(name)) for name in ("late_largest_loss", "weight_distance"))
    return Finding(
        loss < PRECISE and distance < CLOSE,
        f"With AMSGrad no loss exceeds {loss:.1e} in the second half of training. The farthest weight ends "
        f"{distance:.1e} from its point.",
        {"late_largest_loss": loss, "largest_distance": distance},
    )


LEVELS_RULE = (
    f"Steps until the loss stays below {', '.join(f'{level:g}' for level in LEVELS)} are compared seed by seed, as the "
    "geometric mean over these levels; the 95 % interval of the ratio is above 1. A level that is never kept counts as "
    "the whole training."
)
NORMS_RULE = (
    "Harmonic: in the second half of training the norm changes by less than 1 % on average. Cross-entropy: it changes "
    "by more, and grows by more than in the quarter before, so it is not slowing down. All with 95 % intervals."
)

CLAIMS = (
    Claim(
        "loss_falls_faster",
        f"In case 1 the loss of the harmonic layer decreases faster than that of cross-entropy. {LEVELS_RULE}",
        sentences=("2/23",),
        needs=where(case=1, arm=PLAIN),
        judge=_judge_loss,
    ),
    Claim(
        "loss_and_norm_converge_faster",
        "In case 1 both the loss and the norm of the weights converge faster with the harmonic loss. Loss: as for "
        "loss_falls_faster. Norm: it comes within 1 % of its end for good in fewer steps, paired by seed, with a 95 % "
        "interval. Both halves must hold.",
        sentences=("Fig. 1/5",),
        needs=where(case=1, arm=PLAIN),
        judge=_judge_both,
    ),
    *(
        Claim(
            f"norms_of_case_{case}",
            f"In case {case} the harmonic layer's norm comes to a plateau, and cross-entropy's keeps growing. "
            f"{NORMS_RULE}",
            f"Authors' run: 2.000 (harmonic) and {norm} (cross-entropy) after 10,000 steps.",
            sentences=(sentence,),
            needs=where(case=case, arm=PLAIN),
            judge=_judge_norms,
        )
        for case, sentence, norm in ((1, "2/25", 6.55), (2, "2/30", 20.5))
    ),
    Claim(
        "high_loss_plateau",
        "In case 2 cross-entropy's loss comes to a high plateau. It changes by less than 1 % in the second half of "
        "training, ends no lower than ln(5)/5, which is what guessing one point of five costs, and some point is "
        "classified wrong. All with 95 % intervals.",
        "Authors' run: 0.322, which is ln(5)/5.",
        sentences=("2/28",),
        needs=where(case=2, arm="cross_entropy"),
        judge=_judge_plateau,
    ),
    Claim(
        "reaches_machine_precision",
        "In case 2 the harmonic layer can drive the loss down to machine precision. At some step the loss is below "
        f"{MACHINE_PRECISION:.1e}, the precision of float32, in almost all runs. Where it ends is a control.",
        "Authors' run: 2.5e-6 at the last step.",
        sentences=("2/29",),
        needs=where(case=2, arm="harmonic"),
        judge=_judge_precision,
        seeds=LEAST_RUNS,
    ),
    Claim(
        "weights_are_the_points",
        "The harmonic layer's weights correspond to the points, which is more interpretable than cross-entropy's "
        f"weights. In both cases the farthest harmonic weight ends within {ON_POINT} of its point on average. "
        "Cross-entropy's is farther away, paired by seed with a 95 % interval, even after all its weights are "
        "multiplied by the best factor.",
        sentences=("2/31",),
        needs=where(case=(1, 2), arm=PLAIN),
        judge=_judge_points,
    ),
    Claim(
        "red_point_is_classified",
        "In case 2 the harmonic layer classifies the red point at the origin correctly, and cross-entropy does not. "
        f"Holds if it is right in at least {100 * ALMOST_ALL_RUNS:.0f} % of the harmonic runs and in at most "
        f"{100 * (1 - ALMOST_ALL_RUNS):.0f} % of cross-entropy's.",
        sentences=("2/32",),
        needs=where(case=2, arm=PLAIN),
        judge=_judge_red,
        seeds=LEAST_RUNS,
    ),
    Claim(
        "bias_separates",
        "With a bias, which an ordinary linear layer has, cross-entropy separates case 2 too.",
        needs=where(case=2, arm="cross_entropy_bias"),
        judge=_judge_bias,
    ),
    Claim(
        "precise_at_last_step",
        "With plain Adam every harmonic run is still precise at the last step. Its loss is below 1e-10, and its "
        "weights are within 1e-5 of the points.",
        needs=where(arm="harmonic"),
        judge=_judge_last_step,
    ),
    Claim(
        "spikes_are_adams",
        "The late spikes of the harmonic loss in case 2 come from Adam, not from the loss: AMSGrad has none.",
        needs=where(case=2, arm="harmonic_amsgrad"),
        judge=_judge_spikes,
    ),
)
