"""Figures of `harmax bench loss` on a GPU: two sweeps of sizes, and every implementation at a few sizes."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harmax.bench.loss import ON_GPU, Shape
from harmax.errors import needs
from harmax.figures import HEAD_STYLES, TRAIN_COLOR, Picture, house_style, new_figure, to_png
from harmax.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

LINEAR, HARMONIC = HEAD_STYLES["cross_entropy"].color, HEAD_STYLES["harmonic"].color
OF_CROSS_ENTROPY = {
    "cross_entropy_compiled": "compiled",
    "cross_entropy": "eager",
    "liger": "Liger",
    "cut_cross_entropy": "CCE",
}
OF_HARMONIC = ("triton_fast", "triton_balanced", "triton_lean", "chunked", "eager_compiled", "eager", "textbook")
SUBJECTS: dict[str, tuple[str, str]] = {
    "three_products": ("three bare products", TRAIN_COLOR),
    **{impl: (f"cross-entropy, {words}", LINEAR) for impl, words in OF_CROSS_ENTROPY.items()},
    **{impl: (f"harmonic, {impl.replace('_', ' ')}", HARMONIC) for impl in OF_HARMONIC},
}
"""Label and color of everything that is measured, in the order of charts and tables. The color shows the head."""


class Curve(NamedTuple):
    """How one implementation is drawn in the sweeps."""

    label: str
    color: str
    line: str
    marker: str


YARDSTICK, PRODUCTS = "cross_entropy_compiled", "three_products"
# Shades of the harmonic head's color, darker for modes that use less memory. Marks tell them apart in gray print.
CURVES: dict[str, Curve] = {
    PRODUCTS: Curve("three bare products", TRAIN_COLOR, "--", ""),
    YARDSTICK: Curve("cross-entropy, compiled", LINEAR, "-", "D"),
    "triton_fast": Curve("harmonic, fast", "#3FA0DB", "-", "o"),
    "triton_balanced": Curve("harmonic, balanced", HARMONIC, "-", "s"),
    "triton_lean": Curve("harmonic, lean", "#00324D", "-", "^"),
}
UNITS = {"time": "time per step, ms", "memory": "peak memory with gradients, MiB"}
LABEL_GAP = 0.065
"""Smallest distance between two labels beside a panel, as a share of its height."""


CAPTIONS = {
    "loss_sweep": "Time and memory per step, against the number of tokens and of classes. Lines are medians, bands go "
    "from the 20th to the 80th percentile. Beside each curve: its ratio to compiled cross-entropy at the right end.",
    "loss_anchors": "Time per step relative to compiled cross-entropy, on a logarithmic scale. Orange: linear head. "
    "Blue: harmonic head. Gray: the three matrix products that both need. Numbers at the right: peak memory with "
    "gradients, in MiB.",
}


def cost(row: Row, what: str) -> float:
    """Return the median time per step in ms, or the peak memory including gradients in MiB.

    >>> row = {"ms_p50": 3.5, "peak_mib": 100.0, "gradients_mib": 28.5}
    >>> cost(row, "time"), cost(row, "memory")
    (3.5, 128.5)
    """
    return float(row["ms_p50"]) if what == "time" else float(row["peak_mib"] + row["gradients_mib"])


def shape_of(row: Row) -> Shape:
    """Return the sizes of the problem of a row."""
    return Shape(row["tokens"], row["features"], row["classes"])


def label(impl: str) -> str:
    """Return the label of an implementation in tables and charts."""
    return SUBJECTS[impl][0] if impl in SUBJECTS else impl.replace("_", " ")


def anchors(rows: Sequence[Row]) -> dict[Shape, dict[str, Row]]:
    """Return the rows of the shapes at which every implementation is measured, by shape and by implementation."""
    found = {shape: {row["impl"]: row for row in rows if shape_of(row) == shape} for shape in ON_GPU}
    return {shape: by_impl for shape, by_impl in found.items() if by_impl}


def sweep(rows: Sequence[Row], along: str) -> list[Row]:
    """Return the largest set of rows whose sizes differ only in `along` ("tokens" or "classes"), in order."""
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(shape_of(row)._replace(**{along: 0})), []).append(row)
    sizes = {fixed: len({row[along] for row in group}) for fixed, group in groups.items()}
    best = max(sizes, key=lambda fixed: sizes[fixed], default=())
    if sizes.get(best, 0) < 2:
        raise ValueError(
            f"`rows` must hold a sweep over {along}, two or more sizes with the other sizes equal, got "
            f"{sizes.get(best, 0)}; run `harmax bench loss --device cuda`."
        )
    return sorted(groups[best], key=lambda row: row[along])


def pictures(rows: Sequence[Row]) -> dict[str, Picture]:
    """Return the figures of the rows of `harmax bench loss`, by file name."""
    with house_style():
        drawn = {"loss_sweep": draw_sweep(rows), "loss_anchors": draw_anchors(rows)}
    return {name: Picture(figure, CAPTIONS[name]) for name, figure in drawn.items()}


def write_figures(rows: Sequence[Row], folder: Path | str) -> list[Path]:
    """Write the figures as PNG files. The same rows give the same bytes."""
    written = []
    for name, picture in pictures(rows).items():
        written.append(Path(folder) / f"{name}.png")
        write_atomically(written[-1], to_png(picture.figure))
    return written


def draw_sweep(rows: Sequence[Row]) -> "Figure":
    """Draw time (top) and memory (bottom), against tokens (left) and classes (right)."""
    swept = {along: sweep(rows, along) for along in ("tokens", "classes")}
    figure = new_figure(10, 7.4)
    figure.suptitle(_headline(swept), fontsize=11.5)
    grid = figure.subplots(2, 2)
    for column, (along, found) in enumerate(swept.items()):
        for axes, what in zip(grid[:, column], UNITS, strict=True):
            _draw_panel(axes, found, along, what)
        fixed = shape_of(found[0])._asdict()
        others = " and ".join(f"{size} {name}" for name, size in fixed.items() if name != along)
        grid[0, column].set_title(f"Number of {along}, at {others}")
    for row in grid:
        # Both panels of a row have the same scale.
        low, high = (pick(axes.get_ylim()[end] for axes in row) for end, pick in ((0, min), (1, max)))
        for axes in row:
            axes.set_ylim(low, high)
            _label_ends(axes)
    return figure


def _draw_panel(axes: "Axes", rows: Sequence[Row], along: str, what: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=along, ylabel=UNITS[what])
    for impl, style in CURVES.items():
        own = [row for row in rows if row["impl"] == impl]
        if not own or (impl == PRODUCTS and what == "memory"):  # the products bound only the time
            continue
        x = [row[along] for row in own]
        marks: dict[str, Any] = {"marker": style.marker, "markersize": 4, "linewidth": 1.2}
        axes.plot(x, [cost(row, what) for row in own], style.line, color=style.color, label=style.label, **marks)
        if what == "time":
            low, high = ([row[key] for row in own] for key in ("ms_p20", "ms_p80"))
            axes.fill_between(x, low, high, color=style.color, alpha=0.2, linewidth=0)
    sizes = sorted({row[along] for row in rows})
    axes.set_xticks(sizes, [f"{size / 1000:.0f}k" if size >= 1000 else str(size) for size in sizes])
    axes.tick_params(axis="x", labelsize=8.5)
    axes.tick_params(axis="x", which="minor", length=0, labelbottom=False)
    _plain_ticks(axes.yaxis)


def _plain_ticks(axis: "Axis", subs: Sequence[float] = (1, 2, 5)) -> None:
    """Label a logarithmic axis 1, 2, 5, 10, ... without powers of ten."""
    with needs("figures"):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=tuple(subs)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value < 1e4 else f"{value / 1000:g}k"))
    axis.set_minor_locator(NullLocator())


def _label_ends(axes: "Axes") -> None:
    """Label each curve beside the panel, with its ratio to the yardstick at its last size."""
    low, high = map(math.log, axes.get_ylim())
    curves = {str(line.get_label()): (line, np.asarray(line.get_xydata()).tolist()) for line in axes.get_lines()}
    own = CURVES[YARDSTICK].label
    yardstick = dict(curves[own][1]) if own in curves else {}
    texts, heights = [], []
    for name, (line, points) in curves.items():
        x, y = points[-1]
        ratio = f" {ratio_words(y / yardstick[x])}x" if x in yardstick and name != own else ""
        texts.append((f"{name}{ratio}", line.get_color()))
        heights.append((math.log(y) - low) / (high - low))
    for (text, color), height in zip(texts, spread(heights, LABEL_GAP), strict=True):
        axes.text(1.02, height, text, color=color, transform=axes.transAxes, va="center", fontsize=8.5)


def spread(heights: Sequence[float], gap: float, top: float = 0.97) -> list[float]:
    """Move heights apart until any two differ by at least `gap`. Close heights form a stack around their mean.

    >>> [round(height, 3) for height in spread([0.5, 0.9, 0.6], 0.2)]
    [0.45, 0.9, 0.65]
    """
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    stacks: list[list[float]] = []
    for index in order:
        stacks.append([heights[index]])
        while len(stacks) > 1 and _stacked(stacks[-2], gap, top)[-1] + gap > _stacked(stacks[-1], gap, top)[0]:
            stacks[-2:] = [stacks[-2] + stacks[-1]]
    moved = [height for stack in stacks for height in _stacked(stack, gap, top)]
    return [moved[order.index(index)] for index in range(len(heights))]


def _stacked(heights: Sequence[float], gap: float, top: float) -> list[float]:
    reach = gap * (len(heights) - 1)
    base = min(sum(heights) / len(heights) - reach / 2, top - reach)
    return [base + gap * index for index in range(len(heights))]


def ratio_words(ratio: float) -> str:
    """Return a ratio with two significant digits or two decimals.

    >>> ratio_words(1.4242), ratio_words(0.0347)
    ('1.42', '0.035')
    """
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _headline(swept: Mapping[str, Sequence[Row]]) -> str:
    """Return the headline: time of the fastest mode and memory of the leanest mode, relative to the yardstick."""
    rows = [row for found in swept.values() for row in found]
    yardstick = {shape_of(row): row for row in rows if row["impl"] == YARDSTICK}
    seen = []
    for impl, what in (("triton_fast", "time"), ("triton_lean", "memory")):
        own = [row for row in rows if row["impl"] == impl and shape_of(row) in yardstick]
        ratios = [cost(row, what) / cost(yardstick[shape_of(row)], what) for row in own]
        if ratios:
            mode = impl.removeprefix("triton_")
            seen.append(f"{mode} {ratio_words(min(ratios))} to {ratio_words(max(ratios))} times its {what}")
    title = f"Harmonic loss compared with compiled cross-entropy{_where(rows)}"
    return f"{title}:\n{', '.join(seen)}" if seen else title


def _where(rows: Sequence[Row]) -> str:
    gpu = rows[0].get("gpu")
    return f" ({rows[0]['dtype']}, {gpu})" if gpu else f" ({rows[0]['dtype']})"


def draw_anchors(rows: Sequence[Row]) -> "Figure":
    """Draw one panel per shape and one line per implementation: a dot at its relative time, its memory as a number."""
    found = {shape: by_impl for shape, by_impl in anchors(rows).items() if YARDSTICK in by_impl}
    if not found:
        wanted = ", ".join(" x ".join(map(str, shape)) for shape in ON_GPU)
        raise ValueError(
            f"`rows` must hold {YARDSTICK} at one of the shapes {wanted}, got none; run "
            "`harmax bench loss --device cuda`."
        )
    names = [impl for impl in SUBJECTS if any(impl in by_impl for by_impl in found.values())]
    figure = new_figure(2.2 + 2.75 * len(found), 1.4 + 0.27 * len(names))
    title = f"Time per step relative to compiled cross-entropy, and peak memory{_where(rows)}"
    figure.suptitle(title, fontsize=11.5)
    grid = figure.subplots(1, len(found), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (shape, by_impl) in zip(grid, found.items(), strict=True):
        axes.set(xscale="log", title="{} tokens, {} features,\n{} classes".format(*shape), xlabel="time, relative")
        axes.axvline(1, color="#999999", linewidth=0.8)
        for height, impl in enumerate(names):
            if impl in by_impl:
                _draw_dot(axes, height, by_impl[impl], by_impl[YARDSTICK])
        axes.text(1.22, -0.9, "MiB", transform=axes.get_yaxis_transform(), ha="right", fontsize=8.5, color="#444444")
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
    grid[0].set_yticks(range(len(names)), [label(impl) for impl in names])
    grid[0].set_ylim(len(names) - 0.4, -0.6)
    low, high = grid[0].get_xlim()
    near = high / low < 8
    grid[0].set_xlim(low * (low / high) ** 0.2, high * (high / low) ** 0.2)  # room for numbers beside the last dots
    _plain_ticks(grid[0].xaxis, (1, 1.5, 2, 3, 5, 7) if near else (1, 2, 5))
    return figure


def _draw_dot(axes: "Axes", height: int, row: Row, yardstick: Row) -> None:
    color, ratio = SUBJECTS[row["impl"]][1], cost(row, "time") / cost(yardstick, "time")
    axes.plot([1, ratio], [height, height], color=color, linewidth=1.2, alpha=0.5)
    axes.plot(ratio, height, "o", color=color, markersize=6, label=row["impl"])
    aside: dict[str, Any] = {"xytext": (-6, 0), "ha": "right"} if ratio < 1 else {"xytext": (6, 0)}
    axes.annotate(f"{ratio:.2f}", (ratio, height), textcoords="offset points", va="center", fontsize=8, **aside)
    memory = f"{cost(row, 'memory'):,.0f}"
    axes.text(1.22, height, memory, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8.5)
