"""Theorem 1: what scaling the weights does to a loss, whether a loss has a finite minimum, and scale invariance."""

# B training points, K classes, D features, T recorded steps

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.results import Results, where
from harmax_lab.paper.readings import MACHINE_PRECISION
from harmax_lab.toy.heads import logits_of, loss_of
from harmax_lab.toy.theory.separable import HARMONIC
from harmax_lab.toy.theory.settings import TRAINED, averages, ranges

LARGER = (1.01, 1.1, 2.0, 10.0)
"""Factors by which weights are scaled up."""
FAR = 100.0
UNITS = (1e-3, 0.1, 3.0, 1e3)
"""Factors of everything; no powers of two, by which floating point scales without rounding."""
DRAWN = np.logspace(-2, 2, 41)
FALLS = 1e-6  # less is rounding
STILL_GROWING, STOPPED, FLAT = 0.02, 1e-6, 1e-8
UNCHANGED, CHANGED = 1e-9, 0.01


class Head(NamedTuple):
    """A head, and the points (B, D) and classes (B,) on which its loss is taken."""

    arm: str
    exponent: float
    points: Tensor
    target: Tensor

    def loss(self, weight: Tensor, bias: Tensor, factor: float = 1.0) -> float:
        """Return the loss when weights and bias are multiplied by a factor."""
        return float(loss_of(self.arm, self.exponent, self.points, self.target, factor * weight, factor * bias))


class Growing(NamedTuple):
    """What larger weights do to the loss at those recorded steps at which every training point is right."""

    right_states: int
    """How many of the recorded steps these are."""
    improved_states: int
    """How many of them have a lower loss when the weights are multiplied by one of `LARGER`."""
    first_fall: float | None
    """By which share of itself the loss falls at the first of them, at most; negative if it rises."""
    last_fall: float | None
    """The same at the last of them."""


def growing(head: Head, weights: Tensor, biases: Tensor, margin: Tensor) -> Growing:
    """Scale up the weights (T, K, D) and biases (T, K) of those recorded steps whose least margin (T,) is positive."""
    falls = []
    for place in torch.nonzero(margin > 0).flatten().tolist():
        now, bias = weights[place], biases[place]
        falls.append(1 - min(head.loss(now, bias, factor) for factor in LARGER) / head.loss(now, bias))
    return Growing(len(falls), sum(fall > FALLS for fall in falls), *((falls[0], falls[-1]) if falls else (None, None)))


class UnitChange(NamedTuple):
    """What a common factor of all distances, or of all logits, does to a head."""

    probability_change: float
    """Largest change of a probability over `UNITS`."""
    loss_change: float
    """Largest change of the loss, as a share of itself."""
    least_loss_change: float
    """Smallest change of the loss."""


def unit_change(head: Head, weight: Tensor, bias: Tensor) -> UnitChange:
    """Multiply all distances (x and w together), or all logits of cross-entropy, by `UNITS`."""

    def found(unit: float) -> tuple[Tensor, float]:
        own = unit * weight if head.arm in HARMONIC else weight
        points = unit * head.points
        logits = logits_of(head.arm, head.exponent, points, own, unit * bias)
        return logits.softmax(1), head._replace(points=points).loss(own, unit * bias)

    (probability, loss), others = found(1.0), [found(unit) for unit in UNITS]
    changes = [abs(other / loss - 1) for _, other in others]
    moved = max(float((other - probability).abs().max()) for other, _ in others)
    return UnitChange(moved, max(changes), min(changes))


def scaled_losses(head: Head, weight: Tensor, bias: Tensor) -> np.ndarray:
    """Return the loss at each factor of `DRAWN`, for a picture."""
    return np.array([head.loss(weight, bias, float(factor)) for factor in DRAWN])


def _judge_units(results: Results) -> Finding:
    ours, theirs = results.where(arm=HARMONIC), results.where(arm="cross_entropy")
    probability, loss = (max(ours.metric(name)) for name in ("probability_change", "loss_change"))
    least = min(theirs.metric("least_loss_change"))
    return Finding(
        probability < UNCHANGED and loss < UNCHANGED and least > CHANGED,
        f"Harmonic: in {len(ours)} runs no probability changes by more than {probability:.1e}, and no loss by more "
        f"than {loss:.1e} of itself. Cross-entropy: in {len(theirs)} runs the loss changes by {100 * least:.0f} % or "
        "more.",
        {"probability_change": probability, "loss_change": loss, "least_change_of_cross_entropy": least},
    )


def _judge_no_minimum(results: Results) -> Finding:
    late, gradient = min(results.metric("late")), min(results.metric("gradient_norm"))
    far = max(results.metric("far_loss"))
    return Finding(
        late > STILL_GROWING and gradient > 0 and far < MACHINE_PRECISION,
        f"In the last tenfold of the steps |W| grows by {100 * late:.0f} % or more in each of {len(results)} runs. Per "
        f"tenfold it grows by {ranges(averages(results, 'slope'))}. The gradient only fades: "
        f"its smallest norm is {gradient:.1e}. The weights times {FAR:g} have a loss below {max(far, 1e-300):.0e}.",
        {"least_late_growth": late, "least_gradient_norm": gradient, "largest_far_loss": far},
    )


