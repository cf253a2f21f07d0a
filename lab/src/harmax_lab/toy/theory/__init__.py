"""The paper's theorems, measured: finite minima, the margin bound, where a harmonic center stands, and n ~ sqrt(D).

    harmax run theory            5 seeds, a few minutes on one CPU core
    harmax run theory --full     20 seeds, more sizes of the training set, longer training: about half an hour

The data are Gaussian blobs that a linear rule separates by construction, and a few handwritten digits; the model is the
head alone, as in the theorems. Every head is trained by full-batch gradient descent with one constant learning rate, in
float64. On separable data gradient descent is the case in which cross-entropy's growth is known: |W| rises with the
logarithm of the step and W / |W| tends to the widest margin. Adam, which divides by the size of a gradient that fades
away, would hide both.

separable.py has the data and how heads are trained on them. scaling.py, bounds.py and centers.py have one theorem
each, distances.py has the reason for n ~ sqrt(D): what is measured, the claims and their judges. statements.py has
what the paper states besides. measures.py has stationarity, hulls and growth, settings.py the data sets and sizes of a
claim, figures.py the pictures. Losses and descent are those of the toy cases too: ../heads.py.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from harmax.figures import HEAD_STYLES
from harmax_lab.kit.experiment import Experiment, Progress, Work
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, median_of, places, tabulate
from harmax_lab.toy.heads import Trajectory, loss_of, margins, tabulate_last_step
from harmax_lab.toy.theory import bounds, centers, distances, proofs, scaling, statements
from harmax_lab.toy.theory.figures import figures
from harmax_lab.toy.theory.measures import class_spread, growth, hull_distance, stationarity
from harmax_lab.toy.theory.separable import (
    ARMS,
    BLOBS,
    DIGITS,
    GAUSSIAN,
    HARMONIC,
    PLANE,
    Points,
    TheoryCell,
    TheorySpec,
    cells,
    data_of,
    exponent_of,
    scores_of,
    train,
)


def run_cells(
    spec: TheorySpec, group: Sequence[TheoryCell], progress: Progress
) -> Iterator[tuple[TheoryCell, CellResult]]:
    """Train the seeds of one head and size together, and measure each."""
    if group[0].data == GAUSSIAN:
        yield from ((cell, distances.measure_pairs(cell)) for cell in group)
        return
    data = [data_of(spec, cell) for cell in group]
    trained = train(spec, group, data, progress)
    for place, cell in enumerate(group):
        yield cell, measure(cell, data[place], trained.alone(place))


def measure(cell: TheoryCell, data: Points, trained: Trajectory) -> CellResult:
    """Turn one seed's trajectory into curves over steps and numbers at the last one."""
    points, target = data.points, data.target
    weight, bias = trained.weight[-1], trained.bias[-1]
    head = scaling.Head(cell.arm, exponent_of(cell.arm, cell.features), points, target)
    margin = margins(scores_of(cell.arm, points, trained.weight, trained.bias), target).amin(1)
    series = {
        "loss": trained.loss,
        "weight_norm": trained.weight.flatten(1).norm(dim=1),
        "gradient_norm": trained.gradient.flatten(1).norm(dim=1),
        "margin": margin,
    }
    metrics: dict[str, Any] = {
        **{name: float(one[-1]) for name, one in series.items()},
        **growth(trained.step[1:].numpy(), series["weight_norm"][1:].numpy())._asdict(),
        "early_norm": float(series["weight_norm"][trained.step <= trained.step[-1] / 100][-1]),
        "classes": len(weight),
        "radius": float(points.norm(dim=1).max()),
        "distance_margin": bounds.distance_margin(points, target, weight),
        "train_error": bounds.error_rate(cell.arm, points, target, weight, bias),
        "test_error": bounds.error_rate(cell.arm, data.test_points, data.test_target, weight, bias),
        "test_loss": float(loss_of(cell.arm, head.exponent, data.test_points, data.test_target, weight, bias)),
        "far_loss": head.loss(weight, bias, scaling.FAR),
        **scaling.growing(head, trained.weight, trained.bias, margin)._asdict(),
        **scaling.unit_change(head, weight, bias)._asdict(),
        **centers.centers(points, target, weight)._asdict(),
        **centers.spans(points, target, trained.weight[0], weight)._asdict(),
    }
    metrics |= bounds.measure_bound(metrics, cell.samples)
    if cell.arm in HARMONIC:
        readings = [stationarity(points, target, now, head.exponent) for now in trained.weight]
        series |= {name: torch.tensor([getattr(r, name) for r in readings]) for name in ("signed", "own")}
        outside = [hull_distance(points[target == k], center) for k, center in enumerate(weight)]
        metrics |= {
            **readings[-1]._asdict(),
            "hull_distance": sum(outside) / len(outside) / class_spread(points, target),
            "outside_hull": sum(distance > 0 for distance in outside) / len(outside),
        }
    curves = {"step": trained.step.numpy(), **{name: one.numpy() for name, one in series.items()}}
    return CellResult(curves, arrays_of(cell, head, trained, margin), metrics)


