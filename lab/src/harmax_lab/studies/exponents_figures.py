"""Figures of the exponents: scores and epochs against the exponent, with the learnable one beside."""

# E exponents

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import Interval, bootstrap_interval
from harmax.figures import Picture
from harmax_lab.algorithmic.runs import TITLES
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit import drawing
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.store import CellResult
from harmax_lab.studies.outcomes import BODIES, SCORES, Outcomes, StudySpec, collect

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEARNED = "learned"
COLORS = {"mlp": "#0072B2", "transformer": "#009E73"}
TICKS = (1, 2, 4, 8, 16)
LEARNED_AT = {"mlp": 34.0, "transformer": 48.0}
"""Where the learnable exponent's marks stand: beside the axis, since it may end anywhere, at 5 or at a million."""
EPOCH_TICKS = (10, 100, 1000)


def arm_of(cell: Any) -> str:
    """Name a cell's arm: its exponent, or that it is learned."""
    return LEARNED if cell.head == "learnable" else f"{cell.exponent:g}"


def figures(spec: StudySpec, results: Mapping[Any, CellResult]) -> dict[str, Picture]:
    """Draw a figure a protocol."""
    return {
        f"exponents_{protocol}": Picture(
            draw(spec, protocol, results),
            f"Scores, and the epoch from which runs generalize, against the exponent of the distance; protocol "
            f"{protocol}, {len(spec.seeds)} seeds. Lines: means (of epochs medians, left out where most runs never "
            "generalize); bands: 95 % intervals. Open marks with bars, right: the learnable exponent; under a column "
            "the median of where it ended. Dotted: the square root of the width.",
        )
        for protocol in spec.protocols
        if any(cell.protocol == protocol for cell in results)
    }


def draw(spec: StudySpec, protocol: str, results: Mapping[RunCell, CellResult]) -> "Figure":
    """Draw a row a score and one for epochs, a column a task."""
    outcomes, tasks = collect(results, arm_of), spec.tasks_under(protocol)
    rows = {**SCORES, "variance": "variance in\ntwo components", "test_epoch": "epoch"}
    figure = drawing.new_figure(max(2.1 * len(tasks) + 0.8, 5.5), 1.75 * len(rows) + 0.9)
    grid = figure.subplots(len(rows), len(tasks), sharex=True, sharey="row", squeeze=False)
    for row, (score, words) in zip(grid, rows.items(), strict=True):
        for axes, task in zip(row, tasks, strict=True):
            axes.axvline(4, color="#999999", linewidth=0.8, linestyle=":")
            for model in spec.models:
                _draw_model(axes, outcomes, (protocol, model, task), score)
            axes.set(xscale="log")
            axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
            axes.axvspan(26, 62, color="#f4f4f4", linewidth=0, zorder=0)
            axes.set_xlim(0.85, 62)
            if score == "test_epoch":
                axes.set(yscale="log", ylim=(3, 1.5 * max(20, *map(spec.epochs, spec.models))))
                axes.set_yticks(EPOCH_TICKS[:-1] if axes.get_ylim()[1] < EPOCH_TICKS[-1] else EPOCH_TICKS)
                axes.yaxis.set_major_formatter("{x:.0f}")
            else:
                axes.set(ylim=(min(-0.04, axes.get_ylim()[0]), 1.04))
            axes.minorticks_off()
        row[0].set_ylabel(words)
    for axes, task in zip(grid[0], tasks, strict=True):
        axes.set_title(TITLES[task], fontsize=9)
    for axes, task in zip(grid[-1], tasks, strict=True):
        ended = [_ended(outcomes, (protocol, model, task)) for model in spec.models]
        told = ", ".join(found for found in ended if found)
        axes.set_xlabel(f"exponent\n(learned: {told})" if told else "exponent", fontsize=7.5)
    handles = [
        drawing.line_handle(BODIES[model], COLORS[model], MODEL_STYLES[model, "linear"].line) for model in spec.models
    ]
    handles.append(drawing.mark_handle("learnable", "D", "#444444", face="white", size=5))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _draw_model(axes: "Axes", outcomes: Outcomes, where: tuple[str, str, str], score: str) -> None:
    protocol, model, task = where
    arms = {arm: list(found.values()) for (*at, arm), found in outcomes.items() if tuple(at) == (protocol, model, task)}
    learned = arms.pop(LEARNED, [])
    fixed = sorted(arms, key=float)
    color, line = COLORS[model], MODEL_STYLES[model, "linear"].line
    if fixed:
        x_E = np.array([float(arm) for arm in fixed])
        middle, low, high = np.array([_interval(arms[arm], score) for arm in fixed]).T
        seen = np.where(np.isfinite(middle), middle, np.nan)
        axes.plot(x_E, seen, color=color, linestyle=line, marker="o", markersize=3, linewidth=1.3)
        # Where an interval reaches infinity the band leaves the panel at the top.
        top = np.where(np.isfinite(high), high, np.where(np.isfinite(middle), 10 * middle, np.nan))
        axes.fill_between(x_E, low, top, where=np.isfinite(middle), color=color, alpha=0.15, linewidth=0)
    if learned:
        middle, low, high = _interval(learned, score)
        if np.isfinite(middle):
            ends = [[middle - low], [min(high, 10 * middle) - middle]] if score == "test_epoch" else None
            bars = ends or [[middle - low], [high - middle]]
            style: dict[str, Any] = {"color": color, "marker": "D", "markersize": 4.5, "markerfacecolor": "white"}
            axes.errorbar([LEARNED_AT[model]], [middle], yerr=bars, elinewidth=1.2, zorder=4, **style)


def learned_exponents(outcomes: Outcomes, where: tuple[str, str, str]) -> list[float]:
    """Return where the learnable exponent ended at a protocol, model and task, in runs that did not diverge."""
    found = [result.metrics for result in outcomes.get((*where, LEARNED), {}).values()]
    return [metrics["exponent"] for metrics in found if metrics["diverged_at"] is None]


def _ended(outcomes: Outcomes, where: tuple[str, str, str]) -> str:
    ends = learned_exponents(outcomes, where)
    if not ends:
        return ""
    middle = float(np.median(ends))
    return f"{BODIES[where[1]]} {middle:,.0f}" if middle >= 100 else f"{BODIES[where[1]]} {middle:.2g}"


def _interval(results: list[CellResult], score: str) -> Interval:
    statistic = "median" if score == "test_epoch" else "mean"
    return bootstrap_interval([result.metrics[score] for result in results], statistic=statistic)
