"""Pictures of the one-layer classifiers: weights as images, accuracies with intervals, likeness to the class means."""

# V classes, H rows, W columns of pixels

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from harmax.errors import needs
from harmax.figures import HEAD_STYLES, Picture
from harmax_lab.kit import drawing
from harmax_lab.kit.store import CellResult
from harmax_lab.vision.mnist_claims import PAPER, Results, interval, title_of, values
from harmax_lab.vision.spec import HEADS, OneLayerSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

YELLOW = "#FFD92F"
SHOWN = "authors"  # the protocol whose weights are drawn: the paper's figure comes from it


def figures(spec: OneLayerSpec, results: Results) -> dict[str, Picture]:
    """Draw the weights of each data set twice, then accuracies and correlations of all."""
    drawn = {}
    protocol = SHOWN if SHOWN in spec.protocols else spec.protocols[-1]
    for dataset in spec.datasets:
        found = first_seed(results, dataset, protocol)
        if found:
            about = f"{title_of(dataset)}, protocol {protocol}, first seed, one column a class"
            drawn[f"weights_{dataset}"] = Picture(
                draw_weights(dataset, found, spec.near_zero),
                f"Size of the weights, {about}. Yellow: below {spec.near_zero} in size, as the paper draws it; "
                "otherwise the darker the larger, each row of pictures on its own scale. Top: mean image of the class.",
            )
            drawn[f"signed_weights_{dataset}"] = Picture(
                draw_signed(dataset, found),
                f"The same weights with their sign, {about}. Blue above 0, red below, white at 0; each row of pictures "
                "on its own scale, which the bar shows.",
            )
    if results:
        drawn["mnist_accuracy"] = Picture(
            draw_accuracy(spec, results),
            "Test accuracy. Small dots: seeds; large mark and bar: mean and its 95 % bootstrap interval over seeds. "
            "Dashed lines: the paper's 92.49 % (harmonic) and 92.50 % (standard), which all but coincide.",
        )
        drawn["mnist_correlation"] = Picture(
            draw_correlation(spec, results, protocol),
            f"Likeness of weights and classes, protocol {protocol}. Left: correlation of each class's weights with the "
            "mean image of the class, mean over seeds, bars from the least to the greatest. Right: share of weights "
            f"below {spec.near_zero} in size, among pixels that no training image lights (full), that no image of the "
            "class lights (hatched), and among all (pale); a missing bar means that there is no such pixel.",
        )
    return drawn


def first_seed(results: Results, dataset: str, protocol: str) -> dict[str, CellResult]:
    """Return the runs whose pictures were kept, by head."""
    return {
        cell.head: result
        for cell, result in results.items()
        if (cell.dataset, cell.protocol) == (dataset, protocol) and "weight" in result.arrays
    }


def draw_weights(dataset: str, found: Mapping[str, CellResult], limit: float) -> "Figure":
    """Draw sizes of weights in gray, those below the limit in yellow."""
    with needs("figures"):
        from matplotlib import colormaps
        from matplotlib.colors import Normalize, to_rgb

    figure, rows = _grid(f"{title_of(dataset)}: size of the weights", found)
    for label, (row, pictures) in rows.items():
        size_VHW = np.abs(pictures)
        scale = Normalize(0, float(np.quantile(size_VHW, 0.995)) or 1.0)
        for axes, size_HW in zip(row, size_VHW, strict=True):
            shown = colormaps["Greys"](scale(size_HW))[..., :3]
            shown[size_HW < limit] = to_rgb(YELLOW)
            _show(axes, shown)
        row[0].set_ylabel(label)
    return figure


def draw_signed(dataset: str, found: Mapping[str, CellResult]) -> "Figure":
    """Draw weights on a map from red through white to blue."""
    figure, rows = _grid(f"{title_of(dataset)}: weights with their sign", found)
    for label, (row, pictures) in rows.items():
        reach = float(np.quantile(np.abs(pictures), 0.995)) or 1.0
        for axes, picture_HW in zip(row, pictures, strict=True):
            image = _show(axes, picture_HW, cmap="RdBu", vmin=-reach, vmax=reach)
        row[0].set_ylabel(label)
        figure.colorbar(image, ax=list(row), ticks=(-reach, 0, reach), format="%.2f", fraction=0.012, pad=0.01)
    return figure


