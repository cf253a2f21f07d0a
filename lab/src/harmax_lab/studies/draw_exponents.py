"""The figures of the exponents: tokens at every n, and scores against the exponent."""

# E exponents

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import explained_variance
from harmax.figures import headline
from harmax_lab.algorithmic import planes
from harmax_lab.algorithmic.runs import BODIES, TITLES
from harmax_lab.kit import drawing
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.results import interval
from harmax_lab.studies.compare_arms import Place
from harmax_lab.studies.score_runs import SCORES
from harmax_lab.tasks import find_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEARNED = "learned"
"""The arm whose exponent is learned."""
COLUMNS = 4
"""Seeds that are drawn per model, as in the paper."""
COLORS = {"mlp": "#0072B2", "transformer": "#009E73"}
ROOT, ROOT_COLOR = 4, "#666666"
"""The square root of the width."""
TICKS = (1, 2, 4, 8, 16)
LEARNED_AT = {"mlp": 34.0, "transformer": 48.0}
"""Where the learnable exponent's marks stand: beside the axis, since it may end anywhere, at 5 or at a million."""
ROWS = {**SCORES, "variance": "variance in\ntwo components"}


def sweep(places: Sequence[Place], names: Mapping[int, str]) -> "Figure":
    """Draw the tokens of some seeds at every n, a row per n, of models on one task."""
    task = places[0].tasks[0]
    structure = find_task(task, protocol=places[0].protocol).structure
    seeds = sorted({seed for place in places for runs in place.runs.values() for seed in runs})[:COLUMNS]
    columns = {(place.model, seed): f"{BODIES[place.model]}\nseed {seed}" for place in places for seed in seeds}
    size = (1.0 * len(columns) + 0.6, 1.12 * len(names) + 0.9)
    figure, panels = drawing.facets({n: f"n = {n}" for n in names}, columns, size=size, font=7.5)
    runs = {place.model: place.runs for place in places}
    for (n, (model, seed)), axes in panels.items():
        embedding = planes.draw_run(axes, structure, runs[model].get((task, names[n]), {}).get(seed), size=2.2)
        if embedding is not None:
            axes.set_xlabel(planes.percent(explained_variance(embedding)), fontsize=6.5, labelpad=1.5)
        axes.yaxis.label.set_fontsize(8)
    figure.suptitle(f"{TITLES[task]}: what the harmonic exponent n does", fontsize=10.5)
    return figure


def scores(places: Sequence[Place]) -> "Figure":
    """Draw the scores against the exponent, a row per score and a column per task, of models under one protocol."""
    tasks = places[0].tasks
    lines = {one.model: MODEL_STYLES[one.model, "linear"].line for one in places}
    handles = [drawing.line_handle(BODIES[model], COLORS[model], line) for model, line in lines.items()]
    handles.append(drawing.line_handle(f"exponent {ROOT}, the square root of the width", ROOT_COLOR, ":"))
    learns = any(LEARNED in place.arms for place in places)
    if learns:
        handles.append(drawing.mark_handle("learnable", "D", "#444444", face="white", size=5))
    figure, panels = drawing.facets(
        ROWS,
        {task: TITLES[task] for task in tasks},
        size=(max(2.1 * len(tasks) + 0.8, 6.6), 1.75 * len(ROWS) + 1.1),
        font=9,
        sharex=True,
        sharey="row",
    )
    for (score, task), axes in panels.items():
        axes.axvline(ROOT, color=ROOT_COLOR, linewidth=0.9, linestyle=":")
        own = [place._replace(tasks=(task,)) for place in places]
        for place in own:
            _draw_model(axes, place, score)
        axes.set(xscale="log", ylim=(min(-0.04, axes.get_ylim()[0]), 1.04))
        axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axes.set_xlim(0.85, 62 if learns else 23)
        if learns:
            axes.axvspan(26, 62, color="#f4f4f4", linewidth=0, zorder=0)
        if score == list(ROWS)[-1]:
            axes.set_xlabel(f"exponent{_ends(own)}", fontsize=7.5)
        axes.minorticks_off()
    headline(figure, f"Structure and accuracy against the harmonic exponent, {places[0].protocol} protocol", handles)
    return figure


def learned_exponents(place: Place) -> list[float]:
    """Return where the learnable exponent ended on a place's one task, in runs that did not diverge."""
    return [metrics["exponent"] for metrics in place.metrics(LEARNED) if metrics["diverged_at"] is None]


def _ends(places: Sequence[Place]) -> str:
    ends = {BODIES[one.model]: float(np.median(found)) for one in places if (found := learned_exponents(one))}
    words = ", ".join(f"{name} {end:,.0f}" if end >= 100 else f"{name} {end:.2g}" for name, end in ends.items())
    return f"\n(learned: {words})" if words else ""


def _draw_model(axes: "Axes", place: Place, score: str) -> None:
    color, line = COLORS[place.model], MODEL_STYLES[place.model, "linear"].line
    found = {arm: interval([one[score] for one in runs]) for arm in place.arms if (runs := place.metrics(arm))}
    learned = found.pop(LEARNED, None)
    if fixed := sorted(found, key=float):
        style: dict[str, Any] = {"linestyle": line, "marker": "o", "markersize": 3, "linewidth": 1.3}
        drawing.draw_ranges(axes, np.array(fixed, dtype=float), [found[arm] for arm in fixed], color=color, **style)
    if learned:
        middle, low, high = learned
        style = {"color": color, "marker": "D", "markersize": 4.5, "markerfacecolor": "white"}
        ends = [[middle - low], [high - middle]]
        axes.errorbar([LEARNED_AT[place.model]], [middle], yerr=ends, elinewidth=1.2, zorder=4, **style)
