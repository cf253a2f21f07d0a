"""Figures of word pairs and token centers in language models.

Every function takes models as `measure_embedding` and `measure_layers` measured them, each with a name and a color.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harmax.analysis import Interval, parallelogram_shape
from harmax.figures import headline, line_handle, mark_handle, new_figure, spaced
from harmax.inspect.embedding import CENTERS, LEVELS, MEASURE, RANKS, Arrays, comparison, from_text_array
from harmax.inspect.layers import MEASURE as LAYERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NULL_LINE = "--"
CURVE = np.linspace(0, 1, 201)


class LabeledModel(NamedTuple):
    """A measured model in a figure. Several may share a name, for example the seeds of one experiment's arm."""

    name: str
    color: str
    arrays: Arrays


def _colors(models: Sequence[LabeledModel]) -> dict[str, str]:
    """Return the color of each name, in the order of the legend."""
    return {model.name: model.color for model in models}


def draw_distributions(models: Sequence[LabeledModel], tasks: Sequence[str]) -> "Figure":
    """Draw one panel per task: the distributions of every model's losses, and of its shuffled pairs' losses."""
    rows = math.ceil(len(tasks) / 4)
    figure = new_figure(11, 1.1 + 2.35 * rows)
    grid = figure.subplots(rows, min(len(tasks), 4), sharey=True, squeeze=False)
    for axes, task in zip(grid.flat, tasks, strict=False):
        reach = 0.0
        for model in models:
            for what, line in (("null", NULL_LINE), ("losses", "-")):
                losses = np.quantile(model.arrays[f"{MEASURE}/{task}/{what}"], CURVE)
                axes.plot(losses, CURVE, line, color=model.color, linewidth=1.5)
                reach = max(reach, losses[-7])  # a few far ones would flatten the rest
        axes.set(title=task, xlim=(0, reach), ylim=(0, 1), yticks=(0, 0.25, 0.5, 0.75, 1))
    for axes in grid[:, 0]:
        axes.set_ylabel("share of quadruples")
    for place, axes in enumerate(grid.flat):
        if place + grid.shape[1] >= len(tasks):
            axes.set_xlabel("parallelogram loss")
        if place >= len(tasks):
            axes.axis("off")
    handles = [
        line_handle(f"{name}{word}", color, line)
        for name, color in _colors(models).items()
        for word, line in (("", "-"), (", shuffled pairs", NULL_LINE))
    ]
    headline(figure, "How close word pairs come to parallelograms, task by task", handles)
    return figure


def draw_ranked(models: Sequence[LabeledModel], tasks: Sequence[str], rank: str) -> "Figure":
    """Draw one quadrilateral per task and model: models side by side, two tasks per row.

    Args:
        models: one or two; with more the panels get too small to read.
        tasks: names of the tasks.
        rank: one of `RANKS`.
    """
    count, place = len(models), list(RANKS).index(rank)
    rows = math.ceil(len(tasks) / 2)
    figure = new_figure(11, 0.9 + 11 / (2 * count) * rows * 1.02)
    figure.suptitle(f"The {rank} quadruple of each task by its parallelogram loss")
    grid = figure.subplots(rows, 2 * count, squeeze=False)
    panels = grid.reshape(2 * rows, count)
    for line, task in zip(panels, tasks, strict=False):
        for axes, model in zip(line, models, strict=True):
            losses, plane, words = (
                model.arrays[f"{MEASURE}/{task}/ranked_{what}"] for what in ("losses", "plane", "words")
            )
            which = round(RANKS[rank] * (losses.shape[1] - 1))
            _draw_quadrilateral(axes, plane[place, which], from_text_array(words)[place][which], model.color)
            axes.set_title(f"{task}, {model.name}\nloss {losses[place, which]:.2g}", fontsize=9)
    for axes in panels[len(tasks) :].flat:
        axes.axis("off")
    figure.supxlabel("first principal component of the vocabulary, in units of its spread", fontsize=9.5)
    figure.supylabel("second principal component", fontsize=9.5)
    return figure


