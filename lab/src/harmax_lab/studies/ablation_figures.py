"""Figures of the ablation: what each switch does, and what the embeddings look like."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harmax.figures import HEAD_STYLES, HeadStyle, Picture
from harmax_lab.algorithmic import planes
from harmax_lab.algorithmic.runs import TITLES
from harmax_lab.algorithmic.training import RunCell, task_of
from harmax_lab.kit import drawing
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.comparisons import switches
from harmax_lab.studies.drawn import add_legend, draw_effects
from harmax_lab.studies.outcomes import BODIES, SCORES, Outcomes, Place, StudySpec, collect, contrast

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS: dict[str, HeadStyle] = {
    "linear": HeadStyle("Inner product, softmax", HEAD_STYLES["cross_entropy"].color, "--"),
    "l2": HeadStyle("Distance, softmax", HEAD_STYLES["cross_entropy_bias"].color, "-."),
    "dot_harmax": HeadStyle("Inner product, HarMax", HEAD_STYLES["harmonic_2"].color, ":"),
    "harmonic": HeadStyle("Distance, HarMax", HEAD_STYLES["harmonic"].color, "-"),
}
SWITCHES = switches("dot_harmax")
"""Weights of the four heads in each effect."""

Results = Mapping[RunCell, CellResult]


def figures(spec: StudySpec, results: Results) -> dict[str, Picture]:
    """Draw the effects, a figure a protocol, and the embeddings, a figure a protocol and model."""
    drawn = {}
    outcomes = collect(results, lambda cell: cell.head)
    for protocol in spec.protocols:
        if not any(cell.protocol == protocol for cell in results):
            continue
        drawn[f"effects_{protocol}"] = Picture(
            draw_switches(spec, protocol, outcomes, SWITCHES),
            f"What each switch does to the scores, protocol {protocol}, untuned: mean over seeds and 95 % interval, by "
            "task and averaged over tasks (last row); gray where the interval spans 0. Distance and HarMax: mean "
            "effect of a switch over the two settings of the other; interaction: how much more each does with the "
            "other on.",
        )
        for model in spec.models:
            found = {cell: one for cell, one in results.items() if (cell.protocol, cell.model) == (protocol, model)}
            if found:
                drawn[f"embeddings_{model}_{protocol}"] = Picture(
                    draw_embeddings(spec, Place(protocol, model, spec.tasks_under(protocol)), found),
                    f"Embeddings of {BODIES[model]} in the plane of two components, protocol {protocol}: of each head "
                    "and task the seed whose share of variance in the plane (below) is the median.",
                )
    return drawn


def draw_switches(
    spec: StudySpec, protocol: str, outcomes: Outcomes, effects: Mapping[str, Mapping[str, float]]
) -> "Figure":
    """Draw a row a score, a column an effect."""
    whole = {model: Place(protocol, model, spec.tasks_under(protocol)) for model in spec.models}
    labels = [place.words for place in next(iter(whole.values())).each()]
    figure = drawing.new_figure(10, len(SCORES) * (0.28 * len(labels) + 0.75) + 0.6)
    grid = figure.subplots(len(SCORES), len(effects), sharey=True, sharex="row", squeeze=False)
    for row, (score, words) in zip(grid, SCORES.items(), strict=True):
        for axes, (name, weights) in zip(row, effects.items(), strict=True):
            draw_effects(
                axes,
                labels,
                {
                    model: [contrast(outcomes, one, weights, score) for one in place.each()]
                    for model, place in whole.items()
                },
            )
            axes.set_title(f"{name}: {words}", fontsize=9)
    add_legend(figure, spec.models)
    return figure


def draw_embeddings(spec: StudySpec, place: Place, results: Results) -> "Figure":
    """Draw a row a head, a column a task."""
    figure = drawing.new_figure(1.95 * len(place.tasks) + 0.9, 1.95 * len(HEADS) + 0.3)
    grid = figure.subplots(len(HEADS), len(place.tasks), squeeze=False)
    outcomes = collect(results, lambda cell: cell.head)
    for row, (head, style) in zip(grid, HEADS.items(), strict=True):
        for axes, task in zip(row, place.tasks, strict=True):
            found = outcomes.get((place.protocol, place.model, task, head), {})
            cell = RunCell(place.protocol, task, place.model, head, spec.train_fraction, 0)
            axes.set_xlabel(planes.draw_middle(axes, task_of(cell).structure, found, size=3.4), fontsize=8)
        row[0].set_ylabel(style.label.replace(", ", "\n"), fontsize=9)
    for axes, task in zip(grid[0], place.tasks, strict=True):
        axes.set_title(TITLES[task], fontsize=9, loc="center")
    return figure
