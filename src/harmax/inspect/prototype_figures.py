"""Figures of a classifier's prototypes: its centers, the images nearest to them, and the reasons for a decision.

Every function takes plain arrays. A picture is (H, W) or, in color, (3, H, W) with values from 0 to 1.
"""

# V classes, N images, K neighbors, H height, W width

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.figures import HEAD_STYLES, class_color, new_figure
from harmax.inspect.prototypes import PrototypeView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

WRONG = HEAD_STYLES["cross_entropy"].color
WINNER, RUNNER_UP = HEAD_STYLES["harmonic"].color, "#999999"
SIGNED, INK = "RdBu_r", "Greys"  # white is 0 in both
MOST = 24  # rows of a figure; with more rows it cannot be read
LINE = 12  # letters of a class name above a picture, or per line beside it


def draw_centers(pictures: np.ndarray, names: Sequence[str], *, columns: int = 10) -> "Figure":
    """Draw the centers of a one-layer classifier. Gray ones show their sign, on one scale for all.

    Args:
        pictures: the result of `center_pictures`, (V, H, W) or (V, 3, H, W).
        names: of the V classes.
        columns: number of pictures side by side.
    """
    _check_names(names, len(pictures))
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    figure = new_figure(max(1.05 * columns + 0.6, 4), 1.3 * rows + 0.2)
    grid = figure.subplots(rows, columns, squeeze=False)
    reach = float(np.abs(pictures).max())
    shown: list[AxesImage] = []
    for axes, picture, name in zip(grid.flat, pictures, names, strict=False):
        shown.append(_draw_picture(axes, picture, reach=reach))
        axes.set_title(name, fontsize=9, loc="center")
    for axes in grid.flat[len(pictures) :]:
        axes.axis("off")
    if pictures.ndim == 3:
        figure.colorbar(shown[0], ax=list(grid.flat), shrink=0.8, pad=0.02, aspect=14, label="pixel of the center")
    return figure


def draw_nearest(
    images: np.ndarray,
    distances: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    *,
    classes: Sequence[int] | None = None,
    centers: np.ndarray | None = None,
) -> "Figure":
    """Draw one row per center: the training images nearest to it, after the center itself if it is a picture.

    The distance is written above each image. An image of another class gets its class name and a frame.

    Args:
        images: (V, K, H, W) or (V, K, 3, H, W), nearest first.
        distances: (V, K).
        labels: the images' true classes, (V, K).
        names: of all classes.
        classes: which classes the V rows are. None: the first V.
        centers: pictures of these centers, (V, H, W) or (V, 3, H, W), for one-layer classifiers.
    """
    _check_rows("centers", len(images))
    rows, neighbors = distances.shape
    own = range(rows) if classes is None else classes
    first = int(centers is not None)
    figure = new_figure(0.95 * (neighbors + first) + 1.2, 1.16 * rows + 0.35)
    grid = figure.subplots(rows, neighbors + first, squeeze=False)
    reach = float(np.abs(centers).max()) if centers is not None else 1.0
    for row, (line, number) in enumerate(zip(grid, own, strict=True)):
        if centers is not None:
            _draw_picture(line[0], centers[row], reach=reach)
        line[0].set_ylabel(textwrap.fill(names[number], LINE), rotation=0, ha="right", va="center", labelpad=8)
        for axes, image, far, label in zip(line[first:], images[row], distances[row], labels[row], strict=True):
            _draw_picture(axes, image)
            other = label != number
            axes.set_title(
                f"{_digits(far)} ({_cut(names[label])})" if other else _digits(far),
                fontsize=8,
                loc="center",
                color=WRONG if other else "black",
            )
            if other:
                _frame(axes, WRONG)
    if centers is not None:
        grid[0][0].set_title("center", fontsize=8, loc="center")
    return figure


