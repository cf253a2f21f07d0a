"""Pictures of `parallelograms`: distributions of the losses, quadrilaterals, settings, the cloud of all tokens."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import SETTINGS
from harmax.errors import needs
from harmax.figures import HEAD_STYLES, Picture
from harmax_lab.kit import drawing
from harmax_lab.kit.store import CellResult
from harmax_lab.language.embedding import (
    CENTERS,
    LEVELS,
    MEASURE,
    RANKS,
    Results,
    from_text_array,
    settings_ratio,
    tasks_of,
)
from harmax_lab.language.spec import HARMONIC, STANDARD, LanguageSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {STANDARD: HEAD_STYLES["cross_entropy"].color, HARMONIC: HEAD_STYLES["harmonic"].color}
GREY = "#777777"
NULL_LINE = "--"
CURVE = np.linspace(0, 1, 201)
STRONGEST = 1.0  # of the colors' scale: a factor of two
WORDS = {"best": "lowest", "median": "median", "worst": "highest"}


def color_of(arm: str) -> str:
    """Return an arm's color; arms beside the two are gray."""
    return COLORS.get(arm, GREY)


def first_of(spec: LanguageSpec, results: Results) -> dict[str, CellResult]:
    """Return the first finished seed of each arm, in the spec's order."""
    firsts = {arm: [result for cell, result in results.items() if cell.arm == arm][:1] for arm in spec.arms}
    return {arm: found[0] for arm, found in firsts.items() if found}


def figures(spec: LanguageSpec, results: Results) -> dict[str, Picture]:
    """Draw everything that the finished cells hold."""
    tasks = tasks_of(results)
    if not tasks:
        return {}
    first = first_of(spec, results)
    several = len(results) > len(first)
    drawn = {
        "parallelogram_cdf": Picture(
            draw_distributions(tasks, results),
            "Share of the quadruples whose parallelogram loss is at most this, in the paper's setting (two components "
            "of the vocabulary, in units of its spread along them). Solid: pairs of one relation; dashed: the same "
            "with shuffled partners. Further left is closer to a parallelogram; what the relation does is the space "
            f"between solid and dashed.{' A line a seed.' if several else ''}",
        )
    }
    for rank in RANKS:
        drawn[f"parallelogram_{rank}"] = Picture(
            draw_ranked(tasks, first, rank),
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
        draw_centers(results),
        "The rows of the embedding as a cloud: how long they are (quantiles over the vocabulary), and how much of "
        "their variance lies in the widest 1, 2, ... principal components; marks stand at 2, 10 and 100."
        + (" A line a seed." if several else ""),
    )
    return drawn