def draw_shapes(models: Sequence[LabeledModel], task: str) -> "Figure":
    """Draw a task's best quadruples, best first, one row per model; below each its loss and its shape."""
    shown = [model.arrays[f"{MEASURE}/{task}/ranked_plane"][0] for model in models]
    columns = max(map(len, shown))
    figure = new_figure(11, 0.5 + 2.6 * len(models))
    figure.suptitle(f"The best parallelograms of {task}, best on the left")
    grid = figure.subplots(len(models), columns, squeeze=False)
    for line, model, planes in zip(grid, models, shown, strict=True):
        losses, texts = (model.arrays[f"{MEASURE}/{task}/ranked_{what}"] for what in ("losses", "words"))
        shapes = parallelogram_shape(*planes.transpose(1, 0, 2))
        words = from_text_array(texts)[0]
        for place, (axes, corners) in enumerate(zip(line, planes, strict=False)):
            _draw_quadrilateral(axes, corners, words[place], model.color, scale=1.3)
            sine, width = (values[place] for values in shapes)
            numbers = f"loss {losses[0, place]:.2g}\narea / sides {sine:.2f}\nwidth / length {width:.2f}"
            axes.set_xlabel(numbers, fontsize=9)
        line[0].set_ylabel(model.name, fontweight="bold", color=model.color)
        for axes in line[len(planes) :]:
            axes.axis("off")
    return figure


def _draw_quadrilateral(
    axes: "Axes", corners_42: np.ndarray, words: Sequence[str], color: str, *, scale: float = 1.0
) -> None:
    """Draw four words and what they lack to a parallelogram; `scale` is the size of letters, relative to the panel."""
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
    low, width = _square_window(axes, everything)
    axes.tick_params(labelsize=7)
    axes.locator_params(nbins=4)
    drawn = (np.concatenate([*sides, everything.repeat(10, axis=0)]) - low) / width
    _put_labels(axes, (everything[:4] - low) / width, words, drawn, letter=0.03 * scale, row=0.07 * scale)


def draw_token_centers(models: Sequence[LabeledModel]) -> "Figure":
    """Draw the quantiles of the tokens' lengths, and the variance that the principal components explain."""
    figure = new_figure(9, 4.0)
    lengths, variance = figure.subplots(1, 2)
    longest = 0.0
    for model in models:
        norms, explained = (model.arrays[f"{CENTERS}/vocabulary/{what}"] for what in ("norms", "explained"))
        lengths.plot(norms, LEVELS, color=model.color)
        longest = max(longest, 1.1 * float(norms[-2]))  # a few far ones would flatten the rest
        components = np.arange(1, len(explained) + 1)
        marked = [count - 1 for count in (2, 10, 100) if count <= len(explained)]
        kept = spaced(len(explained))
        variance.plot(components[kept], 100 * explained[kept], color=model.color)
        variance.plot(components[marked], 100 * explained[marked], "o", color=model.color, markersize=5)
    lengths.set(title="length of a token's row", xlabel="Euclidean length", ylabel="share of tokens", ylim=(0, 1))
    lengths.set_xlim(0, longest)
    variance.set(title="variance of the rows", xlabel="principal components", ylabel="explained variance, %")
    variance.set(xscale="log", ylim=(0, 103))
    variance.set_xticks([1, 2, 10, 100], labels=["1", "2", "10", "100"])
    handles = [line_handle(*named) for named in _colors(models).items()]
    headline(figure, "The cloud of all token centers: lengths and dimensions", handles)
    return figure


def draw_steps(models: Sequence[LabeledModel], task: str, layers: Sequence[int]) -> "Figure":
    """Draw the steps of a task's word pairs as arrows: one row per layer, models side by side."""
    figure = new_figure(5.2 * len(models), 0.8 + 5.1 * len(layers))
    figure.suptitle(f"From the first to the second word of a pair: {task}")
    grid = figure.subplots(len(layers), len(models), squeeze=False)
    for line, layer in zip(grid, layers, strict=True):
        for axes, model in zip(line, models, strict=True):
            place = f"{LAYERS}/{task}"
            words = [pair[0] for pair in from_text_array(model.arrays[f"{place}/shown_words"])]
            cosine, shuffled = model.arrays[f"{place}/{layer}/cosine"][0, :, 0]
            _draw_arrows(axes, model.arrays[f"{place}/{layer}/shown_plane"], words, model.color)
            distance = _shown_distance(model.arrays[f"{place}/{layer}/partners"])
            axes.set_title(f"{model.name}, layer {layer}\n{distance}mean cosine {cosine:.2f} (shuffled {shuffled:.2f})")
            axes.set_xlabel("first component, in units of the spread")
        line[0].set_ylabel("second component")
    return figure


