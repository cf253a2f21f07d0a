"""Draw the guide's figures of the scale at the start and of a match, from benchmarks/results.

Called by build.py. The rows were measured once, on one H200; benchmarks/README.md says how.
"""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from harmax.figures import house_style
from pages.site import DOCS, ROOT

COLORS = {20: "#CC79A7", 40: "#56B4E9", 80: "#0072B2", 384: "#009E73"}


def rows(name: str) -> list[dict[str, Any]]:
    """Read the rows of a measurement."""
    return [json.loads(line) for line in (ROOT / "benchmarks" / "results" / name).read_text().splitlines()]


def draw_start() -> Figure:
    """Draw the validation loss against the ratio of lengths at the start, by exponent."""
    short = [row for row in rows("start-cuda.jsonl") if row["steps"] == 300 and row["tied"] and row["seed"] == 0]
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.set_title("Small GPT, 19.7M tokens: where features and centers start decides", fontsize=10)
    for exponent, color in COLORS.items():
        own = [row for row in short if row["exponent"] == exponent]
        points = sorted((row["feature_length"] / row["center_length"], row["val_loss"]) for row in own)
        axes.plot(*zip(*points, strict=True), "o-", color=color, label=f"exponent {exponent}")
    for row in short:
        if row["exponent"] is None:
            words = "cross-entropy" if row["logit_scale"] == 1 else "cross-entropy, logits doubled"
            axes.axhline(row["val_loss"], color="#D55E00", linestyle="--", linewidth=1)
            axes.text(0.75, row["val_loss"], words, color="#D55E00", va="bottom", fontsize=8)
    axes.set(xscale="log", xlabel="length of features / length of centers at the start", ylabel="validation loss, nats")
    axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.minorticks_off()
    axes.legend(loc="upper right", fontsize=8)
    return figure


def draw_match() -> Figure:
    """Draw the validation loss of SmolLM2-135M in further training, with either head."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.set_title("SmolLM2-135M, trained further with either head from the same loss", fontsize=10)
    for row in rows("smollm2-cuda.jsonl"):
        if row["lr"] != 2e-4:
            continue
        harmonic = row["head"] == "harmonic"
        tokens = [point["step"] * row["tokens"] / row["curve"][-1]["step"] / 1e6 for point in row["curve"]]
        losses = [point["val_loss"] for point in row["curve"]]
        color, line = ("#0072B2", "-") if harmonic else ("#D55E00", "--")
        axes.plot(tokens, losses, marker="o", color=color, linestyle=line, label=f"{row['head']} head")
        if harmonic:
            pure = next(x for x, point in zip(tokens, row["curve"], strict=True) if point["softening"] == 0)
            axes.axvline(pure, color="#888888", linewidth=1, linestyle=":")
            axes.text(pure, max(losses), " softening is 0 from here on", fontsize=8, va="top", color="#555555")
    axes.set(xlabel="tokens of further training, millions", ylabel="validation loss, nats")
    axes.legend(loc="center right", fontsize=8)
    return figure


def draw(folder: Path = DOCS / "images") -> None:
    """Write both figures."""
    with house_style():
        for name, figure in (("start_scale", draw_start()), ("match", draw_match())):
            figure.savefig(folder / f"{name}.png", dpi=130)


if __name__ == "__main__":
    draw()
