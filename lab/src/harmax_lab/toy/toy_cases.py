"""Two toy problems in the plane: harmonic centers land on the points, cross-entropy's weights run away (Fig. 1 b, c).

    harmax run toy_cases            3 seeds, under a minute on one CPU core
    harmax run toy_cases --full     20 seeds

Each point is a class of its own, so that the weights (one row per class) live in the plane of the points.
"""

# P points (as many as classes), G grid points per side

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from harmax.figures import HEAD_STYLES, Picture
from harmax.functional import harmonic_logits
from harmax_lab.kit import drawing
from harmax_lab.kit.claims import Claim, Finding, at_least
from harmax_lab.kit.experiment import Cell, Experiment, Progress, Spec, Work
from harmax_lab.kit.judges import Judge
from harmax_lab.kit.results import Results, where
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table, places
from harmax_lab.toy import heads
from harmax_lab.toy.heads import Trajectory, initial_weight, tabulate_last_step

POINTS: dict[int, tuple[tuple[float, float], ...]] = {
    1: ((1, 1), (-1, -1)),
    2: ((0, 1), (0, -1), (-1, 0), (1, 0), (0, 0)),
}
HEADS = ("harmonic", "cross_entropy", "cross_entropy_bias")
# Adam's step grows as its memory of early gradients fades, until it throws the converged weights of case 2 off the
# points again and again. AMSGrad keeps the memory, and so tells the optimizer's spikes from the loss.
ARMS = {1: HEADS, 2: (*HEADS, "harmonic_amsgrad")}
PAPER_STEPS = 10_000
PRECISE, CLOSE = 1e-10, 1e-5
NO_DISTANCE = 1e-8  # below the spacing of float32 at 1
# Case 2 without a bias: the origin's logits are all 0 and its loss ln 5 for ever, however small the other four get.
FLOOR = math.log(5) / 5


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


def cells(spec: ToySpec) -> list[ToyCell]:
    """List every case, arm and seed."""
    return [ToyCell(case, arm, seed) for case in spec.cases for arm in ARMS[case] for seed in spec.seeds]


