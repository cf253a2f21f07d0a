"""Pictures of the ResNets: accuracies, tuning, calibration, abstention, outliers, neural collapse, prototypes."""

# K points of a curve, V classes, N neighbors, H rows, W columns, C channels

import math
from typing import TYPE_CHECKING

import numpy as np

from harmax.analysis import abstention_curve, distance_ratio, nearest_distance
from harmax.errors import needs
from harmax.figures import Picture
from harmax.inspect.prototype_figures import draw_abstention, draw_nearest
from harmax_lab.kit import drawing
from harmax_lab.kit.store import CellResult
from harmax_lab.vision.classifiers_claims import Results, interval, outside_sets, values, variant_words
from harmax_lab.vision.classifiers_spec import (
    FINAL,
    HARMONIC,
    HEADS,
    LINEAR,
    SHORT,
    STYLES,
    TITLES,
    ClassifierCell,
    ClassifierSpec,
    Setting,
    variants_of,
)
from harmax_lab.vision.classifiers_tables import SCORE_TITLES, tuning_means
from harmax_lab.vision.trust_measures import SCORES, detection_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 300  # of an abstention curve
FAR = 20.0  # points below the best setting, which a panel of tuning does not show
DASHES = ("-", "--", ":", "-.")
MARKS = ("o", "s", "^", "v")
COLLAPSE = {
    "within_between": "NC1: spread within over between",
    "simplex_means": "NC2: angles from a simplex's",
    "self_duality": "NC3: weights from class means",
    "disagreement": "NC4: not the nearest mean",
}


def figures(spec: ClassifierSpec, results: Results) -> dict[str, Picture]:
    """Draw what there is: figures over all data sets first, then prototypes and abstention one by one."""
    drawn = {}
    tuned = {cell: result for cell, result in results.items() if cell.stage != FINAL}
    counted = {cell: result for cell, result in results.items() if is_counted(cell, result)}
    if counted:
        drawn["classifiers_accuracy"] = Picture(
            draw_accuracy(spec, counted),
            "Test accuracy. Small dots: seeds; large mark and bar: mean and Student's 95 % interval over seeds, cut at "
            "0 and 100 %: it tells of training, not of the choice of test images, which are the same for all seeds.",
        )
        drawn["classifiers_reliability"] = Picture(
            draw_reliability(spec, counted),
            "How often an answer is right (up) where the classifier is this sure (right), in 15 bins of as many test "
            "images; one line a seed. On the gray diagonal confidence is what it says; below it, too high.",
        )
        drawn["classifiers_collapse"] = Picture(
            draw_collapse(spec, counted),
            "Neural collapse on training images, as they are without augmentation, over the epochs of training; 0 is "
            "complete collapse. Lines: medians over seeds; bands: their range. NC3 compares directions and proportions "
            "of weights and class means, 2 where they are unrelated; NC4 is the share of images whose nearest class "
            "mean is not the class that the head says.",
        )
    if any(outside_sets(counted, dataset) for dataset in spec.datasets):
        drawn["classifiers_outliers"] = Picture(
            draw_outliers(spec, counted),
            "Area under the ROC curve of telling images of other classes from test images, by score; 50 % is chance. "
            "Marks as in the figure of accuracies. A linear head has no distances.",
        )
    if tuned:
        drawn["classifiers_tuning"] = Picture(
            draw_tuning(spec, tuned),
            "Accuracy on the training images that were held out, by learning rate, a line an exponent or scale; means "
            "over the tuning seeds (as many as the table says), in shorter runs than those that count. The highest "
            f"point of a head is what its other runs are trained with. More than {FAR:g} points below the best nothing "
            "is shown.",
        )
    for dataset in spec.datasets:
        drawn |= _of_first_seed(spec, counted, dataset)
    return drawn


def short(dataset: str) -> str:
    """Return a data set's name for a panel."""
    return SHORT.get(dataset, TITLES.get(dataset, dataset))


def is_counted(cell: ClassifierCell, result: CellResult) -> bool:
    """Whether a run is one of those that count, and came to its end."""
    return cell.stage == FINAL and result.metrics["diverged_at"] is None


def _of_first_seed(spec: ClassifierSpec, counted: Results, dataset: str) -> dict[str, Picture]:
    first = {c.head: r for c, r in counted.items() if c.dataset == dataset and c.seed == spec.seeds[0]}
    drawn = {}
    if first:
        drawn[f"abstention_{dataset}"] = Picture(
            draw_abstention(abstention_curves(first)),
            f"What not answering buys, {TITLES[dataset]}, test images, first seed: images are left out from the least "
            "sure on: by the largest probability where only the head is named, else by distances.",
        )
    if HARMONIC in first and "nearest.pixels" in first[HARMONIC].arrays:
        drawn[f"prototypes_{dataset}"] = Picture(
            draw_prototypes(first[HARMONIC]),
            f"What harmonic centers stand for, {TITLES[dataset]}, first seed: the training images whose features lie "
            "nearest to the center of the class, and their distances; a frame marks another class.",
        )
    return drawn


