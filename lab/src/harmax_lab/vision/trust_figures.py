"""Pictures of trust: how often right against how sure, and how well each score tells outside images."""

from typing import TYPE_CHECKING

import numpy as np

from harmax.analysis import bootstrap_interval
from harmax.figures import HEAD_STYLES, Picture
from harmax_lab.kit import drawing
from harmax_lab.vision.one_layer import HARMONIC, title_of
from harmax_lab.vision.trust_claims import SCORE_TITLES, Arm, Results, interval, outside_title, values
from harmax_lab.vision.trust_measures import SCORES, detection_key
from harmax_lab.vision.trust_spec import BODIES, BODY_TITLES, TrustSpec, arm_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

STATES = {"trained": "as trained", "scaled": "after a temperature"}
MARKERS = {HARMONIC: "o", "cross_entropy": "D", "cross_entropy_bias": "s"}


def figures(spec: TrustSpec, results: Results) -> dict[str, Picture]:
    """Draw reliability diagrams and the areas under the ROC curves of all scores."""
    if not results:
        return {}
    return {
        "trust_reliability": Picture(
            draw_reliability(spec, results),
            f"Accuracy less confidence against confidence on the test images of {title_of(spec.known)}, in 15 bins of "
            "as many images each, mean over seeds, the bands 95 % bootstrap intervals over seeds. On the dashed line a "
            "classifier is as often right as it says; below it, it is too sure. Right: logits divided by a temperature "
            "fitted on held-out training images. In each panel the mean calibration errors, in points.",
        ),
        "trust_detection": Picture(
            draw_detection(spec, results),
            f"How well each score tells outside images from the test images of {title_of(spec.known)}: area under the "
            "ROC curve, 0.5 for a coin (dashed; below it outside images look better known than known ones), mean over "
            "seeds with its 95 % bootstrap interval. Distances are to the centers of a harmonic head; for "
            "cross-entropy to the class means of its features, which for one layer are the pixels themselves, so that "
            "both linear heads have the same.",
        ),
    }


def arm_color(spec: TrustSpec, arm: Arm) -> str:
    """Return an arm's color: its head's, paler for a harmonic head with a smaller exponent than another."""
    head, factor = arm
    return HEAD_STYLES["harmonic_amsgrad" if head == HARMONIC and factor < max(spec.factors) else head].color


def draw_reliability(spec: TrustSpec, results: Results) -> "Figure":
    """Draw a row a body, as trained and after a temperature."""
    figure = drawing.new_figure(9.2, 3.1 * len(BODIES) + 0.5)
    grid = figure.subplots(len(BODIES), len(STATES), squeeze=False, sharex="row", sharey="row")
    for line, body in zip(grid, BODIES, strict=True):
        for axes, (state, words) in zip(line, STATES.items(), strict=True):
            axes.axhline(0, color="#777777", linestyle="--", linewidth=1)
            for arm in spec.arms:
                _draw_curve(axes, spec, results, body, arm, state)
            axes.set_title(f"{BODY_TITLES[body]}, {words}")
        low, high = line[0].get_ylim()
        line[0].set_ylim(low, high + 0.12 * (high - low))  # room for the errors
        for axes, metric in zip(line, ("ece", "scaled_ece"), strict=True):
            _tell_errors(axes, spec, results, body, metric)
        line[0].set_ylabel("accuracy - confidence, points")
    for axes in grid[-1]:
        axes.set_xlabel("confidence, %")
    _add_legend(figure, spec)
    return figure


def _draw_curve(axes: "Axes", spec: TrustSpec, results: Results, body: str, arm: Arm, state: str) -> None:
    chosen = [r for cell, r in results.items() if (cell.body, cell.head, cell.factor) == (body, *arm)]
    if not chosen:
        return
    confidence, accuracy = (
        np.stack([result.arrays[f"{state}_{name}"] for result in chosen]) for name in ("confidence", "accuracy")
    )
    used = np.isfinite(confidence).all(0)  # equal confidences stay together, so that a bin may be empty
    gaps = [bootstrap_interval(100 * column, statistic="mean") for column in (accuracy - confidence)[:, used].T]
    x, color = 100 * confidence.mean(0)[used], arm_color(spec, arm)
    axes.plot(x, [gap.estimate for gap in gaps], color=color, marker=MARKERS[arm[0]], markersize=3.5, linewidth=1.4)
    axes.fill_between(x, [gap.low for gap in gaps], [gap.high for gap in gaps], color=color, alpha=0.18, linewidth=0)


def _tell_errors(axes: "Axes", spec: TrustSpec, results: Results, body: str, metric: str) -> None:
    axes.text(0.015, 0.93, "ECE", fontsize=8, transform=axes.transAxes)
    for place, arm in enumerate(spec.arms):
        found = values(results, body, arm, metric)
        if found:
            at, color = (0.09 + 0.1 * place, 0.93), arm_color(spec, arm)
            axes.text(*at, f"{100 * np.mean(found):.2f}", color=color, fontsize=8, transform=axes.transAxes)


def draw_detection(spec: TrustSpec, results: Results) -> "Figure":
    """Draw a row a body and a column an outside set: scores from top to bottom, arms side by side."""
    outside = spec.outside
    figure = drawing.new_figure(2.45 * len(outside) + 2.0, 2.7 * len(BODIES) + 0.6)
    grid = figure.subplots(len(BODIES), len(outside), squeeze=False, sharey=True, sharex=True)
    for line, body in zip(grid, BODIES, strict=True):
        for axes, name in zip(line, outside, strict=True):
            axes.axvline(0.5, color="#777777", linestyle="--", linewidth=1)
            for row, score in enumerate(SCORES):
                for place, arm in enumerate(spec.arms):
                    found = interval(results, body, arm, detection_key(name, score, "auroc"))
                    if found is not None:
                        at = row + 0.17 * (place - (len(spec.arms) - 1) / 2)
                        color = arm_color(spec, arm)
                        axes.plot(found[1:], [at, at], color=color, linewidth=3, solid_capstyle="butt")
                        axes.plot(found.estimate, at, MARKERS[arm[0]], color=color, markersize=5)
            # The whole scale: a score that ranks outside images above known ones must not fall off it.
            axes.set(title=outside_title(name), xlim=(-0.03, 1.03))
        line[0].set_ylabel(BODY_TITLES[body])
        line[0].set_yticks(range(len(SCORES)), [SCORE_TITLES[score] for score in SCORES])
    grid[0][0].invert_yaxis()
    for axes in grid[-1]:
        axes.set_xlabel("AUROC")
    _add_legend(figure, spec)
    return figure


def _add_legend(figure: "Figure", spec: TrustSpec) -> None:
    handles: list[Line2D] = [
        drawing.mark_handle(arm_label(*arm), MARKERS[arm[0]], arm_color(spec, arm)) for arm in spec.arms
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
