"""Figures of the ResNets: accuracies, tuning, calibration, abstention, outliers, neural collapse, prototypes."""

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import Interval, abstention_curve, distance_ratio, nearest_distance
from harmax.errors import needs
from harmax.figures import Picture
from harmax.inspect.prototype_figures import draw_abstention, draw_nearest
from harmax_lab.kit import drawing
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.vision import classifiers_tuning as tuning
from harmax_lab.vision.trust_measures import SCORES, detection_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {
    tuning.CIFAR10: "CIFAR-10",
    tuning.CIFAR100: "CIFAR-100, 50 images per class",
    tuning.TINY: "Tiny ImageNet at 32 x 32, 100 images per class",
    "digits": "digits, 8 x 8",
    "generated": "generated patterns",
}
SHORT = {**TITLES, tuning.CIFAR100: "CIFAR-100 (part)", tuning.TINY: "Tiny ImageNet (part)"}
ACCURACY = "Test accuracy with either head"
RELIABILITY = "How often an answer is right, against how sure the classifier is"
OUTLIERS = "How well each score notices images of other classes"
POINTS = 300  # of an abstention curve
FAR = 20.0  # points below the best setting, which a panel of tuning does not show
LOOKS = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "v"))
COLLAPSE = {
    "within_between": "NC1: spread within over between",
    "simplex_means": "NC2: angles from a simplex's",
    "self_duality": "NC3: weights from class means",
    "disagreement": "NC4: not the nearest mean",
}


def figures(results: Results) -> dict[str, Picture]:
    """Draw what there is: figures over all data sets first, then prototypes and abstention one by one."""
    drawn, tuned = {}, results.where(stage=tuning.TUNING)
    counted = results.where(stage=tuning.FINAL).having(lambda run: run.metrics["diverged_at"] is None)
    if counted:
        drawn["classifiers_accuracy"] = _accuracy(counted)
        drawn["classifiers_reliability"] = _reliability(counted)
        drawn["classifiers_collapse"] = _collapse(counted)
    if tuning.outside_sets(counted):
        drawn["classifiers_outliers"] = _outliers(counted)
    if tuned:
        drawn["classifiers_tuning"] = _tuning(tuned)
    for dataset, own in counted.where(seed=results.spec.seeds[0]).groups("dataset").items():
        first = {cell.head: run for cell, run in own.items()}
        drawn[f"abstention_{dataset}"] = Picture(
            _draw_abstention(first),
            f"What not answering buys, {TITLES[dataset]}, test images, first seed. Images are left out from the least "
            "sure on: by the largest probability where only the head is named, else by distances.",
        )
        if tuning.HARMONIC in first and "nearest.pixels" in first[tuning.HARMONIC].arrays:
            drawn[f"prototypes_{dataset}"] = Picture(
                _draw_prototypes(first[tuning.HARMONIC], TITLES[dataset]),
                f"What harmonic centers stand for, {TITLES[dataset]}, first seed: the training images whose features "
                "lie nearest to the center of the class, and their distances; a frame marks another class.",
            )
    return drawn


def _panels(
    results: Results, width: float, more: float, height: float, **options: Any
) -> tuple["Figure", dict[str, "Axes"]]:
    titles = {dataset: SHORT.get(dataset, dataset) for dataset in results.spec.datasets}
    return drawing.panels_in_a_row(titles, size=(width * len(titles) + more, height), **options)


def _runs(counted: Results) -> str:
    """Say how many runs of how many epochs are drawn, as the end of a caption."""
    spec, found = counted.spec, []
    for dataset, own in counted.groups("dataset").items():
        seeds, epochs = len(own.distinct("seed")), spec.of(dataset, "epochs")
        found.append(f"{SHORT.get(dataset, dataset)} {seeds} seeds of {epochs} epochs")
    return f" Runs: {', '.join(found)}."


def _lines() -> list[Any]:
    return [drawing.line_handle(style.label, style.color, style.line) for style in tuning.STYLES.values()]