def draw_accuracy(spec: ClassifierSpec, counted: Results) -> "Figure":
    """Draw a panel a data set, a line a head."""
    figure = drawing.new_figure(3.5 * len(spec.datasets) + 1.4, 1.9)
    panels = figure.subplots(1, len(spec.datasets), squeeze=False, sharey=True)[0]
    for axes, dataset in zip(panels, spec.datasets, strict=True):
        for place, head in enumerate(HEADS):
            _draw_interval(axes, counted, dataset, head, "test_accuracy", place)
        axes.set(xlabel="test accuracy, %", ylim=(len(HEADS) - 0.5, -0.5))
        axes.locator_params(axis="x", nbins=5)
        axes.set_title(short(dataset), fontsize=10)
    panels[0].set_yticks(range(len(HEADS)), [STYLES[head].label for head in HEADS])
    return figure


def _draw_interval(axes: "Axes", counted: Results, dataset: str, head: str, metric: str, place: float) -> None:
    mean, color = interval(counted, dataset, head, metric), STYLES[head].color
    if mean is None:
        return
    dots = 100 * np.array(values(counted, dataset, head, metric))
    above = place - 0.11 - 0.03 * (np.arange(len(dots)) % 3)  # clear of the bar
    axes.plot(dots, above, ".", color=color, alpha=0.55, markersize=5)
    if math.isfinite(mean.low):  # one seed has no interval
        ends = [100 * max(mean.low, 0.0), 100 * min(mean.high, 1.0)]
        axes.plot(ends, [place, place], color=color, linewidth=3, solid_capstyle="butt")
    axes.plot(100 * mean.estimate, place, "D", color=color, markeredgecolor="white", markersize=7, zorder=4)


def draw_outliers(spec: ClassifierSpec, counted: Results) -> "Figure":
    """Draw a panel a data set and outside set, a line a score, both heads on it."""
    pairs = [(dataset, outside) for dataset in spec.datasets for outside in outside_sets(counted, dataset)]
    figure = drawing.new_figure(4.2 * len(pairs) + 1.8, 3.3)
    panels = figure.subplots(1, len(pairs), squeeze=False, sharey=True)[0]
    for axes, (dataset, outside) in zip(panels, pairs, strict=True):
        for place, score in enumerate(SCORES):
            for head, shift in zip(HEADS, (-0.15, 0.25), strict=True):
                _draw_interval(axes, counted, dataset, head, detection_key(outside, score, "auroc"), place + shift)
        axes.set(xlabel="area under the ROC curve, %", ylim=(len(SCORES) - 0.5, -0.5))
        axes.set_title(f"{short(dataset)} against {short(outside)}", fontsize=10)
    panels[0].set_yticks(range(len(SCORES)), [SCORE_TITLES[score] for score in SCORES])
    _legend(figure)
    return figure


def _legend(figure: "Figure") -> None:
    handles = [drawing.mark_handle(STYLES[head].label, "D", STYLES[head].color) for head in HEADS]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))


def draw_tuning(spec: ClassifierSpec, tuned: Results) -> "Figure":
    """Draw a panel a data set, a line a head's exponent or scale of logits."""
    figure = drawing.new_figure(3.4 * len(spec.datasets) + 0.8, 3.3)
    panels = figure.subplots(1, len(spec.datasets), squeeze=False)[0]
    handles = []
    for axes, dataset in zip(panels, spec.datasets, strict=True):
        best = 0.0
        for head in HEADS:
            means = tuning_means(spec, tuned, dataset, head)
            for place, variant in enumerate(variants_of(spec, head)):
                x = [lr for lr in spec.lrs if Setting(lr, *variant) in means]
                y = [100 * means[Setting(lr, *variant)].accuracy for lr in x]
                looks = {"color": STYLES[head].color, "linestyle": DASHES[place % 4], "marker": MARKS[place % 4]}
                label = f"{STYLES[head].label}, {variant_words(*variant)}"
                (line,) = axes.plot(x, y, markersize=4.5, label=label, **looks)
                best = max([best, *y])
                if dataset == spec.datasets[0]:
                    handles.append(line)
        axes.set_ylim(max(axes.get_ylim()[0], best - FAR), None)
        axes.set_xscale("log", base=2)
        axes.set_xticks(spec.lrs, [f"{lr:g}" for lr in spec.lrs])
        axes.set(xlabel="learning rate")
        axes.set_title(short(dataset), fontsize=10)
    panels[0].set_ylabel("held-out accuracy, %")
    figure.legend(handles=handles, loc="outside upper center", ncols=len(HEADS))  # a column a head
    return figure