def draw_distributions(tasks: Sequence[str], results: Results) -> "Figure":
    """Draw a panel a task: both arms and their nulls."""
    rows = math.ceil(len(tasks) / 4)
    figure = drawing.new_figure(11, 0.7 + 2.35 * rows)
    grid = figure.subplots(rows, min(len(tasks), 4), sharey=True, squeeze=False)
    for axes, task in zip(grid.flat, tasks, strict=False):
        reach = 0.0
        for cell, result in results.items():
            for what, line in (("null", NULL_LINE), ("losses", "-")):
                losses = np.quantile(result.arrays[f"{MEASURE}/{task}/{what}"], CURVE)
                axes.plot(losses, CURVE, line, color=color_of(cell.arm), linewidth=1.5)
                reach = max(reach, losses[-7])  # a few far ones would flatten the rest
        axes.set(title=task, xlim=(0, reach), ylim=(0, 1), yticks=(0, 0.25, 0.5, 0.75, 1))
    for axes in grid[:, 0]:
        axes.set_ylabel("share of quadruples")
    for place, axes in enumerate(grid.flat):
        if place + grid.shape[1] >= len(tasks):
            axes.set_xlabel("parallelogram loss")
        if place >= len(tasks):
            axes.axis("off")
    arms = dict.fromkeys(cell.arm for cell in results)
    handles = [
        drawing.line_handle(f"{arm}{word}", color_of(arm), line)
        for arm in arms
        for word, line in (("", "-"), (", shuffled pairs", NULL_LINE))
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def draw_ranked(tasks: Sequence[str], first: dict[str, CellResult], rank: str) -> "Figure":
    """Draw one quadrilateral a task and arm, arms side by side, two tasks a row."""
    arms, place = len(first), list(RANKS).index(rank)
    rows = math.ceil(len(tasks) / 2)
    figure = drawing.new_figure(11, 0.5 + 11 / (2 * arms) * rows * 1.02)
    grid = figure.subplots(rows, 2 * arms, squeeze=False)
    panels = grid.reshape(2 * rows, arms)
    for line, task in zip(panels, tasks, strict=False):
        for axes, (arm, result) in zip(line, first.items(), strict=True):
            losses, plane, words = (result.arrays[f"{MEASURE}/{task}/ranked_{what}"] for what in _RANKED)
            which = round(RANKS[rank] * (losses.shape[1] - 1))
            _draw_quadrilateral(axes, plane[place, which], from_text_array(words)[place][which], color_of(arm))
            axes.set_title(f"{task}, {arm}\nloss {losses[place, which]:.2g}", fontsize=9)
    for axes in panels[len(tasks) :].flat:
        axes.axis("off")
    figure.supxlabel("first principal component of the vocabulary, in units of its spread", fontsize=9.5)
    figure.supylabel("second principal component", fontsize=9.5)
    return figure


_RANKED = ("losses", "plane", "words")


def _draw_quadrilateral(axes: "Axes", corners_42: np.ndarray, words: Sequence[str], color: str) -> None:
    a, b, c, d = corners_42.astype(float)
    closed = b + c - a
    everything = np.stack([a, b, c, d, closed])
    axes.fill(*np.stack([a, b, d, c]).T, facecolor=color, alpha=0.13, edgecolor="none")
    sides = [np.linspace(start, end, 40) for start, end in ((a, b), (c, d), (a, c), (b, d), (d, closed))]
    for side, line in zip(sides, ("-", "-", "--", "--", ":"), strict=True):
        axes.plot(
            *side[[0, -1]].T, line, color="black" if line == ":" else color, linewidth=1.6 if line == "-" else 1.1
        )
    axes.plot(*closed, "x", color="black", markersize=5)
    axes.plot(*everything[:4].T, "o", color=color, markersize=4.5, zorder=4)
    low, width = square_window(axes, everything)
    axes.tick_params(labelsize=7)
    axes.locator_params(nbins=4)
    drawn = (np.concatenate([*sides, everything.repeat(10, axis=0)]) - low) / width
    put_labels(axes, (everything[:4] - low) / width, words, drawn, letter=0.03, row=0.07)


def square_window(axes: "Axes", points: np.ndarray, room: float = 1.75) -> tuple[np.ndarray, float]:
    """Give axes equal units around some points, with room for labels; return the window's corner and width."""
    middle = (points.min(0) + points.max(0)) / 2
    width = room * float(np.ptp(points, axis=0).max()) or 1.0
    low = middle - width / 2
    axes.set(xlim=(low[0], low[0] + width), ylim=(low[1], low[1] + width))
    axes.set_box_aspect(1)
    return low, width


def put_labels(
    axes: "Axes", at: np.ndarray, texts: Sequence[str], drawn: np.ndarray, *, letter: float, row: float
) -> None:
    """Write a text beside each point where it covers least: of `drawn`, of other texts, of what lies outside.

    Points are in units of the panel, as are the width of a letter and the height of a row.
    """
    angles = np.arange(16) * np.pi / 8
    rays = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    taken: list[np.ndarray] = []  # middle and half size of each text
    for point, text in zip(at, texts, strict=True):
        half = np.array([letter * max(len(text), 2) / 2, row / 2])
        reaches = np.repeat(np.array([0.4, 0.85, 1.5]) * row, len(rays))
        middles = point + np.tile(rays, (3, 1)) * (half + reaches[:, None])
        costs = reaches.copy()
        for place, middle in enumerate(middles):
            costs[place] += 0.01 * (np.abs(drawn - middle) < half).all(1).sum()
            costs[place] += 20 * np.maximum(np.abs(middle - 0.5) + half - 0.5, 0).sum()
            for other, size in taken:
                costs[place] += 50 * np.maximum(half + size - np.abs(middle - other), 0).prod() / row
        best = middles[int(costs.argmin())]
        taken.append(np.stack([best, half]))
        axes.text(best[0], best[1], text, transform=axes.transAxes, ha="center", va="center", fontsize=8, zorder=5)


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


def draw_centers(results: Results) -> "Figure":
    """Draw the quantiles of the tokens' lengths, and the explained variance."""
    figure = drawing.new_figure(9, 3.4)
    lengths, variance = figure.subplots(1, 2)
    longest = 0.0
    for cell, result in results.items():
        norms, explained = (result.arrays[f"{CENTERS}/vocabulary/{what}"] for what in ("norms", "explained"))
        lengths.plot(norms, LEVELS, color=color_of(cell.arm))
        longest = max(longest, 1.1 * float(norms[-2]))  # a few far ones would flatten the rest
        components = np.arange(1, len(explained) + 1)
        marked = [count - 1 for count in (2, 10, 100) if count <= len(explained)]
        kept = drawing.spaced(len(explained))
        variance.plot(components[kept], 100 * explained[kept], color=color_of(cell.arm))
        variance.plot(components[marked], 100 * explained[marked], "o", color=color_of(cell.arm), markersize=5)
    lengths.set(title="length of a token's row", xlabel="Euclidean length", ylabel="share of tokens", ylim=(0, 1))
    lengths.set_xlim(0, longest)
    variance.set(title="variance of the rows", xlabel="principal components", ylabel="explained variance, %")
    variance.set(xscale="log", ylim=(0, 103))
    variance.set_xticks([1, 2, 10, 100], labels=["1", "2", "10", "100"])
    arms = dict.fromkeys(cell.arm for cell in results)
    figure.legend(
        handles=[drawing.line_handle(arm, color_of(arm)) for arm in arms], loc="outside upper center", ncols=4
    )
    return figure
