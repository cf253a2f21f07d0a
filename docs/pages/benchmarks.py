"""The tables of benchmarks/README.md, the page of its figures, and the README's small table of costs."""

from collections.abc import Callable, Sequence
from typing import Any

from harmax.analysis import Interval
from harmax.bench import figures, tabular
from harmax.kernels import MODES
from pages.site import measured, table

SHOWN_ON_GPU = ("cross_entropy_compiled", "liger", "cut_cross_entropy", *(f"triton_{mode}" for mode in MODES))
"""What benchmarks/README.md shows of the H200's rows; benchmarks/figures/README.md shows all of them."""
TABULAR_METHODS = {
    "harmonic": "harmonic",
    "harmonic_paper": "harmonic, paper's exponent",
    "logistic": "logistic regression",
    "centroid": "nearest centroid",
    "neighbors": "k-nearest neighbors",
}
TABULAR_MEASURES = {
    "accuracy": "**Accuracy in %**, higher is better:",
    "log_loss": "**Log loss in nats**, lower is better:",
    "ece": "**Expected calibration error in %**, 15 bins, lower is better:",
}
SMALL_ON_CPU, SMALL_ON_GPU = (1024, 768, 50304), (16384, 768, 50304)
"""Sizes of the README's table: tokens, features, classes."""


def gpu_rows() -> list[figures.Row]:
    """What was measured on a GPU; nothing where nothing was."""
    return list(measured("loss-cuda"))


def costs_table() -> str:
    """The README's table: the harmonic head beside compiled cross-entropy, as far as it was measured."""
    cpu = {row["impl"]: row for row in measured("loss-cpu") if tuple(figures.shape_of(row)) == SMALL_ON_CPU}
    gpu = {row["impl"]: row for row in gpu_rows() if tuple(figures.shape_of(row)) == SMALL_ON_GPU}
    gpt2 = {row["loss"]: row for row in measured("gpt2-cuda")}
    vision = {row["head"]: row for row in measured("vision-cuda")}
    loss = "head and loss, {:,} tokens, {} features, {:,} classes"
    rows = []

    def add(what: str, where: str, pair: Sequence[float], unit: str = "", digits: int = 0) -> None:
        theirs, ours = pair
        entries = (f"{value:,.{digits}f} {unit}".rstrip() for value in pair)
        rows.append([what, where, *entries, f"{ours / theirs:.2f}"])

    def both(found: dict[str, Any], names: tuple[str, str], key: str) -> list[float]:
        return [found[name][key] for name in names]

    if cpu:
        names = ("cross_entropy_compiled", "chunked")
        where = "2 CPU cores, float32"
        add(f"{loss.format(*SMALL_ON_CPU)}: time", where, both(cpu, names, "ms_p50"), "ms")
        add("memory of this step, without inputs and gradients", where, both(cpu, names, "peak_mib"), "MiB")
    where = "H200, bfloat16"
    if gpu:
        names = ("cross_entropy_compiled", "triton_fast")
        add(f"{loss.format(*SMALL_ON_GPU)}: time", where, both(gpu, names, "ms_p50"), "ms", 1)
        add("memory of this step, with gradients", where, [figures.cost(gpu[name], "memory") for name in names], "MiB")
    if gpt2:
        names = ("cross_entropy", "fused")
        add("training GPT-2 small: tokens per second", where, both(gpt2, names, "tokens_per_s"))
        add("the same: peak memory", where, both(gpt2, names, "peak_gib"), "GiB", 1)
    if vision:
        add("training ResNet-50: images per second", where, both(vision, ("linear", "harmonic"), "images_per_s"))
    return table(["what", "where", "cross-entropy", "harmonic", "ratio"], rows)


def cpu_table(rows: Sequence[Any]) -> str:
    """Costs of the loss on CPU cores, one row per shape and implementation."""
    lines = []
    for row in rows:
        name = row["impl"] if row["impl"].startswith("cross") else f"harmonic, `{row['impl']}`"
        time, memory = f"{row['ms_p50']:.0f}", f"{row['peak_mib']:.0f}"
        ratios = f"{row['time_ratio']:.2f}", f"{row['memory_ratio']:.2f}"
        lines.append(
            [_shape(row), name.replace("_", " "), time, ratios[0], memory, ratios[1], f"{row['error']:.0e}"],
        )
    return table(["tokens x D x V", "", "time, ms", "ratio", "memory, MiB", "ratio", "error"], lines)