def arrays_of(cell: TheoryCell, head: scaling.Head, trained: Trajectory, margin: torch.Tensor) -> dict[str, Any]:
    """Return what the figures draw: losses of scaled weights, and in the plane and on digits the weights."""
    right = torch.nonzero(margin > 0).flatten().tolist() or [-1]
    arrays = {
        name: scaling.scaled_losses(head, trained.weight[place], trained.bias[place])
        for name, place in (("scaled_first", right[0]), ("scaled_last", -1))
    }
    if cell.data in (PLANE, DIGITS):
        path = trained.weight if cell.data == PLANE else trained.weight[-1:]
        kept = {"points": head.points, "target": head.target, "weight": path}
        arrays |= {name: one.numpy() for name, one in kept.items()}
    return arrays


CLAIMS = (
    *scaling.CLAIMS,
    *bounds.CLAIMS,
    *centers.CLAIMS,
    *proofs.CLAIMS,
    *distances.CLAIMS,
    *statements.CLAIMS,
)


def tables(results: Results) -> list[Table]:
    """Tabulate the last step of every head, and the pairs of Gaussian points."""
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
    stands = {
        "weight from class mean": "center_distance",
        "times the best factor": "scaled_distance",
        "members nearer": "nearer_members",
        "cosine": "direction",
        "cosine of members": "member_direction",
        "weight outside class hull": "hull_distance",
        "mass of other classes": "negative_mass",
    }
    trained = results.where(data=(BLOBS, DIGITS))
    rows = [
        at
        for data in (BLOBS, DIGITS)
        for at in places(trained.where(data=data), samples=trained.where(data=data).distinct("samples"), arm=ARMS)
        if at.own
    ]
    first = {"data": lambda at: next(iter(at.own)).data, "m": lambda at: at.samples}
    scatter = {
        "D": lambda at: at.features,
        "seeds": lambda at: len(at.own),
        "mean of squared distance / D": median_of("mean_square"),
        "scatter, as a share of it": median_of("scatter"),
        **{f"spread of d^n, {name} n": median_of(f"spread_{name}") for name in distances.EXPONENTS},
    }
    heads = {**first, "head": lambda at: HEAD_STYLES[at.arm].label}
    pairs = places(results.where(data=GAUSSIAN), features=results.spec.dimensions)
    return [
        tabulate_last_step(results, rows, first, medians),
        tabulate(
            "Weights and the means of their classes, in units of the class's spread, median over seeds",
            rows,
            {**heads, **{heading: partial(_median, metric=metric) for heading, metric in stands.items()}},
        ),
        tabulate("Pairs of Gaussian points, median over seeds", pairs, scatter),
    ]


def _median(at: Any, metric: str) -> float | None:
    found = at.own.take(lambda cell, result: result.metrics.get(metric)).present
    return found.median().estimate if len(found) else None


EXPERIMENT = Experiment(
    name="theory",
    title="The theorems of the paper, on separable data",
    figure="Sec. 2; App. G, which has no figure",
    claims=CLAIMS,
    version=2,
    profiles={
        "smoke": TheorySpec(
            seeds=(0, 1), samples=(16, 32), steps=300, test_samples=2000, dimensions=(16, 64, 256), pairs=500
        ),
        "quick": TheorySpec(seeds=tuple(range(5)), samples=(16, 64), steps=6000),
        "full": TheorySpec(seeds=tuple(range(20))),
    },
    work=Work(cells, run_cells, group=lambda cell: (cell.data, cell.arm, cell.features, cell.samples)),
    tables=tables,
    figures=figures,
)
