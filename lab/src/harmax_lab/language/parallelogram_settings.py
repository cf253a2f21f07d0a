"""How much the comparison of two embeddings depends on the 32 settings of the authors' sweep: numbers and figure."""

# S settings

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import SETTINGS
from harmax.figures import headline, line_handle, mark_handle, new_figure
from harmax.inspect.embedding import MEASURE
from harmax_lab.kit.drawing import beside
from harmax_lab.kit.results import Results
from harmax_lab.kit.tables import Column, Table, tabulate
from harmax_lab.language.arms import PAPERS, STANDARD, STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Ratios = Mapping[str, np.ndarray]
"""By task the harmonic median by the standard one, (2, S): of losses, and of losses by those of shuffled pairs."""

SETTINGS_CAPTION = (
    "Median loss of the harmonic embedding by that of the standard one, in each of the 32 settings that the authors "
    "swept: the unit of the loss, and the kind and number of principal components. A dot is a task; blue dots are "
    "tasks in which the harmonic loss is lower. Black: geometric mean over the tasks. Below, each median is first "
    "divided by that of the model's own shuffled pairs, where the unit cancels. Shaded: the paper's setting."
)
TITLES = ("Harmonic median loss by standard one", "The same, each first divided by its shuffled pairs' median")
SPREAD = 0.28  # of the dots of a setting, where settings are 1 apart


def settings_ratio(results: Results, tasks: Sequence[str]) -> Ratios:
    """Return the ratios of every task; with several seeds the geometric mean of the seeds' ratios."""
    ratios = {}
    for task in tasks:
        arms = [results.where(arm=arm).array(f"{MEASURE}/{task}/medians").by("seed") for arm in (PAPERS, STANDARD)]
        if seeds := sorted(arms[0].keys() & arms[1].keys()):
            medians = [np.stack([arm[seed] for seed in seeds]).astype(float) for arm in arms]
            with np.errstate(divide="ignore", invalid="ignore"):  # an exact parallelogram has a loss of 0
                logs = np.log(medians[0]) - np.log(medians[1])
                ratios[task] = np.exp(np.stack([logs[:, 0], logs[:, 0] - logs[:, 1]], axis=1).mean(0))
    return ratios


def settings_table(ratios: Ratios) -> Table:
    """Tabulate in how many tasks the harmonic loss is lower in each setting, and the mean ratio."""
    stacked = np.stack(list(ratios.values()), axis=-1) if ratios else np.empty((2, 0, 0))  # 2, S, tasks

    def lower(found: np.ndarray) -> str:
        return f"{int((found < 1).sum())} of {len(found)}"

    setting: dict[str, Column] = {
        "scale": lambda at: at[0].scale.replace("_", " "),
        "components of": lambda at: at[0].fit,
        "components": lambda at: at[0].components,
        "lower in": lambda at: lower(at[1]),
        "lower against shuffled in": lambda at: lower(at[2]),
        "harmonic / standard": lambda at: _mean(at[1]),
        "the same, each by its shuffled": lambda at: _mean(at[2]),
    }
    title = "Settings: tasks in which the harmonic median is lower"
    return tabulate(title, zip(SETTINGS, *stacked, strict=False), setting)


def _mean(found: np.ndarray) -> float | None:
    usable = np.isfinite(found).all() and (found > 0).all()
    return round(geometric_mean(found.tolist()), 3) if usable else None


def draw_settings(ratios: Ratios) -> "Figure":
    """Draw the ratio of every task in every setting, as it is and against the models' own null."""
    figure = new_figure(11, 7.6)
    panels = figure.subplots(2, 1, sharex=True)
    stacked = np.stack(list(ratios.values()))  # tasks, 2, S
    for row, (axes, title) in enumerate(zip(panels, TITLES, strict=True)):
        _draw_ratios(axes, stacked[:, row])
        axes.set_title(title, pad=36 if row == 0 else 8)
        axes.set_ylabel("ratio")
    _name_settings(panels[0])
    panels[1].set_xticks(range(len(SETTINGS)), labels=[str(one.components) for one in SETTINGS], fontsize=8)
    panels[1].set_xlabel("number of principal components, of the vocabulary or of the task's words")
    blue, orange = (STYLES[arm].color for arm in (PAPERS, STANDARD))
    handles = [
        mark_handle("task with a lower harmonic loss", "o", blue, size=5),
        mark_handle("task with a higher one", "o", orange, size=5),
        line_handle("mean over the tasks", "black"),
    ]
    headline(figure, "Harmonic by standard parallelogram loss in the 32 settings of the authors", handles)
    return figure


def _draw_ratios(axes: "Axes", ratios: np.ndarray) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.exp(np.log(ratios).mean(0))
    axes.set_yscale("log")
    axes.axvspan(-0.5, 0.5, color="#eeeeee", zorder=0)  # the paper's setting
    axes.axhline(1, color="#444444", linewidth=1)
    for place, found in enumerate(ratios.T):
        colors = [STYLES[PAPERS if one < 1 else STANDARD].color for one in found]
        axes.scatter(beside(place, len(found), SPREAD), found, c=colors, s=9, linewidths=0, alpha=0.8, zorder=2)
    for place, mean in enumerate(means):
        axes.plot([place - 0.38, place + 0.38], [mean, mean], color="black", linewidth=1.8, zorder=3)
    for edge in range(4, len(SETTINGS), 4):
        axes.axvline(edge - 0.5, color="#bbbbbb", linewidth=1.2 if edge % 8 == 0 else 0.5)
    axes.grid(False, axis="x")
    axes.set_xlim(-0.5, len(SETTINGS) - 0.5)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(FixedLocator([0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _name_settings(axes: "Axes") -> None:
    words: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8.5, "transform": axes.get_xaxis_transform()}
    for place, setting in list(enumerate(SETTINGS))[::4]:
        axes.text(place + 1.5, 1.01, f"of the {setting.fit}", **words)
        if place % 8 == 0:
            heading = f"unit: {setting.scale.replace('_', ' ')}"
            axes.text(place + 3.5, 1.06, heading, fontweight="bold", **words)
