"""Three theorems of the paper, measured: finite norms, the margin bound, and where a harmonic center stands.

    harmax run theory            5 seeds, about a minute on one CPU core
    harmax run theory --full     20 seeds, more sizes of the training set, longer training: a few minutes

The data are Gaussian blobs that a linear rule separates by construction; the model is the head alone, as in the
theorems. Every head is trained by full-batch gradient descent with one constant learning rate, in float64. On separable
data gradient descent is the case in which cross-entropy's growth is known: |W| rises with the logarithm of the step and
W / |W| tends to the widest margin. Adam, which divides by the size of a gradient that fades away, would hide both.

training.py has the data, the heads and the descent; measures.py what is measured on them; claims.py the claims and
their judges; figures.py the pictures.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from harmax_lab.kit.experiment import Experiment, Progress
from harmax_lab.kit.store import CellResult
from harmax_lab.toy.theory.claims import CLAIMS, summarize
from harmax_lab.toy.theory.figures import figures
from harmax_lab.toy.theory.measures import class_spread, growth, hull_distance, stationarity
from harmax_lab.toy.theory.training import (
    HARMONIC,
    PLANE,
    Blobs,
    TheoryCell,
    TheorySpec,
    Trajectory,
    blobs_of,
    cells,
    exponent_of,
    loss_of,
    margins,
    scores_of,
    train,
)


def run_cells(
    spec: TheorySpec, group: Sequence[TheoryCell], progress: Progress
) -> Iterator[tuple[TheoryCell, CellResult]]:
    """Train the seeds of one head and size together, and measure each."""
    blobs = [blobs_of(spec, cell.features, cell.samples, cell.seed) for cell in group]
    trained = train(spec, group[0].arm, blobs, [cell.seed for cell in group], progress)
    for index, cell in enumerate(group):
        alone = Trajectory(trained.step, *(series[:, index] for series in trained[1:]))
        yield cell, measure(cell, blobs[index], alone)


def measure(cell: TheoryCell, blobs: Blobs, trained: Trajectory) -> CellResult:
    """Turn one seed's trajectory into curves over steps and numbers at the last one."""
    points, target, test_points, test_target = blobs
    step, norm = trained.step.numpy(), trained.weight.flatten(1).norm(dim=1).numpy()
    gradient_norm = trained.gradient.flatten(1).norm(dim=1).numpy()
    margin_T = margins(scores_of(cell.arm, points, trained.weight, trained.bias), target).amin(1).numpy()
    weight, bias = trained.weight[-1], trained.bias[-1]
    radius, margin = float(points.norm(dim=1).max()), float(margin_T[-1])
    curves = {
        "step": step,
        "loss": trained.loss.numpy(),
        "weight_norm": norm,
        "gradient_norm": gradient_norm,
        "margin": margin_T,
    }
    metrics: dict[str, Any] = {
        "loss": float(trained.loss[-1]),
        "weight_norm": float(norm[-1]),
        "gradient_norm": float(gradient_norm[-1]),
        **growth(step[1:], norm[1:])._asdict(),
        "radius": radius,
        "margin": margin,
        "bound": bound(radius, float(norm[-1]), margin, cell.samples),
        "train_error": error_rate(cell.arm, points, target, weight, bias),
        "test_error": error_rate(cell.arm, test_points, test_target, weight, bias),
        "test_loss": float(loss_of(cell.arm, test_points, test_target, weight, bias)),
    }
    if cell.arm in HARMONIC:
        exponent = exponent_of(cell.arm, cell.features)
        readings = [stationarity(points, target, centers, exponent) for centers in trained.weight]
        curves |= {name: torch.tensor([getattr(r, name) for r in readings]).numpy() for name in ("signed", "own")}
        outside = [hull_distance(points[target == k], center) for k, center in enumerate(weight)]
        metrics |= {
            **readings[-1]._asdict(),
            "hull_distance": sum(outside) / len(outside) / class_spread(points, target),
            "outside_hull": sum(distance > 0 for distance in outside) / len(outside),
        }
    kept = {"points": points, "target": target, "weight": trained.weight} if cell.features == PLANE else {}
    return CellResult(curves, {name: array.numpy() for name, array in kept.items()}, metrics)


def bound(radius: float, norm: float, margin: float, samples: int) -> float:
    """Return R |W| / (gamma sqrt(m)), infinite where a training point is on the wrong side.

    >>> bound(2.0, 3.0, 0.5, 16)
    3.0
    """
    return radius * norm / (margin * math.sqrt(samples)) if margin > 0 else math.inf


def error_rate(arm: str, points: Tensor, target: Tensor, weight: Tensor, bias: Tensor) -> float:
    """Return the share of points that a head puts into a wrong class."""
    return float((scores_of(arm, points, weight, bias).argmax(-1) != target).double().mean())


EXPERIMENT = Experiment(
    name="theory",
    title="Three theorems on separable data",
    figure="Theorems; the paper has no figure of them",
    claims=CLAIMS,
    version=1,
    profiles={
        "smoke": TheorySpec(seeds=(0, 1), samples=(16, 32), steps=300, test_samples=2000),
        "quick": TheorySpec(seeds=tuple(range(5)), samples=(16, 64), steps=6000),
        "full": TheorySpec(seeds=tuple(range(20))),
    },
    cells=cells,
    run_cells=run_cells,
    old_summarize=summarize,
    old_figures=figures,
    group=lambda cell: (cell.arm, cell.features, cell.samples),
)
