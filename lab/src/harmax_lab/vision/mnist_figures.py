"""Figures of `mnist`: the weights as pictures, twice, then accuracies and likeness to the classes."""

# V classes, H rows, W columns of pixels

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.errors import needs
from harmax.figures import HEAD_STYLES, Picture
from harmax_lab.kit import drawing
from harmax_lab.kit.judges import percent
from harmax_lab.kit.results import Results
from harmax_lab.paper.readings import ALIGNED
from harmax_lab.vision.one_layer import AUTHORS, HARMONIC, HEADS, PAPER_ACCURACY, PROTOCOLS, OneLayerSpec, title_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

MEAN = "class mean"
REACH = 1.0  # of the colors of weights: pixels have 0 to 1
SHADES = 65  # odd, so that 0 has its own; few, so that a PNG has room for all
BARS: dict[str, tuple[str, dict[str, Any]]] = {
    "near_zero_dark": ("that no image lights", {}),
    "near_zero_outside": ("that no image of the class lights", {"hatch": "////", "edgecolor": "white", "linewidth": 0}),
    "near_zero": ("all", {"alpha": 0.35}),
}


def figures(results: Results) -> dict[str, Picture]:
    """Draw the weights of each data set twice, then accuracies and correlations of all."""
    spec, drawn = results.spec, {}
    protocol = AUTHORS if AUTHORS in spec.protocols else spec.protocols[-1]  # the paper's figure comes from the code
    shown = HARMONIC, PROTOCOLS[protocol].standard
    for dataset in spec.datasets:
        own = results.where(dataset=dataset, protocol=protocol, head=shown, seed=spec.seeds[0])
        weights = own.array("weight").by("head")
        if weights:
            drawn[f"weights_{dataset}"] = _as_in_the_paper(own, weights, spec, dataset)
            drawn[f"signed_weights_{dataset}"] = _signed(own, weights, dataset)
    if results:
        drawn["mnist_accuracy"] = _accuracy(results)
        drawn["mnist_correlation"] = _correlation(results.where(protocol=protocol), protocol)
    return drawn


def _as_in_the_paper(own: Results, weights: Mapping[str, np.ndarray], spec: OneLayerSpec, dataset: str) -> Picture:
    limit = spec.near_zero
    title = f"{title_of(dataset)}, drawn as in the paper: weights below {limit:g} are yellow, all others purple"
    look = {"cmap": "viridis", "vmin": 0, "vmax": 1}
    rows = {label: found_VHW < limit for label, found_VHW in _rows(own, weights).items()}
    shares = []
    for head, w_VHW in weights.items():
        yellow, negative = (percent((w_VHW < end).mean(), 0) for end in (limit, -limit))
        shares.append(f"{HEAD_STYLES[head].label} {yellow} of the weights, {negative} below {-limit:g}")
    return Picture(
        _pictures(title, rows, **look)[0],
        f"{_runs(own)} Yellow means a *value* below {limit:g}, so weights far below 0 are yellow as well ("
        f"{'; '.join(shares)}). The next figure tells them apart. Compare the borders of the harmonic "
        "pictures with the others.",
    )


def _signed(own: Results, weights: Mapping[str, np.ndarray], dataset: str) -> Picture:
    with needs("figures"):
        from matplotlib import colormaps

    title = f"{title_of(dataset)}: the same weights with their sign, all on one scale"
    few = colormaps["RdBu"].resampled(SHADES)
    figure, image = _pictures(title, _rows(own, weights), cmap=few, vmin=-REACH, vmax=REACH)
    bar = figure.colorbar(image, ax=figure.axes, ticks=(-REACH, 0, REACH), extend="both", fraction=0.012, pad=0.01)
    bar.set_label("weight")
    cut = []
    for head, w_VHW in weights.items():
        sizes = np.abs(w_VHW)
        share = percent((sizes > REACH).mean(), 1)
        cut.append(f"{HEAD_STYLES[head].label} {share} (the largest is {sizes.max():.1f})")
    return Picture(
        figure,
        f"{_runs(own)} Blue is above 0, red below, white 0. The scale is that of the pixels, which have 0 to 1; larger "
        f"weights have its last color: {', '.join(cut)}. A center of a class would look like the class mean. Harmonic "
        "weights have about its size, but also strokes of both signs, which set the class apart from the others.",
    )


def _runs(own: Results) -> str:
    epochs = [f"{HEAD_STYLES[head].label} {found}" for head, found in own.metric("epochs").by("head").items()]
    (protocol,), (seed,) = own.distinct("protocol"), own.distinct("seed")
    title = PROTOCOLS[protocol].title
    return f"Settings: {title}, seed {seed}; epochs: {', '.join(epochs)}. Top: mean training image of each class."