def _shown_distance(partners_P2: np.ndarray) -> str:
    if not np.isfinite(partners_P2[:, 1]).any():
        return ""
    own, other = np.nanmedian(partners_P2, axis=0)
    return f"distance / shuffled {own / other:.2f}; "


def _draw_arrows(axes: "Axes", plane_N22: np.ndarray, words: Sequence[str], color: str) -> None:
    steps = plane_N22.astype(float)
    low, width = _square_window(axes, steps.reshape(-1, 2), room=1.25)
    for tail, tip in steps:
        look: dict[str, Any] = {"arrowstyle": "-|>", "color": color, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", tip, tail, arrowprops=look | {"mutation_scale": 8})
    axes.plot(*steps[:, 0].T, "o", color="white", markeredgecolor=color, markersize=4, zorder=4)
    lines = np.linspace(steps[:, 0], steps[:, 1], 12).reshape(-1, 2)
    _put_labels(axes, (steps[:, 0] - low) / width, words, (lines - low) / width, letter=0.0145, row=0.031)


def draw_layer_tasks(models: Sequence[LabeledModel], tasks: Sequence[str], layers: Sequence[int]) -> "Figure":
    """Draw one row of panels per layer: median losses and mean cosines, one line per task."""
    figure = new_figure(9.5, (0.8 + 0.36 * len(tasks)) * len(layers) + 1.0)
    grid = figure.subplots(len(layers), 2, squeeze=False, sharey=True)
    for (losses, cosines), layer in zip(grid, layers, strict=True):
        for shift, model in zip(np.linspace(-0.19, 0.19, len(models)), models, strict=True):
            for row, task in enumerate(tasks):
                place = f"{LAYERS}/{task}/{layer}"
                against = comparison(model.arrays[f"{place}/against_null"])
                cosine = [Interval(*map(float, found)) for found in model.arrays[f"{place}/cosine"][0]]
                for axes, both in ((losses, (against.first, against.second)), (cosines, cosine)):
                    for found, face, lower in zip(both, (model.color, "white"), (-0.08, 0.08), strict=True):
                        _draw_interval(axes, found, row + shift + lower, model.color, face)
        losses.set(title=f"layer {layer}: median parallelogram loss", ylim=(len(tasks) - 0.4, -0.6))
        losses.set_xlim(left=0)
        cosines.set_title("mean cosine between steps")
        cosines.axvline(0, color="#444444", linewidth=0.8, zorder=1)
        losses.set_yticks(range(len(tasks)), labels=list(tasks))
    handles = [
        mark_handle(f"{name}{words}", "o", color, face=face)
        for name, color in _colors(models).items()
        for words, face in (("", None), (", shuffled pairs", "white"))
    ]
    headline(figure, "Word pairs in the layers: parallelograms and parallel steps", handles)
    return figure


def _draw_interval(axes: "Axes", found: Interval, y: float, color: str, face: str) -> None:
    axes.plot([found.low, found.high], [y, y], color=color, linewidth=1.3, zorder=2)
    axes.plot(found.estimate, y, "o", color=color, markerfacecolor=face, markersize=5, zorder=3)


def _square_window(axes: "Axes", points: np.ndarray, room: float = 1.75) -> tuple[np.ndarray, float]:
    """Set equal units around some points, with room for labels. Return the window's lower corner and its width."""
    middle = (points.min(0) + points.max(0)) / 2
    width = room * float(np.ptp(points, axis=0).max()) or 1.0
    low = middle - width / 2
    axes.set(xlim=(low[0], low[0] + width), ylim=(low[1], low[1] + width))
    axes.set_box_aspect(1)
    return low, width


def _put_labels(
    axes: "Axes", at: np.ndarray, texts: Sequence[str], drawn: np.ndarray, *, letter: float, row: float
) -> None:
    """Write a text beside each point, where it covers least of `drawn` and of other texts, and stays inside.

    Points, the width of a letter and the height of a row are in units of the panel.
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