def logits_of(arm: str, exponent: float, points: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the logits of one arm for any points of the plane."""
    if arm.startswith("harmonic"):
        return harmonic_logits(points, weight, exponent=exponent)
    return points @ weight.T + bias


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
    """Train the seeds of one case and arm together, and measure each."""
    trained = train(spec, group[0].case, group[0].arm, [cell.seed for cell in group], progress)
    for place, cell in enumerate(group):
        yield cell, measure(spec, cell, trained.alone(place))


def measure(spec: ToySpec, cell: ToyCell, trained: Trajectory) -> CellResult:
    """Turn one seed's trajectory into curves, final arrays and numbers."""
    points, weight, bias = points_of(cell.case), trained.weight[-1], trained.bias[-1]
    step, loss = trained.step.numpy(), trained.loss.numpy()
    norm = trained.weight.double().flatten(1).norm(dim=1).numpy()
    distance = (trained.weight.double() - points).norm(dim=2).amax(1).numpy()
    predicted = logits_of(cell.arm, spec.exponent, points, weight, bias).argmax(1)
    late = step >= spec.steps / 2
    return CellResult(
        curves={"step": step, "loss": loss, "weight_norm": norm, "weight_distance": distance},
        arrays={
            "points": points.numpy(),
            "weight": weight.numpy(),
            "bias": bias.numpy(),
            **decision_regions(spec, cell.arm, weight, bias),
        },
        metrics={
            "loss": float(loss[-1]),
            "weight_norm": float(norm[-1]),
            "weight_distance": float(distance[-1]),
            "accuracy": int((predicted == torch.arange(len(points))).sum()) / len(points),
            "first_precise_step": int(step[loss < PRECISE][0]) if (loss < PRECISE).any() else None,
            "late_norm_growth": float(norm[-1] / norm[late][0]),
            "late_largest_loss": float(loss[late].max()),
        },
    )


def decision_regions(spec: ToySpec, arm: str, weight: Tensor, bias: Tensor) -> dict[str, np.ndarray]:
    """Return the winning class and its probability on a square grid (G + 1, G), rows from bottom to top."""
    # One more row than columns keeps the grid off the diagonals, where ties between classes would show as noise.
    rows, columns = (torch.linspace(-spec.grid_extent, spec.grid_extent, spec.grid_size + more) for more in (1, 0))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    top = logits_of(arm, spec.exponent, torch.stack([x, y], -1).flatten(0, 1), weight, bias).softmax(1).max(1)
    return {
        "grid_extent": np.array([-spec.grid_extent, spec.grid_extent]),
        "grid_class": top.indices.view_as(x).to(torch.uint8).numpy(),
        "grid_probability": top.values.view_as(x).numpy(),
    }


def _judge_centers(results: Results) -> Finding:
    off, farthest = max(abs(norm - 2) for norm in results.metric("weight_norm")), max(results.metric("weight_distance"))
    return Finding(
        off < 5e-4 and farthest < 1e-2,
        f"All norms lie within {off:.0e} of 2. The farthest weight of {len(results)} runs is {farthest:.1e} from its "
        "point; within 0.01 counts as on it.",
        {"largest_norm_error": off, "largest_distance": farthest, "runs": len(results)},
    )


def _judge_precision(results: Results) -> Finding:
    first = results.metric("first_precise_step")
    reached = first.present.values
    when = f", the last of them at step {max(reached)}" if reached else ""
    return Finding(
        len(reached) == len(first),
        f"{len(reached)} of {len(first)} runs fall below {PRECISE:.0e} in float32{when}.",
        {"runs": len(first), "reached": len(reached), "slowest": max(reached, default=None)},
    )


def _judge_last_step(results: Results) -> Finding:
    ends = results.take(lambda cell, result: (result.metrics["loss"], result.metrics["weight_distance"]))
    there = sum(loss < PRECISE and distance < CLOSE for loss, distance in ends)
    loss, distance = map(max, zip(*ends, strict=True))
    return Finding(
        there == len(results),
        f"{there} of {len(results)} runs do. The largest loss is {loss:.1e}, the farthest weight {distance:.1e} away.",
        {"runs": len(results), "there": there, "largest_loss": loss, "largest_distance": distance},
    )


def _judge_growth(results: Results) -> Finding:
    growth = min(results.metric("late_norm_growth"))
    ends = {case: float(np.median(own.metric("weight_norm").values)) for case, own in results.groups("case").items()}
    words = ", ".join(f"{norm:.2f} in case {case}" for case, norm in ends.items())
    return Finding(
        growth > 1.02,
        f"Median norm at the last step: {words}. In the second half of training it grew by {growth - 1:.0%} or more "
        "in every run.",
        {**{f"median_norm_case_{case}": norm for case, norm in ends.items()}, "least_late_growth": growth},
    )


def _judge_floor(results: Results) -> Finding:
    gaps = [loss - FLOOR for loss in results.metric("loss")]
    return Finding(
        min(gaps) > -1e-6 and max(gaps) < 1e-3,
        f"The last loss lies {min(gaps):.1e} to {max(gaps):.1e} above ln(5)/5 = {FLOOR:.4f}.",
        {"least_gap": min(gaps), "largest_gap": max(gaps)},
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


def _claim(id: str, statement: str, paper: str, judge: Judge, arm: str, *cases: int, control: bool = False) -> Claim:
    needs, enough = where(arm=arm, case=cases), at_least(steps=PAPER_STEPS)
    return Claim(id, statement, paper, control, needs=needs, judge=judge, enough=enough)


CLAIMS = (
    _claim(
        "centres_on_points",
        "With the harmonic loss the weights end on the points, with a finite norm: 2.000 in both cases.",
        "The weights converge to the points; norm 2.000 in both cases after 10,000 steps.",
        _judge_centers,
        *("harmonic", 1, 2),
    ),
    _claim(
        "loss_to_zero",
        "The harmonic loss falls to machine precision.",
        "The loss reaches machine precision; the authors' own run stops at 2.5e-6.",
        _judge_precision,
        *("harmonic", 1, 2),
    ),
    _claim(
        "norm_grows",
        "The norm of cross-entropy's weights keeps growing as training goes on.",
        "The norm grows without bound: 6.55 in case 1 and 20.5 in case 2 after 10,000 steps.",
        _judge_growth,
        *("cross_entropy", 1, 2),
    ),
    _claim(
        "floor_without_bias",
        "Without a bias cross-entropy cannot fit case 2: its loss stops at ln(5)/5 = 0.322.",
        "Case 2 is not linearly separable; cross-entropy's loss stops at ln(5)/5 = 0.322.",
        _judge_floor,
        *("cross_entropy", 2),
    ),
    _claim(
        "bias_separates",
        "With a bias, which an ordinary linear layer has, cross-entropy separates case 2 too.",
        "Not reported: the paper's linear layer has no bias.",
        _judge_bias,
        *("cross_entropy_bias", 2),
        control=True,
    ),
    _claim(
        "precise_at_last_step",
        "With plain Adam every run is still there at the last step: loss below 1e-10, weights within 1e-5.",
        "Not reported at this precision.",
        _judge_last_step,
        *("harmonic", 1, 2),
        control=True,
    ),
    _claim(
        "spikes_are_adams",
        "The late spikes of the harmonic loss in case 2 come from Adam, not from the loss: AMSGrad has none.",
        "Not reported.",
        _judge_spikes,
        *("harmonic_amsgrad", 2),
        control=True,
    ),
)


def tables(results: Results) -> list[Table]:
    """Tabulate the last step."""
    rows = [at for at in places(results, case=results.spec.cases, arm=ARMS[2]) if at.arm in ARMS[at.case]]
    medians = {
        "loss": "loss",
        "weight norm": "weight_norm",
        "farthest weight from its point": "weight_distance",
        "accuracy": "accuracy",
    }
    return [tabulate_last_step(results, rows, {"case": lambda at: at.case}, medians)]


def figures(results: Results) -> dict[str, Picture]:
    """Draw one figure per case: curves of every seed, then the first seed's weights and regions."""
    return {f"toy_case_{case}": _draw_case(own, case) for case, own in results.groups("case").items()}


def _draw_case(results: Results, case: int) -> Picture:
    by_arm = {arm: list(found.values()) for arm, found in results.groups("arm").items()}
    figure = drawing.new_figure(10, 10.6)
    figure.suptitle(f"Toy case {case}")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.08, 2))[:, 0]
    curves = {
        "loss": ("loss", "log", 0.0),
        "weight_norm": ("norm of the weights", "linear", 0.0),
        "weight_distance": ("farthest weight from its point", "log", NO_DISTANCE),
    }
    for axes, (curve, (title, scale, least)) in zip(above.subplots(1, 3), curves.items(), strict=True):
        for arm, found in by_arm.items():
            step = found[0].curves["step"]
            series = [np.maximum(r.curves[curve], least)[step > 0] for r in found]
            drawing.draw_head_curves(axes, arm, step[step > 0], series)
        axes.set(title=title, xscale="log", yscale=scale, xlabel="step")
    above.legend(*above.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(by_arm))
    drawn = [arm for arm in HEADS if arm in by_arm]
    for arm, (weights, regions) in zip(drawn, below.subplots(2, len(drawn), squeeze=False).T, strict=True):
        arrays, label = by_arm[arm][0].arrays, HEAD_STYLES[arm].label
        drawing.draw_weights(weights, arrays["weight"], arrays["points"])
        weights.set_title(f"weights, {label}")
        drawing.draw_regions(regions, arrays["grid_extent"], arrays["grid_class"], arrays["grid_probability"])
        drawing.draw_points(regions, arrays["points"])
        regions.set(title=f"regions, {label}", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    return Picture(
        figure,
        f"Toy case {case}: {len(POINTS[case])} points, each a class of its own. Top: median over "
        f"{len(results.spec.seeds)} seeds as a line, their range as a band; a distance of exactly 0 is drawn at "
        f"{NO_DISTANCE:.0e}. Middle: the first seed's final weights as dots, the points as rings (the scales "
        "differ). Bottom: the class that wins, stronger where it is more probable.",
    )


EXPERIMENT = Experiment(
    name="toy_cases",
    title="Two toy cases: where the weights go",
    figure="Fig. 1 b, c",
    claims=CLAIMS,
    version=2,
    profiles={
        "smoke": ToySpec(seeds=(0, 1), steps=200, grid_size=41),
        "quick": ToySpec(seeds=(0, 1, 2)),
        "full": ToySpec(seeds=tuple(range(20))),
    },
    work=Work(cells, run_cells, group=lambda cell: (cell.case, cell.arm)),
    tables=tables,
    figures=figures,
)
