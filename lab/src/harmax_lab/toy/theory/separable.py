"""Data and training of the `theory` experiment: separable blobs, one linear layer, plain gradient descent."""

# S seeds, B training points, K classes, D features, T recorded steps

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from harmax_lab.kit.experiment import Cell, Progress, Spec
from harmax_lab.toy import heads
from harmax_lab.toy.heads import Trajectory, initial_weight

HARMONIC = ("harmonic", "harmonic_2")
CROSS_ENTROPY = ("cross_entropy", "cross_entropy_bias")
ARMS = (*HARMONIC, *CROSS_ENTROPY)
PLANE, PLANE_SAMPLES, PLANE_ARMS = 2, 60, ("harmonic_2", "cross_entropy")


@dataclass(frozen=True, kw_only=True)
class TheorySpec(Spec):
    """Settings of the blobs and of gradient descent."""

    samples: tuple[int, ...] = (16, 32, 64, 128)
    """Sizes m of the training set."""
    features: int = 16
    classes: int = 4
    """Blobs; in the plane at most three, since the means stand at equal distances."""
    noise: float = 0.35
    """Standard deviation of a blob, whose mean lies at distance 1 from the origin."""
    least_margin: float = 0.3
    """Draws below this margin of the nearest-mean rule are drawn again: that is what makes the data separable."""
    steps: int = 20_000
    learning_rate: float = 1.0
    test_samples: int = 20_000


@dataclass(frozen=True)
class TheoryCell(Cell):
    """One head trained on one seed's training set of one size; two features make it part of the picture alone."""

    arm: str
    features: int
    samples: int
    seed: int


def cells(spec: TheorySpec) -> list[TheoryCell]:
    """List every head, size and seed, then the plane's runs for the first seed."""
    measured = [
        TheoryCell(arm, spec.features, samples, seed) for samples in spec.samples for arm in ARMS for seed in spec.seeds
    ]
    return [*measured, *(TheoryCell(arm, PLANE, PLANE_SAMPLES, spec.seeds[0]) for arm in PLANE_ARMS)]


def exponent_of(arm: str, features: int) -> float:
    """Return a harmonic head's exponent: the paper's sqrt(D), or 2."""
    return math.sqrt(features) if arm == "harmonic" else 2.0


class Blobs(NamedTuple):
    """Points (B, D) and classes (B,) to train on, and fresh ones of the same distribution to test on."""

    points: Tensor
    target: Tensor
    test_points: Tensor
    test_target: Tensor


def simplex(classes: int, features: int, generator: torch.Generator) -> Tensor:
    """Return K unit vectors (K, D) at equal distances from one another, turned at random; their sum is zero."""
    if features < classes - 1:
        raise ValueError(
            f"`features` must be at least {classes - 1} for {classes} means at equal distances, got {features}; "
            "take fewer classes."
        )
    centering = torch.eye(classes, dtype=torch.float64) - 1 / classes
    corners = torch.linalg.svd(centering)[0][:, : classes - 1]
    gaussian = torch.randn(features, classes - 1, dtype=torch.float64, generator=generator)
    turned = corners @ torch.linalg.qr(gaussian)[0].T
    return turned / turned.norm(dim=1, keepdim=True)


def draw_blobs(
    means: Tensor, samples: int, noise: float, least_margin: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw balanced Gaussian blobs around means (K, D): points (B, D) and their classes (B,).

    Each point is drawn again until the nearest-mean rule gives it the least margin. The means have one length, so the
    rule is W = means without a bias: (w_y - w_j).x >= least_margin for every point drawn. So the distribution itself,
    not only this sample of it, is linearly separable through the origin.
    """
    target = torch.arange(samples) % len(means)
    points = torch.empty(samples, means.shape[1], dtype=means.dtype)
    missing = torch.arange(samples)
    while len(missing):
        drawn = means[target[missing]]
        drawn = drawn + noise * torch.randn(drawn.shape, dtype=means.dtype, generator=generator)
        kept = margins(drawn @ means.T, target[missing]) >= least_margin
        points[missing[kept]] = drawn[kept]
        missing = missing[~kept]
    return points, target


def margins(scores: Tensor, target: Tensor) -> Tensor:
    """Return each row's score of its class minus the best other score: (..., B, K), (B,) -> (..., B)."""
    own = torch.nn.functional.one_hot(target, scores.shape[-1]).bool()
    return scores.masked_fill(~own, -math.inf).amax(-1) - scores.masked_fill(own, -math.inf).amax(-1)


def blobs_of(spec: TheorySpec, features: int, samples: int, seed: int) -> Blobs:
    """Draw one seed's data; every head gets the same, and every size the same means."""
    generator = torch.Generator().manual_seed(seed)
    means = simplex(min(spec.classes, features + 1), features, generator)
    train, test = (
        draw_blobs(means, size, spec.noise, spec.least_margin, generator) for size in (samples, spec.test_samples)
    )
    return Blobs(*train, *test)


def scores_of(arm: str, points: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return linear scores (..., B, K) that decide the class: W x + b, or for a harmonic head W x - |w|^2 / 2.

    The latter is (|x|^2 - s) / 2: the nearest center has the highest, and its margin is in the units of W x.
    """
    offset = -weight.square().sum(-1) / 2 if arm in HARMONIC else bias
    return points @ weight.mT + offset[..., None, :]


def recorded_steps(steps: int) -> list[int]:
    """Return 0, twelve steps per decade, and the last one."""
    decades = math.log10(steps)
    return sorted({0, steps, *(round(10 ** (tick / 12)) for tick in range(math.ceil(12 * decades)))})


def train(spec: TheorySpec, arm: str, blobs: Sequence[Blobs], seeds: Sequence[int], progress: Progress) -> Trajectory:
    """Train every seed at once by full-batch gradient descent, in float64, and record on a logarithmic grid."""
    points, target = torch.stack([blob.points for blob in blobs]), blobs[0].target
    classes, features = int(target.max()) + 1, points.shape[-1]
    # The data's generator starts from the seed itself; negated it is another stream.
    weight = torch.stack([initial_weight(classes, features, -1 - seed, torch.float64) for seed in seeds])
    descent, exponent = partial(torch.optim.SGD, lr=spec.learning_rate), exponent_of(arm, features)
    steps, message = recorded_steps(spec.steps), f"{arm}, {len(target)} points, {features} features"
    return heads.train(arm, exponent, points, target, weight, descent, steps, progress, message)