def _grid(title: str, found: Mapping[str, CellResult]) -> tuple["Figure", dict[str, tuple[np.ndarray, np.ndarray]]]:
    first = next(iter(found.values())).arrays["mean"]
    pictures = {"class mean": first, **{_short(head): found[head].arrays["weight"] for head in HEADS if head in found}}
    classes = len(first)
    figure = drawing.new_figure(10.6, 1.08 * len(pictures) + 0.5)
    figure.suptitle(title)
    grid = figure.subplots(len(pictures), classes, squeeze=False)
    return figure, {label: (row, pictures[label]) for label, row in zip(pictures, grid, strict=True)}


def _short(head: str) -> str:
    return HEAD_STYLES[head].label.replace(" with ", "\nwith ")


def _show(axes: "Axes", picture: np.ndarray, **style: object) -> "AxesImage":
    axes.set(xticks=(), yticks=())
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes.imshow(picture, interpolation="nearest", **style)  # type: ignore[arg-type]


def draw_accuracy(spec: OneLayerSpec, results: Results) -> "Figure":
    """Draw a panel a data set: a line a protocol and head."""
    lines = [(protocol, head) for protocol in spec.protocols for head in HEADS]
    figure = drawing.new_figure(3.4 * len(spec.datasets) + 2.2, 0.31 * len(lines) + 1.5)
    panels = figure.subplots(1, len(spec.datasets), squeeze=False, sharey=True)[0]
    for axes, dataset in zip(panels, spec.datasets, strict=True):
        for place, (protocol, head) in enumerate(lines):
            seeds = values(results, dataset, protocol, head, "test_accuracy")
            mean = interval(results, dataset, protocol, head, "test_accuracy")
            if mean is None:
                continue
            color = HEAD_STYLES[head].color
            dots = 100 * np.array(seeds)
            axes.plot(dots, place + 0.1 * (np.arange(len(dots)) % 5 - 2), ".", color=color, alpha=0.35, markersize=4)
            axes.plot(
                [100 * mean.low, 100 * mean.high], [place, place], color=color, linewidth=3, solid_capstyle="butt"
            )
            axes.plot(100 * mean.estimate, place, "D", color=color, markeredgecolor="white", markersize=7, zorder=4)
        if dataset == "mnist":
            for head, accuracy in PAPER.items():
                axes.axvline(100 * accuracy, color=HEAD_STYLES[head].color, linestyle="--", linewidth=1)
        axes.set(title=title_of(dataset), xlabel="test accuracy, %")
    panels[0].set_yticks(range(len(lines)), [f"{protocol}: {HEAD_STYLES[head].label}" for protocol, head in lines])
    panels[0].invert_yaxis()
    return figure


def draw_correlation(spec: OneLayerSpec, results: Results, protocol: str) -> "Figure":
    """Draw a row a data set: correlations class by class, then shares of weights near zero."""
    figure = drawing.new_figure(10, 2.5 * len(spec.datasets) + 0.6)
    grid = figure.subplots(len(spec.datasets), 2, squeeze=False, width_ratios=(2, 1.1))
    for (left, right), dataset in zip(grid, spec.datasets, strict=True):
        for place, head in enumerate(HEADS):
            chosen = (dataset, protocol, head)
            found = [r for cell, r in results.items() if (cell.dataset, cell.protocol, cell.head) == chosen]
            if not found:
                continue
            style = HEAD_STYLES[head]
            rows = np.stack([result.arrays["correlation"] for result in found])
            x = np.arange(rows.shape[1]) + 0.16 * (place - 1)
            mean = rows.mean(0)
            reach = np.stack([mean - rows.min(0), rows.max(0) - mean]).clip(min=0)
            left.errorbar(x, mean, yerr=reach, fmt="o", color=style.color, markersize=4.5, linewidth=1.4)
            for shift, (metric, looks) in enumerate(_BARS.items()):
                share = interval(results, *chosen, metric)
                if share is not None:
                    right.bar(place + 0.26 * (shift - 1), 100 * share.estimate, 0.24, color=style.color, **looks)
        left.axhline(0, color="#444444", linewidth=0.8)
        left.set(title=f"{title_of(dataset)}: correlation with the class mean", ylim=(-0.35, 1.05), xticks=range(10))
        right.set(title="weights near zero, %", ylim=(0, 104))
        right.set_xticks(
            range(len(HEADS)), [_short(head).replace("cross-entropy", "cross-\nentropy") for head in HEADS]
        )
    grid[-1, 0].set_xlabel("class")
    handles = [drawing.mark_handle(HEAD_STYLES[head].label, "o", HEAD_STYLES[head].color) for head in HEADS]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


_BARS: dict[str, dict[str, object]] = {
    "near_zero_dark": {},
    "near_zero_outside": {"hatch": "////", "edgecolor": "white", "linewidth": 0},
    "near_zero": {"alpha": 0.35},
}
