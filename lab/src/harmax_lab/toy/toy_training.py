"""The two toy cases: their points, how heads are trained on them, and what is measured."""

# P points (as many as classes), G grid points per side

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harmax.figures import HEAD_STYLES
from harmax_lab.kit.experiment import Cell, Progress, Spec
from harmax_lab.kit.store import CellResult
from harmax_lab.paper.readings import PLATEAU
from harmax_lab.toy import heads
from harmax_lab.toy.heads import Trajectory, initial_weight

POINTS: dict[int, tuple[tuple[float, float], ...]] = {
    1: ((1, 1), (-1, -1)),
    2: ((0, 1), (0, -1), (-1, 0), (1, 0), (0, 0)),
}
RED = 4
"""The point at the origin of case 2, which the paper draws in red."""
PLAIN = ("harmonic", "cross_entropy")
HEADS = (*PLAIN, "cross_entropy_bias")
# Adam's step grows as its memory of early gradients fades, until it throws the converged weights of case 2 off the
# points again and again. AMSGrad keeps the memory, and so tells the optimizer's spikes from the loss.
ARMS = {1: HEADS, 2: (*HEADS, "harmonic_amsgrad")}
PAPER_STEPS = 10_000
LEVELS = (0.1, 0.01, 0.001, 0.0001)
"""Of the loss. Both heads come below them within the training of case 1."""
TINY = 1e-30


@dataclass(frozen=True)
class ToyCell(Cell):
    """One arm (a head, and for the control an optimizer) trained on one case from one seed's weights."""

    case: int
    arm: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class ToySpec(Spec):
    """Settings of the toy cases; the defaults are the authors'."""

    cases: tuple[int, ...] = (1, 2)
    steps: int = PAPER_STEPS
    learning_rate: float = 0.01
    exponent: float = 2.0
    grid_size: int = 161
    grid_extent: float = 1.8

    def short_of(self, cells: Sequence[Any]) -> str:
        """Say if the training is shorter than the authors'."""
        return (
            f"Only {self.steps:,} of the authors' {PAPER_STEPS:,} steps were run." if self.steps < PAPER_STEPS else ""
        )


def cells(spec: ToySpec) -> list[ToyCell]:
    """List every case, arm and seed."""
    return [ToyCell(case, arm, seed) for case in spec.cases for arm in ARMS[case] for seed in spec.seeds]


def points_of(case: int) -> Tensor:
    """Return a case's points (P, 2), of which each is a class of its own."""
    return torch.tensor(POINTS[case], dtype=torch.float32)


def train(spec: ToySpec, case: int, arm: str, seeds: Sequence[int], progress: Progress) -> Trajectory:
    """Train every seed at once, full batch, with Adam."""
    points = points_of(case)
    weight = torch.stack([initial_weight(len(points), 2, seed) for seed in seeds])
    adam = partial(torch.optim.Adam, lr=spec.learning_rate, amsgrad=arm == "harmonic_amsgrad")
    steps, message = recorded_steps(spec.steps), f"case {case}, {HEAD_STYLES[arm].label}"
    target = torch.arange(len(points))
    return heads.train(arm, spec.exponent, points, target, weight, adam, steps, progress, message)


def recorded_steps(steps: int) -> list[int]:
    """Return every step up to 100, then every tenth, and the last: dense enough on a logarithmic axis."""
    return [step for step in range(steps + 1) if step <= 100 or step % 10 == 0 or step == steps]


def run_cells(spec: ToySpec, group: Sequence[ToyCell], progress: Progress) -> Iterator[tuple[ToyCell, CellResult]]:
    """Train the seeds of one case and arm together, and keep what `measure` and the figures need of each."""
    trained = train(spec, group[0].case, group[0].arm, [cell.seed for cell in group], progress)
    for place, cell in enumerate(group):
        yield cell, kept(spec, cell, trained.alone(place))