def draw_decisions(
    images: np.ndarray, view: PrototypeView, labels: np.ndarray, names: Sequence[str], prototypes: np.ndarray
) -> "Figure":
    """Draw one row per image: the image, the nearest and the second nearest prototype, and both distances.

    Args:
        images: (N, H, W) or (N, 3, H, W), at most 24.
        view: the result of `prototype_view` for these images.
        labels: their true classes, (N,).
        names: of all V classes.
        prototypes: one picture per class, (V, H, W) or (V, 3, H, W): its center, or the image nearest to it.
    """
    _check_rows("images", len(images))
    figure = new_figure(7.2, 1.22 * len(images) + 0.6)
    grid = figure.subplots(len(images), 4, squeeze=False, width_ratios=[1, 1, 1, 3.2])
    reach = float(np.abs(prototypes).max())
    ink = float(images.max())
    signed = bool((prototypes < 0).any())
    for row, line in enumerate(grid):
        heads = ("image\n", "nearest\n", "second nearest\n") if row == 0 else ("", "", "")
        _draw_picture(line[0], images[row], top=ink)
        line[0].set_title(f"{heads[0]}true: {names[labels[row]]}", fontsize=8, loc="center")
        shown = (int(view.winner[row]), WINNER), (int(view.runner_up[row]), RUNNER_UP)
        for axes, words, (which, color) in zip(line[1:3], heads[1:], shown, strict=True):
            _draw_picture(axes, prototypes[which], reach=reach if signed else None, top=reach)
            axes.set_title(f"{words}{names[which]}", fontsize=8, loc="center")
            _frame(axes, color)
        if view.winner[row] != labels[row]:
            line[1].title.set_color(WRONG)
        _draw_bars(line[3], view, row)
    grid[-1][3].set_xlabel("distance", fontsize=8)
    return figure


def draw_abstention(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], *, least: float = 0.1) -> "Figure":
    """Draw accuracy against coverage, one line per score.

    Args:
        curves: label to (coverage, accuracy), as in the result of `abstention_curve`. A label that is a key of
            `HEAD_STYLES` gets that head's color, line and name.
        least: the smallest coverage to draw. The accuracy of very few images is noise.
    """
    figure = new_figure(5.2, 3.6)
    axes = figure.subplots()
    dashes = ("-", "--", "-.", ":")
    for index, (label, (coverage, accuracy)) in enumerate(curves.items()):
        style = HEAD_STYLES.get(label)
        # Steps, because there is nothing to choose between two thresholds.
        axes.step(
            coverage[coverage >= least],
            100 * accuracy[coverage >= least],
            where="post",
            color=style.color if style else class_color(index),
            linestyle=style.line if style else dashes[index % len(dashes)],
            label=style.label if style else label,
        )
    axes.set(xlabel="share of images answered", ylabel="accuracy of the answers, %", xlim=(least, 1.0))
    axes.margins(y=0.06)
    axes.set_ylim(top=min(axes.get_ylim()[1], 100.5))
    if len(curves) > 1:
        figure.legend(loc="outside upper center", ncols=2)
    return figure


def _cut(name: str) -> str:
    return name if len(name) <= LINE else f"{name[: LINE - 1]}…"


def _draw_bars(axes: "Axes", view: PrototypeView, row: int) -> None:
    lengths = [float(view.winner_distance[row]), float(view.runner_up_distance[row])]
    axes.barh([0, 1], lengths, height=0.55, color=[WINNER, RUNNER_UP])
    for place, length in enumerate(lengths):
        words = f" {_digits(length)}" + (f"   (ratio {view.ratio[row]:.2f})" if place else "")
        axes.text(length, place, words, va="center", fontsize=8)
    axes.set(xlim=(0, 1.5 * float(view.runner_up_distance.max())), ylim=(1.9, -0.9))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(False, axis="y")
    if row < len(view.winner) - 1:
        axes.tick_params(labelbottom=False)


def _draw_picture(axes: "Axes", picture: np.ndarray, *, reach: float | None = None, top: float | None = None) -> Any:
    """Draw one picture: in color, signed up to `reach`, or as ink from 0 to `top` (None: its maximum)."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#dddddd", linewidth=0.8)
    if picture.ndim == 3:
        return axes.imshow(np.clip(picture, 0, 1).transpose(1, 2, 0), interpolation="nearest")
    if reach is not None:
        return axes.imshow(picture, cmap=SIGNED, vmin=-reach, vmax=reach, interpolation="nearest")
    return axes.imshow(picture, cmap=INK, vmin=0, vmax=top or float(picture.max()) or 1.0, interpolation="nearest")


def _frame(axes: "Axes", color: str) -> None:
    for spine in axes.spines.values():
        spine.set(color=color, linewidth=1.8)


def _digits(distance: float) -> str:
    """Return three digits, trailing zeros included, so that distances in a row are easy to compare."""
    return f"{distance:#.3g}".rstrip(".")


def _check_names(names: Sequence[str], classes: int) -> None:
    if len(names) != classes:
        raise ValueError(
            f"`names` must be {classes}, one per class, got {len(names)}; pass them in the classes' order."
        )


def _check_rows(what: str, rows: int) -> None:
    if not 1 <= rows <= MOST:
        raise ValueError(f"`images` must have 1 to {MOST} {what}, got {rows}; choose the ones to show.")
