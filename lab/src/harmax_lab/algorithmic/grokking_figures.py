"""How `grokking` is drawn: a mark per run, with a margin for runs that never get there."""

# S runs

from typing import TYPE_CHECKING, Any

import numpy as np

from harmax.figures import Picture
from harmax_lab.algorithmic import runs
from harmax_lab.algorithmic.anchors import GROKKING
from harmax_lab.algorithmic.protocols import HEADS
from harmax_lab.algorithmic.runs import ARMS, BODIES, TITLES
from harmax_lab.kit import drawing
from harmax_lab.kit.drawing import MODEL_STYLES
from harmax_lab.kit.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDES = {"train_epoch": "training", "test_epoch": "test"}
THEIRS = " Diamonds: the authors' medians, which are over the runs that reach both."
GRAY = "#555555"


def figures(results: Results) -> dict[str, Picture]:
    """Draw two figures per protocol, from whatever is finished."""
    drawn = {}
    for protocol, own in results.groups("protocol").items():
        for name, draw in (("pairs", _draw_pairs), ("epochs", _draw_epochs)):
            drawn[f"grokking_{name}_{protocol}"] = draw(own, protocol, protocol == "authors")
    return drawn


def _budget(results: Results, protocol: str) -> str:
    spec = results.spec
    epochs = f"{spec.mlp_epochs} epochs for MLPs, {spec.transformer_epochs} for transformers"
    return f"{protocol} protocol, {runs.seeds_of(results)}, {epochs}"


def _draw_pairs(results: Results, protocol: str, authors: bool) -> Picture:
    spec, tasks = results.spec, results.spec.tasks
    handles = [drawing.mark_handle(style.label, style.marker, style.color) for style in MODEL_STYLES.values()]
    handles += [drawing.mark_handle("authors' medians, MLPs", "D", "black", face="white")] * authors
    titles: dict[str, str] = {task: TITLES[task] for task in tasks}
    labels: dict[str, Any] = {"xlabel": "training epoch", "ylabel": "test epoch"}
    figure, panels = drawing.facets(BODIES, titles, size=(11, 5.8), sharex=True, sharey=True, **labels)
    figure.suptitle(f"When a run fits its training set, and when it generalizes ({protocol} protocol)")
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    longest = max(spec.epochs(task, model) for task in tasks for model in BODIES)
    for (model, task), axes in panels.items():
        never = _log_axis(axes, longest, "xy")
        axes.plot([1, never], [1, never], ":", color="#999999", linewidth=1.2, zorder=1)
        for place, head in enumerate(HEADS):
            style, own = MODEL_STYLES[model, head], results.where(arm=(model, head), task=task)
            if not own:
                continue
            x, y = (np.array(own.metric(name).values) for name in SIDES)
            look: Any = {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.4, "alpha": 0.8}
            axes.plot(_shown(x, never), _shown(y, never), style.marker, color=style.color, linestyle="none", **look)
            if missing := int(np.isinf(y).sum()):
                # Below the dotted line, where the test would come first, there is room.
                words: Any = {"transform": axes.transAxes, "color": style.color, "fontsize": 8.5, "ha": "right"}
                axes.text(0.82, 0.15 - 0.1 * place, f"never: {missing}", **words)
            if authors and (theirs := GROKKING.get((task, (model, head)))):
                for color, width in (("black", 2.6), (style.color, 1.2)):  # hollow, so that the runs below show
                    edge: Any = {"markerfacecolor": "none", "markeredgecolor": color, "markeredgewidth": width}
                    axes.plot(theirs.train_epoch, theirs.test_epoch, "D", markersize=8, zorder=5, **edge)
        axes.set_box_aspect(1)
    return Picture(
        figure,
        f"Each mark is a run ({_budget(results, protocol)}): the first of 20 epochs in a row with a training accuracy "
        "above 0.9, against the same of its test accuracy. On the dotted line there is no grokking. Runs "
        "that never get there lie in the gray margin; the numbers count those whose test accuracy never does, in the "
        f"color of their head.{THEIRS * authors}",
    )