def _judge_larger(results: Results) -> Finding:
    right, improved, first = _counts(results)
    return Finding(
        False if improved < right else _known(results),
        f"It falls at {improved} of {right} recorded steps of {len(results)} runs, at the first of them by "
        f"{100 * min(first):.0f} % or more of itself.",
        {"right_states": right, "improved_states": improved, "least_first_fall": min(first)},
    )


def _judge_minimum(results: Results) -> Finding:
    late, gradient = max(map(abs, results.metric("late"))), max(results.metric("gradient_norm"))
    room = max(result.metrics["loss"] - math.log(result.metrics["classes"]) for result in results.values())
    return Finding(
        late < STOPPED and gradient < FLAT and room < 0,
        f"In the last tenfold of the steps no |W| of {len(results)} runs changes by more than {late:.0e} of itself. No "
        f"gradient norm ends above {gradient:.0e}. Every loss ends at least {-room:.2f} below ln K. |W|: "
        f"{ranges(averages(results, 'weight_norm'))}.",
        {"largest_late_change": late, "largest_gradient_norm": gradient, "largest_loss_minus_ln_K": room},
    )


def _judge_norm_in_vain(results: Results) -> Finding:
    right, improved, first = _counts(results)
    runs = sum(count > 0 for count in results.metric("improved_states"))
    at_end = sum(fall > FALLS for fall in results.metric("last_fall").present)
    return Finding(
        False if improved else _known(results),
        f"The loss falls at {improved} of {right} such steps, in {runs} of {len(results)} runs. At the first of them "
        f"it falls by {100 * float(np.median(first)):.0f} % of itself (median). From the weights of the last step it "
        f"falls in {at_end} runs: the sentence holds at the minimum, not as soon as all points are right.",
        {"right_states": right, "improved_states": improved, "runs": runs, "runs_at_last_step": at_end},
    )


def _counts(results: Results) -> tuple[int, int, Sequence[float]]:
    right, improved = (sum(results.metric(name)) for name in ("right_states", "improved_states"))
    return right, improved, results.metric("first_fall").present.values or [math.nan]


def _known(results: Results) -> bool | None:
    """Return True if something was tried in each run; None if a run never had all points right."""
    return True if all(count > 0 for count in results.metric("right_states")) else None


CLAIMS = (
    Claim(
        "scale_invariant",
        "The harmonic loss and its probabilities do not change when all distances are multiplied by a factor; the "
        "loss of cross-entropy changes when its logits are. Trained heads, factors "
        f"{', '.join(f'{u:g}' for u in UNITS)}: harmonic within {UNCHANGED:g} in every run, cross-entropy by more "
        f"than {100 * CHANGED:.0f} %. A mathematical fact, so one seed is enough.",
        sentences=("2/34",),
        needs=where(data=TRAINED, arm=(*HARMONIC, "cross_entropy")),
        judge=_judge_units,
        seeds=1,
    ),
    Claim(
        "cross_entropy_has_no_minimum",
        "On separable data cross-entropy's loss has no finite minimum; it tends to 0 as |W| goes to infinity. In "
        f"every run |W| grows by more than {100 * STILL_GROWING:.0f} % in the last tenfold of the steps, the gradient "
        f"is not 0, and the last weights times {FAR:g} have a loss below {MACHINE_PRECISION:.1e}.",
        sentences=("G/5",),
        needs=where(data=TRAINED, arm="cross_entropy"),
        judge=_judge_no_minimum,
    ),
    Claim(
        "larger_weights_lower_cross_entropy",
        "Weights that classify all training points right have a lower cross-entropy when they are scaled up. Tried at "
        f"every recorded step with all points right, with the factors {', '.join(f'{t:g}' for t in LARGER)}; holds if "
        "the loss falls at each of them. A mathematical fact, so one seed is enough.",
        sentences=("G/6",),
        needs=where(data=TRAINED, arm="cross_entropy"),
        judge=_judge_larger,
        seeds=1,
    ),
    Claim(
        "harmonic_minimum_is_finite",
        "The harmonic loss attains its minimum at a finite W. In every run |W| stops at a point where the gradient "
        "is 0, with the data held fixed, and the loss there is below ln K. No weights that run away can be better: "
        "where all K do, the loss of balanced classes tends to ln K or more, and where some do, to infinity. Whether "
        "the minimum is the lowest one descent cannot show.",
        "The proof scales the data and W together, which shows nothing about W alone.",
        sentences=("G/8",),
        needs=where(data=TRAINED, arm=HARMONIC),
        judge=_judge_minimum,
    ),
    Claim(
        "larger_weights_do_not_lower_harmonic_loss",
        "Once the weights classify all training points right, increasing the norm of W does not reduce the harmonic "
        "loss. Tried as for cross-entropy, with the data held fixed: a single fall in any run contradicts the "
        "sentence, so one seed is enough.",
        sentences=("G/9",),
        needs=where(data=TRAINED, arm=HARMONIC),
        judge=_judge_norm_in_vain,
        seeds=1,
    ),
)