def _accuracy(counted: Results) -> Picture:
    figure, panels = _panels(counted, 3.5, 1.4, 2.2, xlabel="test accuracy, %", sharey=True, title=ACCURACY)
    for dataset, axes in panels.items():
        for place, head in enumerate(tuning.HEADS):
            _draw_interval(
                axes, counted.where(dataset=dataset, head=head), "test_accuracy", tuning.STYLES[head].color, place
            )
        axes.set(ylim=(len(tuning.HEADS) - 0.5, -0.5))
        axes.locator_params(axis="x", nbins=5)
        axes.set_yticks(range(len(tuning.HEADS)), [tuning.STYLES[head].label for head in tuning.HEADS])
    return Picture(
        figure,
        "Test accuracy. Small dots: seeds. Large mark and bar: mean and 95 % interval over seeds, cut at "
        "0 and 100 %. The interval describes training, not the choice of test images: all seeds have the same."
        + _runs(counted),
    )


def _draw_interval(axes: "Axes", own: Results, metric: str, color: str, place: float) -> None:
    dots = 100 * np.array(tuning.values(own, metric))
    if mean := tuning.over_seeds(own, metric):
        above = place - 0.11 - 0.03 * (np.arange(len(dots)) % 3)  # clear of the bar
        axes.plot(dots, above, ".", color=color, alpha=0.55, markersize=5)
        cut = mean if np.isinf(mean.low) else Interval(mean.estimate, max(mean.low, 0.0), min(mean.high, 1.0))
        look: Any = {"markeredgecolor": "white", "markersize": 7, "zorder": 4}
        drawing.draw_interval(axes, cut, place, color, scale=100, **look)


def _outliers(counted: Results) -> Picture:
    pairs = {
        (dataset, outside): f"{SHORT.get(dataset, dataset)} against {SHORT.get(outside, outside)}"
        for dataset in counted.spec.datasets
        for outside in tuning.outside_sets(counted.where(dataset=dataset))
    }
    handles = [drawing.mark_handle(style.label, "D", style.color) for style in tuning.STYLES.values()]
    size, words = (4.2 * len(pairs) + 1.8, 3.3), "area under the ROC curve, %"
    figure, panels = drawing.panels_in_a_row(
        pairs, size=size, xlabel=words, handles=handles, sharey=True, title=OUTLIERS
    )
    for (dataset, outside), axes in panels.items():
        for place, score in enumerate(SCORES):
            key = detection_key(outside, score, "auroc")
            for head, shift in zip(tuning.HEADS, (-0.15, 0.25), strict=True):
                own = counted.where(dataset=dataset, head=head)
                _draw_interval(axes, own, key, tuning.STYLES[head].color, place + shift)
        axes.set(ylim=(len(SCORES) - 0.5, -0.5))
        axes.set_yticks(range(len(SCORES)), list(SCORES.values()))
    return Picture(
        figure,
        "Area under the ROC curve for separating images of other classes from test images, by score; 50 % is "
        "chance. Marks as in the figure of accuracies. A linear head has no distances." + _runs(counted),
    )


def _tuning(tuned: Results) -> Picture:
    spec = tuned.spec
    figure, panels = _panels(tuned, 3.4, 0.8, 3.3, xlabel="learning rate", ylabel="held-out accuracy, %")
    for dataset, axes in panels.items():
        best = 0.0
        for head in tuning.HEADS:
            means = tuning.tuning_means(tuned, dataset, head)
            for first, (dash, mark) in zip(tuning.grid_of(spec, head)[:: len(spec.lrs)], cycle(LOOKS), strict=False):
                line = {lr: 100 * means[at].accuracy for lr in spec.lrs if (at := first._replace(lr=lr)) in means}
                look: Any = {"color": tuning.STYLES[head].color, "linestyle": dash, "marker": mark, "markersize": 4.5}
                axes.plot(
                    list(line), list(line.values()), label=f"{tuning.STYLES[head].label}, {first.variant}", **look
                )
                best = max([best, *line.values()])
        if best:  # an axis without points has no logarithms
            axes.set_ylim(max(axes.get_ylim()[0], best - FAR), None)
            axes.set_xscale("log", base=2)
            axes.set_xticks(spec.lrs, [f"{lr:g}" for lr in spec.lrs])
    handles = panels[spec.datasets[0]].get_lines()
    figure.suptitle("What the search tried, and how accurate it was")
    figure.legend(handles=handles, loc="outside lower center", ncols=len(tuning.HEADS))  # one column per head
    return Picture(
        figure,
        "Accuracy on the training images that were held out, by learning rate, one line per exponent or scale: "
        "means over the tuning seeds, in shorter runs than those that count. The other runs of a head are trained "
        f"with its highest point. More than {FAR:g} points below the best nothing is shown.",
    )