def gpu_table(rows: Sequence[figures.Row]) -> str:
    """Costs of the loss on a GPU, one row per shape and implementation."""
    lines = []
    for row in rows:
        time = figures.cost(row, "time")
        lines.append(
            [
                _shape(row),
                figures.label(row["impl"]),
                f"{time:.{1 if time >= 10 else 2}f}",
                f"{row['time_ratio']:.2f}",
                f"{row['host_ms']:.1f}",
                f"{figures.cost(row, 'memory'):.0f}",
                "" if row["error"] is None else f"{row['error']:.0e}",
            ]
        )
    return table(["tokens x D x V", "", "time, ms", "ratio", "host, ms", "memory, MiB", "error"], lines)


def gpu_summary(rows: Sequence[figures.Row]) -> str:
    """Costs on a GPU at the sizes of language models; nothing without rows."""
    if not rows:
        return ""
    shown = [by_impl[impl] for by_impl in figures.anchors(rows).values() for impl in SHOWN_ON_GPU if impl in by_impl]
    others = {"liger": "Liger's fused cross-entropy", "cut_cross_entropy": "Cut Cross-Entropy (CCE)"}
    named = " and ".join(words for impl, words in others.items() if any(row["impl"] == impl for row in shown))
    beside = f", beside {named}" if named else ""
    where = f"Measured on one {rows[0]['gpu']}, {rows[0]['dtype']}, torch {rows[0]['torch']}{beside}."
    return f"{where}\n\n{gpu_table(shown)}"


def steps_table(name: str, caption: str, columns: Sequence[str], line: Callable[[Any], list[str]]) -> str:
    """Training steps of a whole model, one row of `harmax bench NAME` each; the caption may name keys of a row."""
    rows = measured(f"{name}-cuda")
    if not rows:
        return ""
    where = f"one {rows[0]['gpu']}, torch {rows[0]['torch']} (`harmax bench {name}`)."
    return f"{caption.format(**rows[0])}, {where}\n\n{table(columns, [line(row) for row in rows])}"


def gpt2_table() -> str:
    """A training step of GPT-2 with either head."""
    return steps_table(
        "gpt2",
        "{sequences} x {context} tokens per step, {dtype}, compiled",
        ["head", "loss", "tokens per second", "ratio to cross-entropy", "peak memory, GiB", "model FLOP utilization"],
        lambda row: [
            row["head"],
            row["loss"].replace("_", " "),
            f"{row['tokens_per_s']:,}",
            f"{row['speed_ratio']:.2f}",
            f"{row['peak_gib']:.1f}",
            f"{row['mfu']:.0%}",
        ],
    )


def vision_table() -> str:
    """A training step of ResNet-50 with either head."""
    return steps_table(
        "vision",
        "{images} images of {image_size} x {image_size} per step, {dtype}, compiled and recorded as a CUDA graph",
        ["head", "images per second", "ratio to the linear head", "peak memory, GiB"],
        lambda row: [
            row["head"],
            f"{row['images_per_s']:,.0f}",
            f"{row['speed_ratio']:.3f}",
            f"{row['peak_gib']:.1f}",
        ],
    )


def ensemble_table() -> str:
    """What one run and step costs, trained alone and stacked."""
    lines = []
    for name in ("ensemble-cpu", "ensemble-cuda"):
        rows = measured(name)
        alone = {(row["model"], row["head"]): row["us_per_run_step"] for row in rows if row["loop"] == "plain"}
        for row in rows:
            if row["loop"] == "stacked" and row["evaluate"]:
                where = row.get("gpu") or f"CPU, {row['threads']} thread"
                beside = f"{alone[row['model'], row['head']]:.0f}"
                stacked = f"{row['us_per_run_step']:.3g}"
                lines.append([where, row["model"], row["head"], row["runs"], stacked, beside, f"{row['ratio']:.0f}"])
    columns = ["device", "model", "head", "runs at once", "stacked, us per run and step", "plain loop, us", "ratio"]
    return table(columns, lines)


def tabular_tables() -> str:
    """Classifiers on small tables: one table per measure, each entry a mean over the splits."""
    rows = measured("tabular-cpu")
    if not rows:
        return ""
    parts = [f"{words}\n\n{_tabular_table(rows, measure)}" for measure, words in TABULAR_MEASURES.items()]
    return "\n\n".join([_tabular_tally(rows), *parts])