def _draw_epochs(results: Results, protocol: str, authors: bool) -> Picture:
    handles = [
        drawing.mark_handle("a run, training accuracy", "o", GRAY, face="white"),
        drawing.mark_handle("a run, test accuracy", "o", GRAY),
        drawing.mark_handle("median of our runs", "|", GRAY, size=12),
        *[drawing.mark_handle("authors' median, MLPs", "D", "black")] * authors,
    ]
    figure, panels = runs.task_panels(results, (11, 7.0), handles=handles)
    figure.suptitle(f"Runs and medians: fitting the training set, and generalizing ({protocol} protocol)")
    for task, axes in panels.items():
        never = _log_axis(axes, max(results.spec.epochs(task, model) for model in BODIES), "x")
        for row, arm in enumerate(ARMS):
            own = results.where(arm=arm, task=task)
            for name, y, hollow in (("train_epoch", row - 0.2, True), ("test_epoch", row + 0.2, False)) if own else ():
                _draw_strip(axes, np.array(own.metric(name).values), y, MODEL_STYLES[arm].color, never, hollow=hollow)
                if authors and (theirs := GROKKING.get((task, arm))):
                    look: Any = {"markerfacecolor": "white" if hollow else "black", "markeredgecolor": "black"}
                    axes.plot(getattr(theirs, name), y, "D", markersize=4.5, zorder=5, **look)
        axes.set(ylim=(len(ARMS) - 0.5, -0.5), xlabel="first of 20 epochs above 0.9")
        axes.set_yticks(range(len(ARMS)), labels=runs.TICKS)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        for row in range(1, len(ARMS)):
            axes.axhline(row - 0.5, color="#e4e4e4", linewidth=0.7, zorder=0)
    return Picture(
        figure,
        f"One dot per run ({_budget(results, protocol)}): the first of 20 epochs in a row above 0.9, hollow for the "
        "training accuracy, filled for the test accuracy below. "
        "Upright strokes are medians over all runs. The gray margin counts the runs that never get there, in bold "
        f"where the median run does not.{THEIRS * authors}",
    )


def _draw_strip(axes: "Axes", found: np.ndarray, row: float, color: str, never: float, *, hollow: bool) -> None:
    finite, middle = np.sort(found[np.isfinite(found)]), np.median(found)
    look: Any = {"markerfacecolor": "white" if hollow else color, "markersize": 3.6, "markeredgewidth": 0.8}
    axes.plot(_shown(finite, never), row + 0.07 * (np.arange(len(finite)) % 3 - 1), "o", color=color, alpha=0.8, **look)
    if np.isfinite(middle):
        axes.plot(max(middle, 1), row, "|", color=color, markersize=15, markeredgewidth=2, zorder=4)
    if len(finite) < len(found):
        place: Any = {"ha": "center", "va": "center", "fontsize": 8.5, "color": color}
        weight = "normal" if np.isfinite(middle) else "bold"
        axes.text(never, row, str(len(found) - len(finite)), fontweight=weight, **place)


def _log_axis(axes: "Axes", epochs: int, which: str) -> float:
    """Give an axis logarithmic epochs and a margin for runs that never get there; return where these stand."""
    decades = [10**power for power in range(8) if 10**power <= max(epochs / 2, 1)]
    edge, never = epochs * 1.25, epochs * 2.2
    for axis, span in (("x", axes.axvspan), ("y", axes.axhspan)):
        if axis in which:
            span(edge, edge * 10, color="#f1f1f1", zorder=0, linewidth=0)
            ticks = getattr(axes, f"set_{axis}ticks")
            axes.set(**{f"{axis}scale": "log", f"{axis}lim": (0.8, epochs * 3.8)})
            ticks([*decades, never], labels=[*(f"$10^{len(str(d)) - 1}$" for d in decades), "never"])
            ticks([], minor=True)
    return never


def _shown(epochs: np.ndarray, never: float) -> np.ndarray:
    """Return epochs as drawn on a logarithmic axis, which has no 0."""
    return np.where(np.isfinite(epochs), np.maximum(epochs, 1), never)
