"""Figures of the rivals: effects against harmonic, the tuned ablation, a map of scores, the surfaces of the search."""

# A arms, T tasks, L learning rates, W weight decays

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.figures import Picture
from harmax_lab.algorithmic.runs import TITLES
from harmax_lab.kit import drawing
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.ablation_figures import draw_switches
from harmax_lab.studies.arms import ARMS, RivalCell
from harmax_lab.studies.comparisons import reference_of
from harmax_lab.studies.drawn import add_legend, draw_effects
from harmax_lab.studies.outcomes import BODIES, SCORES, Outcomes, Place, collect, per_seed, versus
from harmax_lab.studies.rivals_claims import CORNERS, SQUARE
from harmax_lab.studies.search import with_their_search

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from harmax_lab.studies.rivals import RivalsSpec

Results = Mapping[RivalCell, CellResult]
COLUMNS = 7
UNTIED = "\N{DAGGER}"
NOTE = f" {UNTIED}: untied, as is the harmonic loss that it is held against."
HOW = {"matched": "each loss tuned", "authors": "untuned"}


def figures(spec: "RivalsSpec", results: Results) -> dict[str, Picture]:
    """Draw, of what is there, the effects and the scores of each protocol and the search of each model."""
    drawn = {}
    outcomes = collect(results, lambda cell: cell.loss)
    for protocol in spec.protocols:
        losses = [loss for loss in spec.losses if any(at[0] == protocol and at[3] == loss for at in outcomes)]
        if not losses:
            continue
        title = f"protocol {protocol}, {HOW[protocol]}, {len(spec.seeds)} seeds"
        for score, words in SCORES.items():
            if len(losses) > 1:
                drawn[f"effects_{score}_{protocol}"] = Picture(
                    draw_comparisons(spec, outcomes, protocol, losses, score),
                    f"{words.capitalize()} of each loss minus that of harmonic loss; {title}: mean over seeds and 95 % "
                    "interval, gray where it spans 0. To the right of 0 a loss is better than harmonic."
                    + (NOTE if protocol == "matched" else ""),
                )
        if protocol == "matched" and set(CORNERS) <= set(losses):
            drawn["tuned_effects"] = Picture(
                draw_switches(spec, protocol, outcomes, SQUARE),
                f"What distance and HarMax do to the scores, protocol {protocol}, each of the four losses tuned: mean "
                "over seeds and 95 % interval, gray where it spans 0. Spherical softmax, p ~ (w . x)^2, stands for the "
                "inner product under HarMax.",
            )
        drawn[f"scores_{protocol}"] = Picture(
            draw_scores(spec, outcomes, protocol, losses), f"Scores in hundredths, means over seeds; {title}."
        )
    for model in spec.models:
        found = {loss: run for (loss, of), run in with_their_search(results).items() if of == model}
        if found:
            drawn[f"search_{model}"] = Picture(
                draw_search(spec, found),
                f"The search, {BODIES[model]}: test accuracy at its end, %, by learning rate and weight decay: mean of "
                f"{len(spec.search_seeds)} held-out seeds and of {len(spec.search_tasks)} tasks. Framed: the setting "
                "that was chosen.",
            )
    return drawn


def draw_comparisons(spec: "RivalsSpec", outcomes: Outcomes, protocol: str, losses: list[str], score: str) -> "Figure":
    """Draw a row a loss, a column a task and one for their mean."""
    whole = {model: Place(protocol, model, spec.tasks_under(protocol)) for model in spec.models}
    others = [loss for loss in losses if loss != "harmonic"]
    against = {loss: reference_of(loss, "harmonic", protocol) for loss in others}
    columns = next(iter(whole.values())).each()
    figure = drawing.new_figure(1.75 * len(columns) + 2.2, 0.27 * len(others) + 1.4)
    grid = figure.subplots(1, len(columns), sharex=True, sharey=True, squeeze=False)[0]
    for place, axes in enumerate(grid):
        draw_effects(
            axes,
            [ARMS[loss].label + UNTIED * (against[loss] != "harmonic") for loss in others],
            {
                model: [versus(outcomes, there.each()[place], loss, against[loss], score) for loss in others]
                for model, there in whole.items()
            },
        )
        axes.set_title(columns[place].words, fontsize=9)
        axes.locator_params(axis="x", nbins=3)
    figure.supxlabel(f"{SCORES[score]}, minus harmonic's", fontsize=9)
    add_legend(figure, spec.models)
    return figure


def draw_scores(spec: "RivalsSpec", outcomes: Outcomes, protocol: str, losses: list[str]) -> "Figure":
    """Draw a panel a model and score: a row a loss, a column a task."""
    tasks = spec.tasks_under(protocol)
    figure = drawing.new_figure(
        len(SCORES) * (0.5 * len(tasks) + 0.3) + 2.4, (0.24 * len(losses) + 1.5) * len(spec.models)
    )
    grid = figure.subplots(len(spec.models), len(SCORES), sharey=True, squeeze=False)
    for row, model in zip(grid, spec.models, strict=True):
        for axes, (score, words) in zip(row, SCORES.items(), strict=True):
            values_AT = np.array(
                [[_mean(outcomes, Place(protocol, model, (task,)), loss, score) for task in tasks] for loss in losses]
            )
            _draw_map(axes, values_AT)
            axes.set_xticks(range(len(tasks)), [TITLES[task].split()[0] for task in tasks], rotation=40, ha="right")
            axes.set_yticks(range(len(losses)), [ARMS[loss].label for loss in losses])
            axes.tick_params(labelsize=8, length=0)
            axes.set_title(words.replace(" in ", " in\n"), fontsize=9)
        row[0].set_ylabel(BODIES[model])
    return figure


def draw_search(spec: "RivalsSpec", found: Mapping[str, CellResult]) -> "Figure":
    """Draw a panel a loss: a row a learning rate, a column a weight decay."""
    rows = -(-len(found) // COLUMNS)
    columns = min(COLUMNS, len(found))
    figure = drawing.new_figure(1.85 * columns + 0.6, 1.6 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(found) :]:
        axes.set_visible(False)
    for axes, (loss, result) in zip(grid.flat, found.items(), strict=False):
        _draw_map(axes, result.arrays["search_late"].mean((2, 3)))
        rate, decay = result.metrics["choice"]
        outline: dict[str, Any] = {"fill": False, "edgecolor": "#D55E00", "linewidth": 2.2, "zorder": 4}
        axes.add_patch(_rectangle((decay - 0.5, rate - 0.5), **outline))
        axes.set_xticks(range(len(spec.weight_decays)), [f"{one:g}" for one in spec.weight_decays])
        axes.set_yticks(range(len(spec.learning_rates)), [f"{one:g}" for one in spec.learning_rates])
        axes.tick_params(labelsize=7.5, length=0)
        axes.set_title(ARMS[loss].label, fontsize=8)
    figure.supxlabel("weight decay", fontsize=9)
    figure.supylabel("learning rate", fontsize=9)
    return figure


def _draw_map(axes: "Axes", values: np.ndarray) -> None:
    axes.grid(False)
    axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for place, value in np.ndenumerate(values):
        if np.isfinite(value):
            color = "white" if value > 0.5 else "#222222"
            axes.text(place[1], place[0], f"{round(100 * value)}", ha="center", va="center", fontsize=7, color=color)


def _rectangle(corner: tuple[float, float], **style: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, 1, 1, **style)


def _mean(outcomes: Outcomes, place: Place, loss: str, score: str) -> float:
    found = list(per_seed(outcomes, place, {loss: 1.0}, score).values())
    return float(np.mean(found)) if found else np.nan