def _rows(own: Results, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    labels = {head: HEAD_STYLES[head].label.replace(" with ", "\nwith ") for head in weights}
    return {MEAN: own.array("mean").values[0], **{labels[head]: found_VHW for head, found_VHW in weights.items()}}


def _pictures(title: str, rows: Mapping[str, np.ndarray], **look: Any) -> tuple["Figure", "AxesImage"]:
    """Draw a row of pictures (V, H, W) per label, and return the figure and one of its images."""
    figure = drawing.new_figure(11.4, 1.12 * len(rows) + 0.6)
    figure.suptitle(title)
    grid = figure.subplots(len(rows), len(rows[MEAN]), squeeze=False)
    for line, (label, found_VHW) in zip(grid, rows.items(), strict=True):
        line[0].set_ylabel(label)
        for axes, found_HW in zip(line, found_VHW, strict=True):
            axes.set(xticks=(), yticks=())
            axes.grid(False)
            axes.spines[:].set(visible=True, color="#bbbbbb", linewidth=0.5)
            image = axes.imshow(found_HW, interpolation="nearest", **look)
    return figure, image


def _accuracy(results: Results) -> Picture:
    spec = results.spec
    lines = [(protocol, head) for protocol in spec.protocols for head in PROTOCOLS[protocol].heads]
    figure, panels = drawing.panels_in_a_row(
        {dataset: title_of(dataset) for dataset in spec.datasets},
        size=(3.6 * len(spec.datasets) + 2.6, 0.31 * len(lines) + 1.5),
        xlabel="test accuracy, %",
        title="Test accuracy of one layer, by settings and head",
        sharey=True,
    )
    for dataset, axes in panels.items():
        for place, (protocol, head) in enumerate(lines):
            found = results.where(dataset=dataset, protocol=protocol, head=head).metric("test_accuracy")
            color, dots = HEAD_STYLES[head].color, 100 * np.array(found.values)
            if mean := found.mean():
                beside = place + 0.1 * (np.arange(len(dots)) % 5 - 2)
                axes.plot(dots, beside, ".", color=color, alpha=0.35, markersize=4)
                look: Any = {"markeredgecolor": "white", "markersize": 7, "zorder": 4}
                drawing.draw_interval(axes, mean, place, color, scale=100, **look)
        if dataset == "mnist":
            axes.axvline(100 * PAPER_ACCURACY[HARMONIC], color="#444444", linestyle="--", linewidth=1)
    first = panels[spec.datasets[0]]
    titles = [f"{PROTOCOLS[protocol].title}: {HEAD_STYLES[head].label}" for protocol, head in lines]
    first.set_yticks(range(len(lines)), titles)
    first.invert_yaxis()
    return Picture(
        figure,
        f"{len(spec.seeds)} seeds; {spec.fixed_epochs} epochs with the text's settings, up to {spec.most_epochs} with "
        "the others. Small dots: seeds. Large mark and bar: mean and its 95 % interval over seeds. Dashed line: the "
        "paper's 92.5 % for both heads on MNIST.",
    )


def _correlation(results: Results, protocol: str) -> Picture:
    with needs("figures"):
        from matplotlib.patches import Patch

    spec = results.spec
    short = [
        HEAD_STYLES[head].label.replace("cross-entropy", "cross-\nentropy").replace(" with", "\nwith") for head in HEADS
    ]
    figure, panels = drawing.facets(
        dict.fromkeys(spec.datasets, ""),
        {"correlation": "", "size": ""},
        size=(10.5, 2.6 * len(spec.datasets) + 0.6),
        width_ratios=(2, 1.2),
        handles=[drawing.mark_handle(HEAD_STYLES[head].label, "o", HEAD_STYLES[head].color) for head in HEADS],
        title="How much the weights look like their classes",
    )
    for dataset in spec.datasets:
        left, right = panels[dataset, "correlation"], panels[dataset, "size"]
        for place, head in enumerate(HEADS):
            own, color = results.where(dataset=dataset, head=head), HEAD_STYLES[head].color
            if not own:
                continue
            rows = np.stack(own.array("correlation").values)
            mean, x = rows.mean(0), np.arange(rows.shape[1]) + 0.16 * (place - 1)
            reach = np.stack([mean - rows.min(0), rows.max(0) - mean]).clip(min=0)
            left.errorbar(x, mean, yerr=reach, fmt="o", color=color, markersize=4.5, linewidth=1.4)
            for shift, (metric, (_, looks)) in enumerate(BARS.items()):
                if share := own.metric(metric).mean():
                    right.bar(place + 0.26 * (shift - 1), 100 * share.estimate, 0.24, color=color, **looks)
        left.axhline(0, color="#444444", linewidth=0.8)
        left.axhline(ALIGNED, color="#444444", linestyle="--", linewidth=1)
        left.set(title=f"{title_of(dataset)}: correlation with the class mean", ylim=(-0.1, 1.05), xticks=range(10))
        left.set_xlabel("class")
        right.set(title="weights near zero, %", ylim=(0, 104))
        right.set_xticks(range(len(HEADS)), short)
    keys = [Patch(facecolor="#777777", **looks, label=label) for label, looks in BARS.values()]
    panels[spec.datasets[0], "size"].legend(
        handles=keys, loc="upper right", fontsize=8, title="in pixels", title_fontsize=8
    )
    return Picture(
        figure,
        f"How far weights look like their classes. Settings: {PROTOCOLS[protocol].title}; {len(spec.seeds)} seeds, up "
        f"to {spec.most_epochs} epochs. Left: correlation of each class's weights with the mean image of the class, "
        f"mean over seeds, bars from the least to the greatest; dashed: {ALIGNED:g}, which would be almost perfect. "
        f"Right: share of weights of a size below {spec.near_zero:g}. A missing bar means that there is no such pixel.",
    )