def kept(spec: ToySpec, cell: ToyCell, trained: Trajectory) -> CellResult:
    """Turn one seed's trajectory into curves and final arrays."""
    points, weight, bias = points_of(cell.case), trained.weight[-1], trained.bias[-1]
    return CellResult(
        curves={
            "step": trained.step.numpy(),
            "loss": trained.loss.numpy(),
            "weight_norm": trained.weight.double().flatten(1).norm(dim=1).numpy(),
            "weight_distance": (trained.weight.double() - points).norm(dim=2).amax(1).numpy(),
        },
        arrays={
            "points": points.numpy(),
            "weight": weight.numpy(),
            "bias": bias.numpy(),
            **decision_regions(spec, cell.arm, weight, bias),
        },
    )


def measure(spec: ToySpec, cell: ToyCell, result: CellResult) -> dict[str, Any]:
    """Return a run's numbers: how fast its loss and norm settle, and where its weights end."""
    step, loss, norm, distance = (result.curves[name] for name in ("step", "loss", "weight_norm", "weight_distance"))
    points, weight, bias = (torch.from_numpy(result.arrays[name]) for name in ("points", "weight", "bias"))
    middle, quarter = (np.searchsorted(step, spec.steps / part) for part in (2, 4))
    below = {level: stays_from(step, loss < level) for level in LEVELS}
    waits = [spec.steps if first is None else max(first, 1) for first in below.values()]
    margin = heads.margins(heads.logits_of(cell.arm, spec.exponent, points, weight, bias), torch.arange(len(points)))
    off = np.abs(norm / norm[-1] - 1)
    return {
        "loss": float(loss[-1]),
        "smallest_loss": float(loss.min()),
        "late_largest_loss": float(loss[middle:].max()),
        "late_loss_change": float(abs(loss[-1] - loss[middle]) / max(loss[middle], TINY)),
        **{f"below_{level:g}": first for level, first in below.items()},
        "wait": float(np.log10(waits).mean()),
        "weight_norm": float(norm[-1]),
        "norm_settled": stays_from(step, off <= PLATEAU),
        "late_norm_change": float(off[middle:].max()),
        "norm_growth": float(norm[-1] - norm[middle]),
        "norm_growth_before": float(norm[middle] - norm[quarter]),
        "weight_distance": float(distance[-1]),
        "scaled_distance": scaled_distance(weight.double(), points.double()),
        "accuracy": float((margin > 0).double().mean()),
        "red_point_right": bool(margin[RED] > 0) if cell.case == 2 else None,
    }


def stays_from(step: np.ndarray, holds: np.ndarray) -> int | None:
    """Return the first step from which on a condition holds to the end; None if it does not hold at the end.

    >>> stays_from(np.array([0, 10, 20, 30]), np.array([True, False, True, True]))
    20
    """
    failing = np.flatnonzero(~holds)
    place = failing[-1] + 1 if len(failing) else 0
    return int(step[place]) if place < len(step) else None


def scaled_distance(weight: Tensor, points: Tensor) -> float:
    """Return the largest distance of a weight (P, D) from its point (P, D), all weights times the best common factor.

    >>> scaled_distance(torch.tensor([[5.0, 0.0], [0.0, -5.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
    0.0
    """
    factor = (weight * points).sum() / weight.square().sum()
    return float((factor * weight - points).norm(dim=1).max())


def decision_regions(spec: ToySpec, arm: str, weight: Tensor, bias: Tensor) -> dict[str, np.ndarray]:
    """Return the winning class and its probability on a square grid (G + 1, G), rows from bottom to top."""
    # One more row than columns keeps the grid off the diagonals, where ties between classes would show as noise.
    rows, columns = (torch.linspace(-spec.grid_extent, spec.grid_extent, spec.grid_size + more) for more in (1, 0))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    top = heads.logits_of(arm, spec.exponent, torch.stack([x, y], -1).flatten(0, 1), weight, bias).softmax(1).max(1)
    return {
        "grid_extent": np.array([-spec.grid_extent, spec.grid_extent]),
        "grid_class": top.indices.view_as(x).to(torch.uint8).numpy(),
        "grid_probability": top.values.view_as(x).numpy(),
    }