def _tabular_tally(rows: Sequence[Any]) -> str:
    """How often the harmonic classifier is better or worse, where the interval does not contain 0."""
    names = list(dict.fromkeys(row["table"] for row in rows))
    lines = []
    for method, words in TABULAR_METHODS.items():
        if method == "harmonic":
            continue
        line = [words]
        for measure in TABULAR_MEASURES:
            sign = 1 if measure == "accuracy" else -1
            found = [tabular.difference(rows, name, "harmonic", method, measure) for name in names]
            better = sum(min(sign * one.low, sign * one.high) > 0 for one in found)
            worse = sum(max(sign * one.low, sign * one.high) < 0 for one in found)
            line.append(f"{better} / {worse} / {len(names) - better - worse}")
        lines.append(line)
    columns = ["better / worse / not decided than", "accuracy", "log loss", "calibration error"]
    return f"On how many of {len(names)} tables the default is better or worse:\n\n{table(columns, lines)}"


def _tabular_table(rows: Sequence[Any], measure: str) -> str:
    names = list(dict.fromkeys(row["table"] for row in rows))
    lines = []
    for name in names:
        first = next(row for row in rows if row["table"] == name)
        line = [f"{name} ({first['train_rows']} x {first['columns']}, {first['classes']} classes)"]
        for method in TABULAR_METHODS:
            values = [row[measure] for row in rows if row["table"] == name and row["method"] == method]
            line.append(_entry(measure, sum(values) / len(values)))
            if method != "harmonic":
                line[-1] += f" ({_against(tabular.difference(rows, name, 'harmonic', method, measure), measure)})"
        lines.append(line)
    return table(["table (training rows x columns)", *TABULAR_METHODS.values()], lines)


def _entry(measure: str, value: float) -> str:
    return f"{100 * value:.1f}" if measure != "log_loss" else f"{value:.3f}"


def _against(found: Interval, measure: str) -> str:
    unit, digits = (1, 3) if measure == "log_loss" else (100, 1)
    low, high = (f"{unit * limit:+.{digits}f}" for limit in (found.low, found.high))
    told = f"{low} to {high}"
    return told if found.low <= 0 <= found.high else f"**{told}**"


def ranks_table() -> str:
    """The memory of each process where several divide the classes of the loss."""
    rows = measured("ranks-cpu")
    if not rows:
        return ""
    lines = []
    for row in rows:
        total = row["centers_mib"] + row["gradients_mib"] + row["peak_mib"]
        parts = [row["centers_mib"], row["gradients_mib"], row["peak_mib"], total]
        difference = f"{row['difference']:.0e}" if row["ranks"] > 1 else ""
        lines.append([row["ranks"], *(f"{part:.0f}" for part in parts), difference])
    columns = ["processes", "centers, MiB", "gradients, MiB", "the step beside them, MiB", "sum, MiB", "difference"]
    where = f"{_shape(rows[0])} (tokens x D x V), {rows[0]['dtype']}, torch {rows[0]['torch']}, gloo on a CPU."
    return f"{where}\n\n{table(columns, lines)}"


def import_words() -> str:
    """What the import costs."""
    return "\n".join(
        f"`import harmax` adds {row['ms_p50']:.0f} ms to `import torch` (median; {row['ms_max']:.0f} ms at most)."
        for row in measured("import-cpu")
    )


def figures_page(rows: Sequence[figures.Row]) -> str:
    """The text of benchmarks/figures/README.md."""
    parts = [
        "# What the loss costs on a GPU: every row",
        f"Head and loss, forward and backward, {rows[0]['dtype']}. Made by `harmax bench loss --device cuda` on one "
        f"{rows[0]['gpu']}, torch {rows[0]['torch']}. [Benchmarks](../README.md) explains the columns.",
    ]
    for name, caption in figures.CAPTIONS.items():
        parts += [f"![{name}]({name}.png)", caption]
    parts += [
        "In the sweeps the ratio is to compiled `F.cross_entropy`. At the other sizes it is to the faster of the eager "
        "and the compiled one. The error is left empty where it was not computed.",
        gpu_table(sorted(rows, key=figures.shape_of)),
    ]
    return "\n\n".join(parts) + "\n"


def sections() -> dict[str, str]:
    """Everything between the markers of benchmarks/README.md, by the markers' names."""
    return {
        "loss-cpu": cpu_table(measured("loss-cpu")),
        "loss-cpu-1-thread": cpu_table(measured("loss-cpu-1-thread")),
        "loss-cuda": gpu_summary(gpu_rows()),
        "ranks": ranks_table(),
        "gpt2": gpt2_table(),
        "vision": vision_table(),
        "ensembles": ensemble_table(),
        "import": import_words(),
        "tabular": tabular_tables(),
    }


def _shape(row: figures.Row) -> str:
    return " x ".join(map(str, figures.shape_of(row)))