def draw_reliability(spec: ClassifierSpec, counted: Results) -> "Figure":
    """Draw a panel a data set, a line a head and seed."""
    figure = drawing.new_figure(3.2 * len(spec.datasets) + 0.6, 3.5)
    panels = figure.subplots(1, len(spec.datasets), squeeze=False)[0]
    for axes, dataset in zip(panels, spec.datasets, strict=True):
        lowest = 1.0
        for cell, result in counted.items():
            if cell.dataset == dataset:
                style = STYLES[cell.head]
                used = result.arrays["reliability.counts"] > 0
                x, y = (result.arrays[f"reliability.{name}"][used] for name in ("confidence", "accuracy"))
                axes.plot(x, y, color=style.color, linestyle=style.line, marker=".", alpha=0.7, linewidth=1.2)
                lowest = min(lowest, float(x.min()), float(y.min()))
        low = max(0.0, lowest - 0.04)
        axes.plot([low, 1], [low, 1], color="#999999", linewidth=1, zorder=1)
        axes.set(xlim=(low, 1.02), ylim=(low, 1.02), aspect="equal", xlabel="confidence")
        axes.set_title(short(dataset), fontsize=10)
    panels[0].set_ylabel("accuracy")
    handles = [drawing.line_handle(STYLES[head].label, STYLES[head].color, STYLES[head].line) for head in HEADS]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def draw_collapse(spec: ClassifierSpec, counted: Results) -> "Figure":
    """Draw a row a data set, a panel a measure."""
    with needs("figures"):
        from matplotlib import ticker

    figure = drawing.new_figure(11, 2.3 * len(spec.datasets) + 0.9)
    grid = figure.subplots(len(spec.datasets), len(COLLAPSE), squeeze=False)
    for row, dataset in zip(grid, spec.datasets, strict=True):
        for axes, (name, words) in zip(row, COLLAPSE.items(), strict=True):
            for head in HEADS:
                found = [r.curves for c, r in counted.items() if (c.dataset, c.head) == (dataset, head)]
                if found:
                    style, series = STYLES[head], [curves[name] for curves in found]
                    drawing.draw_band(axes, found[0]["snapshot_epoch"], series, color=style.color, line=style.line)
            if name == "within_between":
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
                axes.yaxis.set_minor_formatter(ticker.NullFormatter())
            else:
                axes.set_ylim(bottom=0)
            axes.set_title(words, fontsize=9)
        row[0].set_ylabel(short(dataset))
    for axes in grid[-1]:
        axes.set_xlabel("epoch")
    handles = [drawing.line_handle(STYLES[head].label, STYLES[head].color, STYLES[head].line) for head in HEADS]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def abstention_curves(first: dict[str, CellResult]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return coverage and accuracy by label, (K,) each, of one run a head."""
    scores: dict[str, tuple[str, np.ndarray]] = {}
    if LINEAR in first:
        scores["cross_entropy"] = LINEAR, first[LINEAR].arrays["max_softmax"]
    if HARMONIC in first:
        arrays = first[HARMONIC].arrays
        two = np.stack([arrays["winner_distance"], arrays["runner_up_distance"]], axis=1)
        scores["harmonic"] = HARMONIC, arrays["max_softmax"]
        scores["harmonic, nearest over second distance"] = HARMONIC, distance_ratio(two)
        scores["harmonic, distance to the nearest"] = HARMONIC, nearest_distance(two)
    curves = {}
    for label, (head, score) in scores.items():
        found = abstention_curve(first[head].arrays["right"].astype(bool), score)
        kept = np.unique(np.linspace(0, len(found.coverage) - 1, POINTS).round().astype(int))
        curves[label] = found.coverage[kept], found.accuracy[kept]
    return curves


def draw_prototypes(result: CellResult) -> "Figure":
    """Draw the images nearest to the centers of the first classes."""
    pixels = result.arrays["nearest.pixels"].astype(np.float32) / 255
    return draw_nearest(
        np.moveaxis(pixels, -1, 2) if pixels.ndim == 5 else pixels,
        result.arrays["nearest.distance"],
        result.arrays["nearest.label"],
        result.metrics["classes"],
    )
