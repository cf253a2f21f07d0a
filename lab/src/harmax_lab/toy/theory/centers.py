"""Theorem 3: whether weights are centers of their classes, averages of their members, or point to them."""

# B training points, K classes, D features

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, one_hot

from harmax_lab.kit.claims import Claim, Finding
from harmax_lab.kit.results import Results, where
from harmax_lab.paper.readings import FEW_CLOSER, IN_HULL, NEGLIGIBLE
from harmax_lab.toy.theory.measures import class_spread
from harmax_lab.toy.theory.separable import DIGITS, HARMONIC, PLAIN
from harmax_lab.toy.theory.settings import (
    EVERYWHERE,
    TRAINED,
    Everywhere,
    averages,
    below_everywhere,
    plain,
    ranges,
    settings,
)

MATCHES = 1e-6  # in units of the classes' spread
HULL = ("outside_hull", "own")


class Centers(NamedTuple):
    """How weights (K, D) lie to the means of their classes, averaged over classes."""

    center_distance: float
    """Distance of a weight from the mean of its class, in units of the classes' spread."""
    scaled_distance: float
    """The same after all weights are multiplied by the best factor."""
    nearer_members: float
    """Share of the members of a class that are nearer to its mean than the weight is."""
    direction: float
    """Cosine between a weight and the mean of its class."""
    member_direction: float
    """The same for the members of the class."""
    closer_members: float
    """Share of the members whose cosine is larger than the weight's."""


def centers(points: Tensor, target: Tensor, weight: Tensor) -> Centers:
    """Compare weights (K, D) with the means of their classes: points (B, D), target (B,)."""
    means, spread = class_means(points, target), class_spread(points, target)
    best = (weight * means).sum() / weight.square().sum()
    far, member_far = (weight - means).norm(dim=1), (points - means[target]).norm(dim=1)
    cosine, member_cosine = cosine_similarity(weight, means), cosine_similarity(points, means[target])
    return Centers(
        float(far.mean() / spread),
        float((best * weight - means).norm(dim=1).mean() / spread),
        float((member_far < far[target]).double().mean()),
        float(cosine.mean()),
        float(member_cosine.mean()),
        float((member_cosine > cosine[target]).double().mean()),
    )


def class_means(points: Tensor, target: Tensor) -> Tensor:
    """Return the mean of each class, (K, D)."""
    own_BK = one_hot(target).to(points.dtype)
    return own_BK.T @ points / own_BK.sum(0)[:, None]


class Spans(NamedTuple):
    """Which part of the weights is no linear combination of some vectors, as a share of their norm."""

    outside_points: float
    """Of the training points."""
    change_outside_points: float
    """The same for what training has added to the first weights."""
    outside_means: float
    """Of the means of the classes."""


def spans(points: Tensor, target: Tensor, first: Tensor, last: Tensor) -> Spans:
    """Measure the first and last weights (K, D) against the spans of points (B, D) and of the means of classes."""
    means = class_means(points, target)
    return Spans(outside(last, points), outside(last - first, points), outside(last, means))


def outside(vectors: Tensor, rows: Tensor) -> float:
    """Return the share of the norm of vectors (K, D) that lies outside the span of rows (B, D).

    >>> round(outside(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0], [1.0, 0.0]])), 6)
    0.8
    """
    _, sizes, axes = torch.linalg.svd(rows, full_matrices=False)
    axes = axes[sizes > 1e-10 * sizes[0]]
    return float((vectors - vectors @ axes.T @ axes).norm() / vectors.norm())


def _everywhere(results: Results, metric: str, limit: float) -> Everywhere:
    return below_everywhere(settings(results, by_arm=True), lambda own: own.metric(metric).values, limit)


def _judge_centers(results: Results) -> Finding:
    ours, theirs = results.where(arm=HARMONIC), results.where(arm="cross_entropy")
    nearer, far = _everywhere(ours, "nearer_members", FEW_CLOSER), averages(ours, "center_distance")
    scaled = averages(theirs, "scaled_distance")
    return Finding(
        nearer.holds,
        f"Share of members that are nearer: {ranges(nearer.found)}. Distance of a weight from the mean of its class, "
        f"in units of the class's spread: {ranges(far)}. The same for cross-entropy's weights, all times the best "
        f"factor: {ranges(scaled)}.",
        plain(nearer.found, "nearer members") | plain(far, "distance") | plain(scaled, "cross-entropy, scaled"),
    )


def _judge_convex(results: Results) -> Finding:
    hull, share, own = _everywhere(results, "hull_distance", IN_HULL), *(averages(results, name) for name in HULL)
    return Finding(
        hull.holds,
        "Distance of a center from the convex hull of its class, in units of the class's spread: "
        f"{ranges(hull.found)}. Share of the centers outside: {ranges(share)}. With the coefficients of the formula, "
        f"members alone miss the farthest center by {ranges(own)}.",
        plain(hull.found, "distance") | plain(share, "share outside") | plain(own, "members alone"),
    )


