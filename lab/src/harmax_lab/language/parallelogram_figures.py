"""Pictures of `parallelograms`: distributions of the losses, quadrilaterals, settings, the cloud of all tokens."""

from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import SETTINGS
from harmax.errors import needs
from harmax.figures import HEAD_STYLES, Picture
from harmax.inspect.embedding import RANKS
from harmax.inspect.word_figures import LabeledModel, draw_distributions, draw_ranked, draw_token_centers
from harmax_lab.kit import drawing
from harmax_lab.language.arms import HARMONIC, STANDARD
from harmax_lab.language.gpt2 import LanguageSpec
from harmax_lab.language.measured import Results, settings_ratio, tasks_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {STANDARD: HEAD_STYLES["cross_entropy"].color, HARMONIC: HEAD_STYLES["harmonic"].color}
GRAY = "#777777"  # arms beside the two
STRONGEST = 1.0  # of the colors' scale: a factor of two
WORDS = {"best": "lowest", "median": "median", "worst": "highest"}


def labeled(results: Results) -> list[LabeledModel]:
    """Return every cell's model as figures show it, under its arm's name and color."""
    return [LabeledModel(cell.arm, COLORS.get(cell.arm, GRAY), found.arrays) for cell, found in results.items()]


def first_of(spec: LanguageSpec, results: Results) -> list[LabeledModel]:
    """Return the first finished seed of each arm, in the spec's order."""
    models = labeled(results)
    firsts = ([model for model in models if model.name == arm][:1] for arm in spec.arms)
    return [model for found in firsts for model in found]


def figures(spec: LanguageSpec, results: Results) -> dict[str, Picture]:
    """Draw everything that the finished cells hold."""
    tasks = tasks_of(results)
    if not tasks:
        return {}
    first = first_of(spec, results)
    several = len(results) > len(first)
    drawn = {
        "parallelogram_cdf": Picture(
            draw_distributions(labeled(results), tasks),
            "Share of the quadruples whose parallelogram loss is at most this, in the paper's setting (two components "
            "of the vocabulary, in units of its spread along them). Solid: pairs of one relation; dashed: the same "
            "with shuffled partners. Further left is closer to a parallelogram; what the relation does is the space "
            f"between solid and dashed.{' A line a seed.' if several else ''}",
        )
    }
    for rank in RANKS:
        drawn[f"parallelogram_{rank}"] = Picture(
            draw_ranked(first, tasks, rank),
            f"The quadruple with the {WORDS[rank]} loss of each task, in the plane of the vocabulary's first two "
            "components and in units of its spread there; panels have their own windows. The dotted line runs from "
            "the fourth word to the cross, where it would complete a parallelogram; its length is the loss, in the "
            "panel's title. "
            + (
                "Of so many quadruples the best are parallelograms in any embedding; the median ones tell more."
                if rank == "best"
                else "The words may be of several tokens; the last of them is what is looked at."
            )
            + (" First seed." if several else ""),
        )
    ratios = settings_ratio(results)
    if ratios:
        drawn["parallelogram_settings"] = Picture(
            draw_settings(ratios),
            "Median loss of the harmonic embedding by that of the standard one, for every task (rows) and each of the "
            "32 settings that the authors swept (columns): what the loss is measured in, what the principal components "
            "are of, and how many. Blue: the harmonic one is lower. Above as it is; below with each arm's median first "
            "divided by that of its own shuffled pairs, where the unit cancels. Framed: the paper's setting.",
        )
    drawn["token_centers"] = Picture(
        draw_token_centers(labeled(results)),
        "The rows of the embedding as a cloud: how long they are (quantiles over the vocabulary), and how much of "
        "their variance lies in the widest 1, 2, ... principal components; marks stand at 2, 10 and 100."
        + (" A line a seed." if several else ""),
    )
    return drawn


def draw_settings(ratios: dict[str, np.ndarray]) -> "Figure":
    """Draw a heat map of tasks by settings, as it is and against the arms' own null."""
    with needs("figures"):
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.patches import Rectangle

    colors = LinearSegmentedColormap.from_list("arms", [COLORS[HARMONIC], "#f7f7f7", COLORS[STANDARD]])
    figure = drawing.new_figure(11, 1.6 + 0.44 * len(ratios) + 1.2)
    panels = figure.subplots(2, 1, sharex=True)
    titles = ("median loss, harmonic by standard", "the same, each first divided by its shuffled pairs' median")
    for axes, row, title in zip(panels, (0, 1), titles, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log2(np.stack([ratio[row] for ratio in ratios.values()]))
        image = axes.imshow(logs, cmap=colors, vmin=-STRONGEST, vmax=STRONGEST, aspect="auto", interpolation="none")
        axes.set_yticks(range(len(ratios)), labels=list(ratios), fontsize=8)
        axes.set_xticks(range(len(SETTINGS)), labels=[str(one.components) for one in SETTINGS], fontsize=7.5)
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for edge in range(4, len(SETTINGS), 4):
            axes.axvline(edge - 0.5, color="white", linewidth=4 if edge % 8 == 0 else 1.6)
        axes.add_patch(Rectangle((-0.5, -0.5), 1, len(ratios), fill=False, edgecolor="black", linewidth=1.4, zorder=5))
        axes.set_title(title, pad=32 if row == 0 else 8)
    for place in range(0, len(SETTINGS), 4):
        setting = SETTINGS[place]
        words: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8}
        panels[0].text(place + 1.5, -0.75, f"of {setting.fit}", **words)
        if place % 8 == 0:
            heading = f"unit: {setting.scale.replace('_', ' ')}"
            panels[0].text(place + 3.5, -0.75, f"{heading}\n", fontweight="bold", **words)
    panels[1].set_xlabel("number of principal components, of the vocabulary or of the task's words")
    bar = figure.colorbar(image, ax=list(panels), extend="both", pad=0.015, aspect=30, ticks=(-1, -0.5, 0, 0.5, 1))
    bar.ax.set_yticklabels(["1/2", "0.71", "1", "1.41", "2"])
    bar.outline.set_visible(False)
    return figure
