"""Pictures of the `theory` experiment: norms, both sides of the margin bound, stationarity, and the plane."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harmax.analysis import bootstrap_interval
from harmax.figures import HEAD_STYLES, Picture
from harmax_lab.kit import drawing
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult
from harmax_lab.toy.theory.separable import ARMS, HARMONIC, PLANE, PLANE_ARMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROUNDING = 1e-17  # smaller gradients and residuals are drawn here, on the edge of the axes
LEAST_LOSS_GAP = 1e-3
BAND = "a line is the median over seeds, a band their range"
BARS = "a mark is the median over seeds, a bar its 95 % bootstrap interval"
MARKERS = {"harmonic": "o", "harmonic_2": "s", "cross_entropy": "^", "cross_entropy_bias": "v"}

ByArm = Mapping[str, Sequence[CellResult]]


def figures(results: Results) -> dict[str, Picture]:
    """Draw one figure per theorem, and the plane, from whatever is finished."""
    spec, samples = results.spec, results.spec.samples[-1]
    measured = results.where(lambda cell: cell.features != PLANE)
    plane = {cell.arm: result for cell, result in results.items() if cell.features == PLANE}
    by_arm = _by_arm(measured, samples)
    where = f"{spec.classes} blobs in {spec.features} dimensions, {len(spec.seeds)} seeds"
    drawn = {}
    if by_arm:
        drawn["theory_norms"] = Picture(
            draw_norms(by_arm),
            f"{where}, m = {samples}; {BAND}. Above: cross-entropy's norm is a straight line against the logarithm of "
            "the step, the harmonic ones stop. Below: the harmonic gradients fall to rounding, cross-entropy's fade as "
            f"one over the step. The harmonic head without a note has the exponent sqrt({spec.features}).",
        )
    if measured:
        drawn["theory_bound"] = Picture(
            draw_bound(measured),
            f"{where}. First: R |W| / (gamma sqrt(m)) over training, m = {samples}, from the step at which half of the "
            f"seeds have every training point on the right side; {BAND}, as far as finite. Others, at the last step: "
            f"{BARS}; gaps below {1 / spec.test_samples:.0e} (error) or {LEAST_LOSS_GAP:.0e} (loss) are drawn there. "
            "Above the gray line at 1 a bound on an error rate says nothing.",
        )
    if any(arm in by_arm for arm in HARMONIC):
        drawn["theory_stationarity"] = Picture(
            draw_stationarity(measured, by_arm),
            f"{where}. Left, m = {samples}: distance of the farthest center from what the equation gives, with all "
            f"points and their signs, and with the members of the class alone; {BAND}. Middle: total weight of the "
            "other classes, all of it negative, by that of the own class. Right: mean distance of the centers from the "
            f"convex hull of their class. There a small dot is a seed, {BARS}.",
        )
    if plane:
        drawn["theory_plane"] = Picture(
            draw_plane(plane),
            "Three blobs in the plane, one seed. Dots: training points; crosses: class means; thin lines: the path of "
            "each weight from its start (ring) to the last step (diamond). Gray lines: where two classes tie. Harmonic "
            "centers (exponent 2) stop near the means, pushed away from the other classes, and with so many points in "
            "so few dimensions they can stay inside the hulls; cross-entropy's weights run on (the scales differ).",
        )
    return drawn


def draw_norms(by_arm: ByArm) -> "Figure":
    """Plot the norm of the weights over steps, and that of their gradient in a panel below."""
    figure = drawing.new_figure(7.2, 6.4)
    above, below = figure.subplots(2, 1, sharex=True)
    for arm, found in by_arm.items():
        _band(above, arm, found, lambda r: r.curves["weight_norm"])
        _band(below, arm, found, lambda r: np.maximum(r.curves["gradient_norm"], ROUNDING))
    above.set(title="norm of the weights", xscale="log", ylim=(0, None))
    below.set(title="norm of the gradient", yscale="log", xlabel="step")
    figure.legend(*above.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def draw_bound(results: Results) -> "Figure":
    """Draw the bound over steps, then over sizes beside the two measured gaps."""
    spec = results.spec
    figure = drawing.new_figure(9.4, 7.4)
    over_steps, bounds, errors, losses = figure.subplots(2, 2).flat
    samples = spec.samples[-1]
    for arm, found in _by_arm(results, samples).items():
        _band(over_steps, arm, found, lambda r: _bound_curve(r, samples))
    for arm in ARMS:
        _over_sizes(bounds, arm, results, lambda r: r.metrics["bound"])
        _over_sizes(errors, arm, results, lambda r: max(r.metrics["error_gap"], 1 / spec.test_samples))
        _over_sizes(losses, arm, results, lambda r: max(r.metrics["loss_gap"], LEAST_LOSS_GAP))
    for axes in (over_steps, bounds):
        axes.axhline(1, color="#888888", linewidth=1, zorder=0)
    over_steps.set(title=f"bound over training, m = {samples}", xscale="log", yscale="log", xlabel="step")
    bounds.set(title="bound at the last step", yscale="log")
    errors.set(title="measured: test minus training error", yscale="log")
    losses.set(title="measured: test minus training loss", yscale="log")
    for axes in (bounds, errors, losses):
        _size_axis(axes, spec.samples)
    for axes in (over_steps, bounds, errors, losses):
        _plain_log_ticks(axes)
    handles, labels = bounds.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


def draw_stationarity(results: Results, by_arm: ByArm) -> "Figure":
    """Draw the residuals over steps, the mass of the negative weights, and the distance from the hull."""
    figure = drawing.new_figure(10, 4.2)
    residuals, masses, hulls = figure.subplots(1, 3, width_ratios=(1.4, 1, 1))
    for arm in HARMONIC:
        _band(residuals, arm, by_arm.get(arm, ()), lambda r: np.maximum(r.curves["signed"], ROUNDING))
        _band(residuals, arm, by_arm.get(arm, ()), lambda r: r.curves["own"])
    residuals.text(0.97, 0.9, "members alone", transform=residuals.transAxes, ha="right")
    residuals.text(0.97, 0.1, "all points,\nsigned", transform=residuals.transAxes, ha="right")
    for arm in HARMONIC:
        _over_sizes(masses, arm, results, lambda r: r.metrics["negative_mass"], strip=True)
        _over_sizes(hulls, arm, results, lambda r: r.metrics["hull_distance"], strip=True)
    residuals.set(title="residual / spread", xscale="log", yscale="log", xlabel="step")
    masses.set(title="negative / positive weight", ylim=(0, None))
    hulls.set(title="distance to hull / spread", ylim=(0, None))
    for axes in (masses, hulls):
        _size_axis(axes, results.spec.samples)
    figure.legend(*masses.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def draw_plane(plane: Mapping[str, CellResult]) -> "Figure":
    """Draw each head's points, class means, weights and their paths in the plane."""
    arms = [arm for arm in PLANE_ARMS if arm in plane]
    figure = drawing.new_figure(4.8 * len(arms), 4.9)
    for arm, axes in zip(arms, figure.subplots(1, len(arms), squeeze=False)[0], strict=True):
        arrays = plane[arm].arrays
        points, target, path = arrays["points"], arrays["target"], arrays["weight"]
        reach = 1.15 * max(np.abs(points).max(), np.abs(path[-1]).max())
        _draw_ties(axes, arm, path[-1], reach)
        for index in range(path.shape[1]):
            color, members = drawing.class_color(index), points[target == index]
            axes.plot(*members.T, ".", color=color, markersize=5, alpha=0.55)
            axes.plot(*path[:, index].T, color=color, linewidth=1.1)
            axes.plot(*path[0, index], "o", color=color, markersize=4, markerfacecolor="white")
            axes.plot(*path[-1, index], "D", color=color, markersize=8, markeredgecolor="white", zorder=4)
            axes.plot(*members.mean(0), "x", color="black", markersize=8, markeredgewidth=1.8, zorder=5)
        axes.set(title=HEAD_STYLES[arm].label, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    return figure


def _draw_ties(axes: "Axes", arm: str, weight: np.ndarray, reach: float) -> None:
    offset = -np.square(weight).sum(1) / 2 if arm in HARMONIC else np.zeros(len(weight))
    side = np.linspace(-reach, reach, 401)
    grid = np.stack(np.meshgrid(side, side), -1)
    scores = grid @ weight.T + offset
    for index in range(len(weight)):
        others = np.delete(scores, index, -1).max(-1)
        axes.contour(side, side, scores[..., index] - others, levels=[0], colors="#999999", linewidths=1)


def _by_arm(results: Results, samples: int) -> dict[str, list[CellResult]]:
    found = results.where(samples=samples).groups("arm")
    return {arm: list(found[arm].values()) for arm in ARMS if arm in found}


def _bound_curve(result: CellResult, samples: int) -> np.ndarray:
    margin = result.curves["margin"]
    scale = result.metrics["radius"] * result.curves["weight_norm"] / np.sqrt(samples)
    return np.divide(scale, margin, out=np.full_like(margin, np.inf), where=margin > 0)


def _band(axes: "Axes", arm: str, found: Sequence[CellResult], curve: Callable[[CellResult], np.ndarray]) -> None:
    if not found:
        return
    style, step = HEAD_STYLES[arm], found[0].curves["step"]
    stacked = np.stack([curve(result) for result in found])
    middle = np.median(stacked, 0)
    shown = (step > 0) & np.isfinite(middle)
    top = np.where(np.isfinite(stacked), stacked, middle).max(0)
    axes.plot(step[shown], middle[shown], color=style.color, linestyle=style.line, label=style.label)
    axes.fill_between(step[shown], stacked.min(0)[shown], top[shown], color=style.color, alpha=0.18, linewidth=0)


def _over_sizes(
    axes: "Axes", arm: str, results: Results, value: Callable[[CellResult], float], *, strip: bool = False
) -> None:
    # Side by side, so that bars do not cover one another.
    style, shift = HEAD_STYLES[arm], 1.14 ** (ARMS.index(arm) - 0.5) if strip else 1.05 ** (ARMS.index(arm) - 1.5)
    own = results.where(arm=arm).groups("samples")
    found = {size: [value(result) for result in some.values()] for size, some in own.items()}
    sizes = [size for size in sorted(found) if np.isfinite(bootstrap_interval(found[size]).estimate)]
    if not sizes:
        return
    if strip:
        for size in sizes:
            beside = [size * shift / 1.05] * len(found[size])
            axes.plot(beside, found[size], ".", color=style.color, alpha=0.4, markersize=4)
    middles = [bootstrap_interval(found[size]) for size in sizes]
    medians = np.array([m.estimate for m in middles])
    highs = np.array([m.high if np.isfinite(m.high) else m.estimate for m in middles])
    lows = np.array([m.low for m in middles])
    axes.errorbar(
        np.array(sizes) * shift,
        medians,
        yerr=[medians - lows, highs - medians],
        color=style.color,
        linestyle=style.line,
        marker=MARKERS[arm],
        markersize=5,
        capsize=2.5,
        label=style.label,
    )


def _size_axis(axes: "Axes", sizes: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(list(sizes), labels=[str(size) for size in sizes])
    axes.set_xticks([], minor=True)
    axes.set(xlim=(sizes[0] / 1.25, sizes[-1] * 1.25), xlabel="training points m")


def _plain_log_ticks(axes: "Axes") -> None:
    low, high = axes.get_ylim()
    leads: tuple[float, ...] = (1,) if high / low > 500 else (1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 5, 7)
    every = [lead * 10.0**power for power in range(-6, 7) for lead in leads]
    ticks = [tick for tick in every if low <= tick <= high]
    axes.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