def _judge_negligible(results: Results) -> Finding:
    mass, paper = _everywhere(results, "negative_mass", NEGLIGIBLE), averages(results, "unsigned_mass")
    return Finding(
        mass.typically,
        f"Mass of the other classes over that of the own class: {ranges(mass.found)}; all of it is negative. With the "
        f"coefficients that the paper writes, 1 / s without a sign, the other classes have a share of {ranges(paper)}.",
        plain(mass.found, "mass") | plain(paper, "share without signs"),
    )


def _judge_directions(results: Results) -> Finding:
    closer = _everywhere(results, "closer_members", FEW_CLOSER)
    cosine, members = (averages(results, name) for name in ("direction", "member_direction"))
    return Finding(
        closer.typically,
        f"Share of members that are closer in direction: {ranges(closer.found)}. Cosine of a weight: "
        f"{ranges(cosine)}. Cosine of a member: {ranges(members)}.",
        plain(closer.found, "closer members") | plain(cosine, "cosine") | plain(members, "cosine of members"),
    )


def _judge_span(results: Results) -> Finding:
    theirs, ours = (results.where(arm=arm) for arm in ("cross_entropy", "harmonic"))
    added, whole = (theirs.metric(name).mean() for name in ("change_outside_points", "outside_points"))
    means = [own.metric("outside_means").mean() for own in (theirs, ours)]
    assert added is not None
    assert whole is not None
    return Finding(
        added.above(NEGLIGIBLE),
        f"Outside the span of the training points lie {added.estimate:.0e} of the norm of what training adds to W, and "
        f"{whole} of W itself, which is what is left of its random start. Outside the span of the class means lie "
        f"{means[0]} (cross-entropy) and {means[1]} (harmonic).",
        {"outside_points_added": added._asdict(), "outside_points": whole._asdict()},
    )


def _judge_signed(results: Results) -> Finding:
    residual = max(results.metric("signed"))
    return Finding(
        residual < MATCHES,
        f"The largest residual of {len(results)} runs is {residual:.1e} of the classes' spread.",
        {"largest_residual": residual, "runs": len(results)},
    )


CLAIMS = (
    Claim(
        "weights_are_class_centers",
        "At a critical point each weight of the harmonic loss becomes the center of its class. Holds if at most "
        f"{100 * FEW_CLOSER:.0f} % of the training points of a class are nearer to its mean than its weight is, "
        f"averaged over classes: {EVERYWHERE}.",
        sentences=("G/32",),
        needs=where(data=TRAINED, arm=(*HARMONIC, "cross_entropy")),
        judge=_judge_centers,
    ),
    Claim(
        "convex_combination",
        "At a critical point each weight of the harmonic loss is a convex combination of the training examples of its "
        f"class. Holds if its distance from their convex hull is below {IN_HULL} of the class's spread, averaged over "
        f"classes: {EVERYWHERE}.",
        sentences=("G/33",),
        needs=where(data=TRAINED, arm=HARMONIC),
        judge=_judge_convex,
    ),
    Claim(
        "other_classes_are_negligible",
        "In many practical settings the other classes contribute next to nothing to a weight of the harmonic loss. "
        f"Holds if their mass is at most {100 * NEGLIGIBLE:.0f} % of the own class's on blobs of every size and on "
        "digits; broken if it is more in each of these, with 95 % intervals over seeds.",
        sentences=("G/43",),
        needs=where(data=TRAINED, arm=HARMONIC),
        judge=_judge_negligible,
    ),
    Claim(
        "cross_entropy_points_to_class_averages",
        "Weights of cross-entropy usually end up pointing to the average direction of their class's elements. Holds if "
        f"at most {100 * FEW_CLOSER:.0f} % of a class's training points have a larger cosine with their mean than its "
        "weight has, on blobs of every size and on digits; broken if more have in each of these, with 95 % intervals "
        "over seeds.",
        sentences=("G/47",),
        needs=where(data=TRAINED, arm="cross_entropy"),
        judge=_judge_directions,
    ),
    Claim(
        "cross_entropy_is_no_combination",
        "Weights of cross-entropy are no linear combinations of the data. On digits there are fewer training points "
        f"than pixels. Holds if more than {100 * NEGLIGIBLE:.0f} % of the norm of what training adds to W lies outside "
        "the span of the training points, with a 95 % interval over seeds.",
        sentences=("G/48",),
        needs=where(data=DIGITS, arm=PLAIN),
        judge=_judge_span,
    ),
    Claim(
        "combinations_make_it_interpretable",
        "That weights are linear combinations of data plays a crucial role for interpretability.",
        sentences=("G/49",),
        not_run="The paper believes this and tests it nowhere. Whether weights are such combinations is tested: "
        "theory/convex_combination and theory/cross_entropy_is_no_combination.",
    ),
    Claim(
        "signed_stationarity",
        "At convergence w_k = sum_i a_i x_i / sum_i a_i with a_i = ([y_i = k] - p_ik) / s_ik over all points, those of "
        f"other classes with a negative sign. The residual is below {MATCHES:g} of the classes' spread in every run.",
        needs=where(data=TRAINED, arm=HARMONIC),
        judge=_judge_signed,
    ),
)
