"""Two toy problems in the plane: harmonic centers land on the points, cross-entropy's weights run away (Fig. 1 b, c).

    harmax run toy_cases            10 seeds, under a minute on one CPU core
    harmax run toy_cases --full     20 seeds

Each point is a class of its own, so that the weights (one row per class) live in the plane of the points.

toy_training.py has the points, the training and what is measured; toy_claims.py the claims and their judges.
"""

from functools import partial
from typing import Any

import numpy as np

from harmax.figures import HEAD_STYLES, Picture
from harmax_lab.kit import drawing
from harmax_lab.kit.experiment import Experiment, Work
from harmax_lab.kit.results import Results
from harmax_lab.kit.tables import Column, Table, places, tabulate
from harmax_lab.toy.heads import tabulate_last_step
from harmax_lab.toy.toy_claims import CLAIMS, in_steps
from harmax_lab.toy.toy_training import ARMS, HEADS, LEVELS, POINTS, ToySpec, cells, measure, run_cells

NO_DISTANCE = 1e-8  # below the spacing of float32 at 1
TITLES = {1: "Toy case 1: two points", 2: "Toy case 2: five points, one of them between the others"}
SEEN = {
    1: "The harmonic norm settles at 2, and cross-entropy's keeps growing. The first tenfold fall of the loss takes "
    "both equally long.",
    2: "Cross-entropy without a bias has no region for point 5, the paper's red point, and its loss stops at ln(5)/5. "
    "A bias gives it one.",
}


def tables(results: Results) -> list[Table]:
    """Tabulate the last step, and when loss and norm settled."""
    rows = [at for at in places(results, case=results.spec.cases, arm=ARMS[2]) if at.arm in ARMS[at.case]]
    medians = {
        "loss": "loss",
        "weight norm": "weight_norm",
        "farthest weight from its point": "weight_distance",
        "accuracy": "accuracy",
    }
    waits: dict[str, Column] = {
        "case": lambda at: at.case,
        "head": lambda at: HEAD_STYLES[at.arm].label,
        **{f"loss below {level:g}": partial(_wait, metric=f"below_{level:g}") for level in LEVELS},
        "norm within 1 % of its end": partial(_wait, metric="norm_settled"),
    }
    return [
        tabulate_last_step(results, rows, {"case": lambda at: at.case}, medians),
        tabulate("Steps until it stays so, median over seeds", rows, waits),
    ]


def _wait(at: Any, metric: str) -> str | None:
    return in_steps(at.own.metric(metric).median()) if at.own else None


def figures(results: Results) -> dict[str, Picture]:
    """Draw one figure per case: curves of every seed, then the first seed's weights and regions."""
    return {f"toy_case_{case}": _draw_case(own, case) for case, own in results.groups("case").items()}


def _draw_case(results: Results, case: int) -> Picture:
    by_arm = {arm: list(found.values()) for arm, found in results.groups("arm").items()}
    figure = drawing.new_figure(10, 10.6)
    figure.suptitle(TITLES[case])
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
        f"Toy case {case}: {len(POINTS[case])} points, each a class of its own, {results.spec.steps:,} steps of Adam "
        f"on all points. {SEEN[case]} Top: median over {len(results.spec.seeds)} seeds as a line, their range as a "
        f"band; a distance of exactly 0 is drawn at {NO_DISTANCE:.0e}. Middle: the first seed's final weights as "
        "dots, the points as rings (the scales differ). Bottom: the class that wins, stronger where it is more "
        "probable.",
    )


EXPERIMENT = Experiment(
    name="toy_cases",
    title="Two toy cases: where the weights go",
    figure="Fig. 1 b, c",
    claims=CLAIMS,
    version=2,
    profiles={
        "smoke": ToySpec(seeds=(0, 1), steps=200, grid_size=41),
        "quick": ToySpec(seeds=tuple(range(10))),
        "full": ToySpec(seeds=tuple(range(20))),
    },
    work=Work(cells, run_cells, group=lambda cell: (cell.case, cell.arm), seeds_apart=True),
    measure=measure,
    tables=tables,
    figures=figures,
)
