"""Pictures of the `theory` experiment: norms, scaled weights, the margin bound, centers, and Gaussian distances."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.analysis import bootstrap_interval
from harmax.figures import HEAD_STYLES, Picture
from harmax_lab.kit import drawing
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.toy.theory.distances import BASE, EXPONENTS
from harmax_lab.toy.theory.scaling import DRAWN
from harmax_lab.toy.theory.separable import ARMS, BLOBS, DIGITS, GAUSSIAN, HARMONIC, PLAIN, PLANE, PLANE_ARMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

ROUNDING = 1e-17  # smaller gradients and residuals are drawn here, on the edge of the axes
LEAST_LOSS_GAP, LEAST_LOSS = 1e-3, 1e-6
BAND = "a line is the median over seeds, a band their range"
BARS = "a mark is the median over seeds, a bar its 95 % bootstrap interval"
MARKERS = {"harmonic": "o", "harmonic_2": "s", "cross_entropy": "^", "cross_entropy_bias": "v"}

ByArm = Mapping[str, Sequence[CellResult]]
Value = Callable[[CellResult], Any]


def figures(results: Results) -> dict[str, Picture]:
    """Draw one figure per theorem, the plane, digits and distances, from whatever is finished."""
    spec = results.spec
    measured = results.where(data=BLOBS)
    plane, digits = (
        {cell.arm: one for cell, one in results.where(data=data, seed=spec.seeds[0]).items()}
        for data in (PLANE, DIGITS)
    )
    last = measured.where(samples=spec.samples[-1]).groups("arm")
    by_arm = {arm: list(last[arm].values()) for arm in ARMS if arm in last}
    blobs = (
        f"{spec.classes} blobs in {spec.features} dimensions, {len(spec.seeds)} seeds, {spec.steps:,} steps of "
        "gradient descent"
    )
    drawn = {}
    if by_arm:
        drawn["theory_norms"] = _draw_norms(spec, by_arm, blobs)
        drawn["theory_scaling"] = _draw_scaling(spec, by_arm, blobs)
    if measured:
        drawn["theory_bound"] = _draw_bound(measured, by_arm, blobs)
    if any(arm in by_arm for arm in HARMONIC):
        drawn["theory_stationarity"] = _draw_stationarity(measured, by_arm, blobs)
    if plane:
        drawn["theory_plane"] = _draw_plane(spec, plane)
    if digits:
        drawn["theory_digits"] = _draw_digits(spec, digits)
    if pairs := results.where(data=GAUSSIAN):
        drawn["theory_distances"] = _draw_distances(pairs)
    return drawn


def _titled(title: str, width: float, height: float) -> tuple["Figure", "SubFigure"]:
    """Return a figure with a title, and the part below it, whose legend does not run into the title."""
    figure = drawing.new_figure(width, height)
    figure.suptitle(title)
    return figure, figure.subfigures(1, 1, squeeze=False)[0, 0]


def _draw_norms(spec: Any, by_arm: ByArm, blobs: str) -> Picture:
    figure, body = _titled("Norm of the weights, and of the gradient, over training", 7.2, 6.9)
    above, below = body.subplots(2, 1, sharex=True)
    _bands(above, by_arm, lambda r: r.curves["weight_norm"])
    _bands(below, by_arm, lambda r: np.maximum(r.curves["gradient_norm"], ROUNDING))
    above.set(title="norm of the weights", xscale="log", ylim=(0, None))
    below.set(title="norm of the gradient", yscale="log", xlabel="step")
    body.legend(*above.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return Picture(
        figure,
        f"{blobs}, m = {spec.samples[-1]}; {BAND}. Above: cross-entropy's norm is a straight line against the "
        "logarithm of the step, the harmonic ones stop. Below: the harmonic gradients fall to rounding, "
        "cross-entropy's fade as one over the step. The harmonic head without a note has the exponent "
        f"sqrt({spec.features}).",
    )


def _draw_scaling(spec: Any, by_arm: ByArm, blobs: str) -> Picture:
    titles = {"scaled_first": "from the first step with all points right", "scaled_last": "from the last step"}
    figure, body = _titled("Loss when only the weights are multiplied by a factor t", 9.6, 4.8)
    for axes, (name, title) in zip(body.subplots(1, 2, sharey=True), titles.items(), strict=True):
        for arm in (arm for arm in ARMS[:3] if arm in by_arm):
            series = [np.maximum(result.arrays[name], ROUNDING) for result in by_arm[arm]]
            drawing.draw_head_curves(axes, arm, DRAWN, series)
        axes.axvline(1, color="#888888", linewidth=1, zorder=0)
        axes.set(title=title, xscale="log", yscale="log", xlabel="factor t", ylim=(LEAST_LOSS, 3))
    body.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return Picture(
        figure,
        f"{blobs}, m = {spec.samples[-1]}; {BAND}. The data stay as they are, only the weights are multiplied by t. "
        "Cross-entropy: larger weights always have a lower loss. Harmonic: at the last step (right) the loss is lowest "
        "at t = 1, a finite minimum. At the first step at which all training points are right (left) larger weights "
        "still lower it.",
    )


def _draw_bound(results: Results, by_arm: ByArm, blobs: str) -> Picture:
    spec, samples = results.spec, results.spec.samples[-1]
    figure, body = _titled("The margin bound R |W| / (gamma sqrt(m)), and the gaps that it should bound", 9.4, 8)
    over_steps, bounds, errors, losses = body.subplots(2, 2).flat
    least = {"error_gap": 1 / spec.test_samples, "loss_gap": LEAST_LOSS_GAP}
    _bands(over_steps, by_arm, lambda r: _bound_curve(r, samples))
    _over_sizes(bounds, results, lambda r: r.metrics["bound"])
    _over_sizes(errors, results, lambda r: max(r.metrics["error_gap"], least["error_gap"]))
    _over_sizes(losses, results, lambda r: max(r.metrics["loss_gap"], least["loss_gap"]))
    over_steps.set(title=f"bound over training, m = {samples}", xscale="log", xlabel="step")
    bounds.set(title="bound at the last step")
    errors.set(title="measured: test minus training error")
    losses.set(title="measured: test minus training loss")
    for axes in (over_steps, bounds):
        axes.axhline(1, color="#888888", linewidth=1, zorder=0)
    for axes in (over_steps, bounds, errors, losses):
        axes.set_yscale("log")
        _plain_log_ticks(axes)
    body.legend(*bounds.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return Picture(
        figure,
        f"{blobs}. First: R |W| / (gamma sqrt(m)) over training, m = {samples}, from the step at which half of the "
        f"seeds have every training point on the right side; {BAND}, as far as finite. Others, at the last step: "
        f"{BARS}; gaps below {least['error_gap']:.0e} (error) or {LEAST_LOSS_GAP:.0e} (loss) are drawn there. "
        "Above the gray line at 1 a bound on an error rate says nothing.",
    )


def _draw_stationarity(results: Results, by_arm: ByArm, blobs: str) -> Picture:
    figure, body = _titled("Harmonic centers: are they averages of their own class?", 10, 4.8)
    residuals, masses, hulls = body.subplots(1, 3, width_ratios=(1.4, 1, 1))
    harmonic = {arm: found for arm, found in by_arm.items() if arm in HARMONIC}
    _bands(residuals, harmonic, lambda r: np.maximum(r.curves["signed"], ROUNDING), lambda r: r.curves["own"])
    residuals.text(0.97, 0.9, "members alone", transform=residuals.transAxes, ha="right")
    residuals.text(0.97, 0.1, "all points,\nsigned", transform=residuals.transAxes, ha="right")
    _over_sizes(masses, results, lambda r: r.metrics["negative_mass"], HARMONIC, strip=True)
    _over_sizes(hulls, results, lambda r: r.metrics["hull_distance"], HARMONIC, strip=True)
    residuals.set(title="residual / spread", xscale="log", yscale="log", xlabel="step")
    masses.set(title="negative / positive weight", ylim=(0, None))
    hulls.set(title="distance to hull / spread", ylim=(0, None))
    body.legend(*masses.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return Picture(
        figure,
        f"{blobs}. Left, m = {results.spec.samples[-1]}: distance of the farthest center from what the equation "
        f"gives, with all points and their signs, and with the members of the class alone; {BAND}. Middle: total "
        "weight of the other classes, all of it negative, by that of the own class. Right: mean distance of the "
        f"centers from the convex hull of their class. There a small dot is a seed, {BARS}.",
    )


def _draw_plane(spec: Any, plane: Mapping[str, CellResult]) -> Picture:
    titles = {arm: HEAD_STYLES[arm].label for arm in PLANE_ARMS if arm in plane}
    figure, panels, _ = drawing.wrapped(titles, len(titles), size=(4.8 * len(titles), 5.2))
    figure.suptitle("Where the weights go: three blobs in the plane")
    for arm, axes in panels.items():
        points, target, path = (plane[arm].arrays[name] for name in ("points", "target", "weight"))
        reach = 1.15 * max(np.abs(points).max(), np.abs(path[-1]).max())
        _draw_ties(axes, arm, path[-1], reach)
        for index in range(path.shape[1]):
            color, members = drawing.class_color(index), points[target == index]
            axes.plot(*members.T, ".", color=color, markersize=5, alpha=0.55)
            axes.plot(*path[:, index].T, color=color, linewidth=1.1)
            axes.plot(*path[0, index], "o", color=color, markersize=4, markerfacecolor="white")
            axes.plot(*path[-1, index], "D", color=color, markersize=8, markeredgecolor="white", zorder=4)
            axes.plot(*members.mean(0), "x", color="black", markersize=8, markeredgewidth=1.8, zorder=5)
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    return Picture(
        figure,
        f"Three blobs in the plane, one seed, {spec.steps:,} steps of gradient descent. Dots: training points; "
        "crosses: class means; thin lines: the path of each weight from its start (ring) to the last step (diamond). "
        "Gray lines: where two classes tie. Harmonic centers (exponent 2) stop near the means, pushed away from the "
        "other classes, and with so many points in so few dimensions they can stay inside the hulls; cross-entropy's "
        "weights run on (the scales differ).",
    )


def _draw_digits(spec: Any, digits: Mapping[str, CellResult]) -> Picture:
    rows = {"mean": "class mean"} | {arm: HEAD_STYLES[arm].label for arm in PLAIN if arm in digits}
    some = next(iter(digits.values())).arrays
    classes = range(int(some["target"].max()) + 1)
    pictures = {"mean": np.stack([some["points"][some["target"] == index].mean(0) for index in classes])}
    pictures |= {arm: digits[arm].arrays["weight"][-1] for arm in rows if arm != "mean"}
    figure, panels = drawing.facets(rows, {index: str(index) for index in classes}, size=(9.6, 1.05 * len(rows) + 0.9))
    figure.suptitle("Weights of heads that learned digits, beside the class means")
    for (row, index), axes in panels.items():
        reach = np.abs(pictures[row]).max()
        axes.imshow(pictures[row][index].reshape(8, 8), cmap="RdBu_r", vmin=-reach, vmax=reach)
        axes.set(xticks=[], yticks=[])
        axes.grid(False)
    return Picture(
        figure,
        f"One seed, {spec.digits} images of handwritten digits to train on, {spec.steps:,} steps of gradient descent. "
        "Above: the mean of the training images of each class. Below: each head's weights as pictures. Red is "
        "positive, blue negative; each row has its own scale. Harmonic weights are the class means with too much "
        "contrast: the other classes push them away.",
    )


def _draw_distances(pairs: Results) -> Picture:
    figure, body = _titled("Distances between Gaussian points concentrate; powers of them may not", 9.6, 4.4)
    scatter, spread = body.subplots(1, 2)
    sizes = pairs.distinct("features")
    words = {"root": "n = sqrt(D)", "fixed": f"n = {EXPONENTS['fixed'](BASE):g}", "proportional": "n = D / 4"}

    def draw(axes: "Axes", metric: str, color: str, marker: str, label: str) -> None:
        found = [pairs.where(features=size).metric(metric).mean() for size in sizes]
        axes.plot(sizes, [one.estimate for one in found if one], color=color, marker=marker, label=label)

    draw(scatter, "scatter", "#0072B2", "o", "measured")
    scatter.plot(sizes, np.sqrt(2 / np.array(sizes)), color="#888888", linestyle=":", label="sqrt(2 / D)")
    for (name, label), color, marker in zip(words.items(), ("#0072B2", "#D55E00", "#009E73"), "o^s", strict=True):
        draw(spread, f"spread_{name}", color, marker, label)
    scatter.set(title="scatter of squared distances, share of the mean")
    spread.set(title="spread of d^n, share of the median")
    for axes in (scatter, spread):
        axes.set(xscale="log", yscale="log", xlabel="dimensions D")
        axes.set_xticks(sizes, labels=[f"{size:,}" for size in sizes])
        axes.set_xticks([], minor=True)
        _plain_log_ticks(axes)
        axes.legend()
    return Picture(
        figure,
        f"{pairs.spec.pairs:,} pairs of points of a D-dimensional Gaussian, mean over {len(pairs.spec.seeds)} seeds "
        "(their intervals are smaller than the marks). Left: standard deviation of the squared distances over their "
        "mean. Right: distance between the quartiles of d^n over its median, for three rules of the exponent that "
        f"agree at D = {BASE}. Only with n = sqrt(D) it stays the same.",
    )


def _draw_ties(axes: "Axes", arm: str, weight: np.ndarray, reach: float) -> None:
    offset = -np.square(weight).sum(1) / 2 if arm in HARMONIC else np.zeros(len(weight))
    side = np.linspace(-reach, reach, 401)
    scores = np.stack(np.meshgrid(side, side), -1) @ weight.T + offset
    for index in range(len(weight)):
        others = np.delete(scores, index, -1).max(-1)
        axes.contour(side, side, scores[..., index] - others, levels=[0], colors="#999999", linewidths=1)


def _bound_curve(result: CellResult, samples: int) -> np.ndarray:
    margin = result.curves["margin"]
    scale = result.metrics["radius"] * result.curves["weight_norm"] / np.sqrt(samples)
    return np.divide(scale, margin, out=np.full_like(margin, np.inf), where=margin > 0)


def _bands(axes: "Axes", by_arm: ByArm, *curves: Value) -> None:
    """Draw curves of every head over the steps after the first, as far as their median is finite."""
    for arm, found in by_arm.items():
        style, step = HEAD_STYLES[arm], found[0].curves["step"]
        for curve in curves:
            stacked = np.stack([curve(result) for result in found])
            middle = np.median(stacked, 0)
            shown = (step > 0) & np.isfinite(middle)
            top = np.where(np.isfinite(stacked), stacked, middle).max(0)
            axes.plot(step[shown], middle[shown], color=style.color, linestyle=style.line, label=style.label)
            axes.fill_between(
                step[shown], stacked.min(0)[shown], top[shown], color=style.color, alpha=0.18, linewidth=0
            )


def _over_sizes(
    axes: "Axes", results: Results, value: Value, arms: tuple[str, ...] = ARMS, *, strip: bool = False
) -> None:
    """Draw a number of every head against the size of the training set, and on request every seed as a dot."""
    sizes = results.spec.samples
    for place, arm in enumerate(arms):
        style, shift = HEAD_STYLES[arm], (1.14 if strip else 1.05) ** (place - (len(arms) - 1) / 2)
        groups = results.where(arm=arm).groups("samples")
        found = {size: [value(result) for result in groups[size].values()] for size in sizes if size in groups}
        middles = {size: bootstrap_interval(values) for size, values in found.items()}
        shown = [size for size, middle in middles.items() if np.isfinite(middle.estimate)]
        if not shown:
            continue
        for size in shown if strip else ():
            beside = [size * shift / 1.05] * len(found[size])
            axes.plot(beside, found[size], ".", color=style.color, alpha=0.4, markersize=4)
        medians, lows, highs = np.array([middles[size] for size in shown]).T
        reach = [medians - lows, np.where(np.isfinite(highs), highs, medians) - medians]
        look: Any = {"color": style.color, "linestyle": style.line, "marker": MARKERS[arm], "label": style.label}
        # Side by side, so that bars do not cover one another.
        axes.errorbar(np.array(shown) * shift, medians, yerr=reach, markersize=5, capsize=2.5, **look)
    axes.set_xscale("log")
    axes.set_xticks(list(sizes), labels=list(map(str, sizes)))
    axes.set_xticks([], minor=True)
    axes.set(xlim=(sizes[0] / 1.25, sizes[-1] * 1.25), xlabel="training points m")


def _plain_log_ticks(axes: "Axes") -> None:
    low, high = axes.get_ylim()
    leads: tuple[float, ...] = (1,) if high / low > 500 else (1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 5, 7)
    every = [lead * 10.0**power for power in range(-6, 7) for lead in leads]
    ticks = [tick for tick in every if low <= tick <= high]
    axes.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