def _reliability(counted: Results) -> Picture:
    words: dict[str, Any] = {"xlabel": "confidence", "ylabel": "accuracy", "title": RELIABILITY}
    figure, panels = _panels(counted, 3.2, 0.6, 3.9, handles=_lines(), **words)
    for dataset, axes in panels.items():
        lowest = 1.0
        for cell, run in counted.where(dataset=dataset).items():
            used, style = run.arrays["reliability.counts"] > 0, tuning.STYLES[cell.head]
            x, y = (run.arrays[f"reliability.{name}"][used] for name in ("confidence", "accuracy"))
            axes.plot(x, y, color=style.color, linestyle=style.line, marker=".", alpha=0.7, linewidth=1.2)
            lowest = min(lowest, float(x.min()), float(y.min()))
        low = max(0.0, lowest - 0.04)
        axes.plot([low, 1], [low, 1], color="#999999", linewidth=1, zorder=1)
        axes.set(xlim=(low, 1.02), ylim=(low, 1.02), aspect="equal")
    return Picture(
        figure,
        "How often an answer is right (up) where the classifier is this sure (right), in 15 bins with equal "
        "numbers of test images; one line per seed. On the gray diagonal confidence is right, below it too high."
        + _runs(counted),
    )


def _collapse(counted: Results) -> Picture:
    with needs("figures"):
        from matplotlib.ticker import LogLocator

    rows = {dataset: SHORT.get(dataset, dataset) for dataset in counted.spec.datasets}
    size = (11, 2.3 * len(rows) + 0.9)
    title = "How far features gather at their class means during training"
    figure, panels = drawing.facets(rows, COLLAPSE, size=size, xlabel="epoch", handles=_lines(), title=title)
    for (dataset, name), axes in panels.items():
        for head, style in tuning.STYLES.items():
            own = counted.where(dataset=dataset, head=head)
            if own:
                epochs, series = own.curve("snapshot_epoch").values[0], own.curve(name).values
                drawing.draw_band(axes, epochs, series, color=style.color, line=style.line)
        if name == "within_between":
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        else:
            axes.set_ylim(bottom=0)
    return Picture(
        figure,
        "Neural collapse on training images, without augmentation, over the epochs of training; 0 is complete "
        "collapse. Lines: medians over seeds; bands: their range. NC3 compares directions and proportions of "
        "weights and class means, 2 where they are unrelated; NC4 is the share of images whose nearest class mean "
        "is not the class that the head says." + _runs(counted),
    )


def _draw_abstention(first: Mapping[str, CellResult]) -> "Figure":
    figure = draw_abstention(abstention_curves(first))
    figure.suptitle("What not answering buys", fontsize=11)
    return figure


def abstention_curves(first: Mapping[str, CellResult]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return coverage and accuracy by label, (K,) each for K points of a curve, of one run per head."""
    scores = {}
    if tuning.LINEAR in first:
        scores["cross_entropy"] = tuning.LINEAR, first[tuning.LINEAR].arrays["max_softmax"]
    if tuning.HARMONIC in first:
        arrays = first[tuning.HARMONIC].arrays
        two = np.stack([arrays["winner_distance"], arrays["runner_up_distance"]], axis=1)
        scores["harmonic"] = tuning.HARMONIC, arrays["max_softmax"]
        scores["harmonic, nearest over second distance"] = tuning.HARMONIC, distance_ratio(two)
        scores["harmonic, distance to the nearest"] = tuning.HARMONIC, nearest_distance(two)
    curves = {}
    for label, (head, score) in scores.items():
        found = abstention_curve(first[head].arrays["right"].astype(bool), score)
        kept = np.unique(np.linspace(0, len(found.coverage) - 1, POINTS).round().astype(int))
        curves[label] = found.coverage[kept], found.accuracy[kept]
    return curves


def _draw_prototypes(run: CellResult, dataset: str) -> "Figure":
    pixels = run.arrays["nearest.pixels"].astype(np.float32) / 255
    pixels = np.moveaxis(pixels, -1, 2) if pixels.ndim == 5 else pixels
    arrays = run.arrays
    figure = draw_nearest(pixels, arrays["nearest.distance"], arrays["nearest.label"], run.metrics["classes"])
    figure.suptitle(f"{dataset}: training images nearest to each center")
    return figure
