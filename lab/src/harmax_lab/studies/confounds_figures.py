"""Figure of the confounds: the gain of harmonic loss under each condition."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harmax.figures import Picture
from harmax_lab.kit import drawing
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.conditions import CONDITIONS, ConfoundCell, gain_in, outcomes_of
from harmax_lab.studies.drawn import add_legend, draw_effects
from harmax_lab.studies.outcomes import SCORES, Outcomes, Place, StudySpec, contrast

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures(spec: StudySpec, results: Mapping[ConfoundCell, CellResult]) -> dict[str, Picture]:
    """Draw the gains."""
    found = {cell.condition for cell in results}
    conditions = [name for name in CONDITIONS if name in found]
    if not conditions:
        return {}
    caption = (
        "What harmonic loss gains over cross-entropy, both trained alike, under each condition and task; untuned, "
        f"{len(spec.seeds)} seeds: mean and 95 % interval, gray where it spans 0. To the right of 0 harmonic is better."
    )
    return {"gains": Picture(draw_gains(spec, outcomes_of(results), conditions), caption)}


def draw_gains(spec: StudySpec, outcomes: Outcomes, conditions: list[str]) -> "Figure":
    """Draw a row a score, a column a task and one for their mean."""
    whole = {model: Place("matched", model, spec.tasks) for model in spec.models}
    columns = next(iter(whole.values())).each()
    figure = drawing.new_figure(1.75 * len(columns) + 2.2, len(SCORES) * (0.3 * len(conditions) + 0.75) + 0.6)
    grid = figure.subplots(len(SCORES), len(columns), sharex="row", sharey=True, squeeze=False)
    for row, (score, words) in zip(grid, SCORES.items(), strict=True):
        for place, axes in enumerate(row):
            gains = {
                model: [contrast(outcomes, there.each()[place], gain_in(one), score) for one in conditions]
                for model, there in whole.items()
            }
            draw_effects(axes, [CONDITIONS[one].label for one in conditions], gains)
            axes.locator_params(axis="x", nbins=3)
        row[0].set_ylabel(words.replace(" in ", " in\n"), fontsize=9)
    for axes, column in zip(grid[0], columns, strict=True):
        axes.set_title(column.words, fontsize=9)
    add_legend(figure, spec.models)
    return figure
