"""Data and training of `theory`: separable blobs and digits, one linear layer, plain gradient descent."""

# S seeds, B training points, K classes, D features, T recorded steps

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harmax.data.images import load_images
from harmax_lab.kit.experiment import Cell, Progress, Spec
from harmax_lab.toy import heads
from harmax_lab.toy.heads import Trajectory, initial_weight, margins

HARMONIC = ("harmonic", "harmonic_2")
CROSS_ENTROPY = ("cross_entropy", "cross_entropy_bias")
ARMS = (*HARMONIC, *CROSS_ENTROPY)
PLAIN = ("harmonic", "cross_entropy")
"""The heads of the theorems: the paper's exponent sqrt(D), and no bias."""
BLOBS, DIGITS, PLANE, GAUSSIAN = "blobs", "digits", "plane", "gaussian"
PLANE_SAMPLES, PLANE_ARMS = 60, ("harmonic_2", "cross_entropy")
PIXELS, CLASSES_OF_DIGITS = 64, 10
LEAST_STEPS = 5000
"""With fewer, the last tenfold of the steps does not show whether a norm still grows."""


@dataclass(frozen=True, kw_only=True)
class TheorySpec(Spec):
    """Settings of the data and of gradient descent."""

    samples: tuple[int, ...] = (16, 32, 64, 128)
    """Sizes m of the training set of blobs."""
    features: int = 16
    classes: int = 4
    """Blobs; in the plane at most three, since the means stand at equal distances."""
    noise: float = 0.35
    """Standard deviation of a blob, whose mean lies at distance 1 from the origin."""
    least_margin: float = 0.3
    """Draws below this margin of the nearest-mean rule are drawn again: that is what makes the data separable."""
    digits: int = 50
    """Images of digits to train on: fewer than their 64 pixels, so that not every vector is a combination of them."""
    steps: int = 20_000
    learning_rate: float = 1.0
    digits_learning_rate: float = 0.3
    """Smaller, because the exponent sqrt(64) = 8 makes the loss steeper."""
    test_samples: int = 20_000
    dimensions: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    """Of the Gaussian distribution from which pairs of points are drawn."""
    pairs: int = 2000

    def short_of(self, cells: Sequence[Any]) -> str:
        """Say if the training is too short to see whether something still grows."""
        return f"Only {self.steps:,} of at least {LEAST_STEPS:,} steps were run." if self.steps < LEAST_STEPS else ""


@dataclass(frozen=True)
class TheoryCell(Cell):
    """One head trained on one seed's training set; or a seed's pairs of Gaussian points, without a head."""

    data: str
    arm: str
    features: int
    samples: int
    seed: int


def cells(spec: TheorySpec) -> list[TheoryCell]:
    """List every head, size and seed on blobs, then digits, the plane's runs for the first seed, and the pairs."""
    return [
        *(TheoryCell(BLOBS, arm, spec.features, m, seed) for m in spec.samples for arm in ARMS for seed in spec.seeds),
        *(TheoryCell(DIGITS, arm, PIXELS, spec.digits, seed) for arm in PLAIN for seed in spec.seeds),
        *(TheoryCell(PLANE, arm, 2, PLANE_SAMPLES, spec.seeds[0]) for arm in PLANE_ARMS),
        *(TheoryCell(GAUSSIAN, "none", size, spec.pairs, seed) for size in spec.dimensions for seed in spec.seeds),
    ]


def exponent_of(arm: str, features: int) -> float:
    """Return a harmonic head's exponent: the paper's sqrt(D), or 2."""
    return math.sqrt(features) if arm == "harmonic" else 2.0


class Points(NamedTuple):
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


def blobs_of(spec: TheorySpec, features: int, samples: int, seed: int) -> Points:
    """Draw one seed's blobs; every head gets the same, and every size the same means."""
    generator = torch.Generator().manual_seed(seed)
    means = simplex(min(spec.classes, features + 1), features, generator)
    train, test = (
        draw_blobs(means, size, spec.noise, spec.least_margin, generator) for size in (samples, spec.test_samples)
    )
    return Points(*train, *test)


def digits_of(samples: int, seed: int) -> Points:
    """Draw equally many handwritten digits of each class to train on; the other images are the test.

    One factor makes the root mean square length of the images 1. They are not centered.
    """
    images = load_images("digits", "train")
    pixels, target = torch.from_numpy(images.pixels).double().flatten(1), torch.from_numpy(images.labels)
    pixels = pixels / pixels.square().sum(1).mean().sqrt()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(target), generator=generator)
    members = [order[target[order] == label] for label in range(CLASSES_OF_DIGITS)]
    each = samples // CLASSES_OF_DIGITS
    train = torch.stack([own[:each] for own in members], 1).flatten()
    test = torch.cat([own[each:] for own in members])
    return Points(pixels[train], target[train], pixels[test], target[test])


def data_of(spec: TheorySpec, cell: TheoryCell) -> Points:
    """Return what a cell's head is trained and tested on."""
    if cell.data == DIGITS:
        return digits_of(cell.samples, cell.seed)
    return blobs_of(spec, cell.features, cell.samples, cell.seed)


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


def train(spec: TheorySpec, group: Sequence[TheoryCell], data: Sequence[Points], progress: Progress) -> Trajectory:
    """Train cells that differ in their seed at once, by full-batch gradient descent in float64."""
    cell, points, target = group[0], torch.stack([own.points for own in data]), data[0].target
    classes, features = int(target.max()) + 1, points.shape[-1]
    # The data's generator starts from the seed itself; negated it is another stream.
    weight = torch.stack([initial_weight(classes, features, -1 - own.seed, torch.float64) for own in group])
    rate = spec.digits_learning_rate if cell.data == DIGITS else spec.learning_rate
    descent, exponent = partial(torch.optim.SGD, lr=rate), exponent_of(cell.arm, features)
    steps, message = recorded_steps(spec.steps), f"{cell.arm}, {len(target)} points of {cell.data}"
    return heads.train(cell.arm, exponent, points, target, weight, descent, steps, progress, message)
