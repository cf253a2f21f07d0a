"""The tables that `harmax geometry` prints."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harmax.analysis import Interval
from harmax.inspect.embedding import QUERIES

SHOWN_WORDS = 8  # whose neighbors are printed
ROWS = {
    "median_loss": "{place}: median loss",
    "shuffled": "  of shuffled pairs",
    "ratio_to_shuffled": "  ratio of the two",
    "ratio_one_token": "  ratio, one-token words only",
    "cosine": "  mean cosine of steps",
    "cosine_shuffled": "  of shuffled pairs",
    "cosine_one_token": "  of one-token words only",
}


def print_tables(summary: Mapping[str, Any]) -> None:
    """Print one table per task, one of the token centers and one of neighbors, with one column per model."""
    models, ratios = summary["models"], [one for one in summary["ratios"] if one["places"] is not None]
    names = [escape(model["name"]) for model in models]
    # A pipe has no width of its own, and a narrow table would cut its numbers.
    console = Console() if sys.stdout.isatty() else Console(width=max(120, 40 * (1 + len(names) + len(ratios))))
    for task in summary["tasks"]:
        console.print(_task_table(task, models, ratios, names))
    console.print(_center_table(models, names))
    words = [word for word in QUERIES if all(word in model["neighbors"] for model in models)][:SHOWN_WORDS]
    if words:
        table = Table("", *names, title="Nearest tokens", title_justify="left")
        for word in words:
            table.add_row(word, *(escape("  ".join(model["neighbors"][word])) for model in models))
        console.print(table)
    if len(models) > 1:
        print("A loss is in units of its own vocabulary's spread. The unit cancels in the ratio to shuffled pairs.")
    for file in summary["files"]:
        print(file)


def _task_table(task: str, models: list[Any], ratios: list[Any], names: list[str]) -> Table:
    beside = [escape(f"{one['model']} / {one['to']}") for one in ratios]
    table = Table("", *names, *beside, title=task, title_justify="left")
    counted = [model["places"]["embedding"][task] for model in models]
    table.add_row("word pairs, quadruples", *(f"{one['word_pairs']}, {one['quadruples']}" for one in counted))
    for place in models[0]["places"]:
        found = [model["places"][place][task] for model in models]
        for key in (key for key in ROWS if key in found[0]):
            across = [one["places"][place][task] for one in ratios] if key == "median_loss" else []
            table.add_row(ROWS[key].format(place=place), *(_shown(one[key]) for one in found), *map(_shown, across))
    return table


def _center_table(models: list[Any], names: list[str]) -> Table:
    table = Table("", *names, title="Token centers: the rows of the embedding", title_justify="left")
    table.add_row("vocabulary", *(f"{model['vocabulary']}, {model['tokens']:,} tokens" for model in models))
    for key in dict.fromkeys(key for model in models for key in model["centers"]):
        table.add_row(key.replace("_", " "), *(_shown(model["centers"].get(key)) for model in models))
    return table


def _shown(value: Any) -> str:
    if isinstance(value, Interval):
        return str(value) if np.isfinite(value).all() else "unknown"
    return "" if value is None else f"{value:.3g}"
