"""The page of two figures that seemed not to come back: its tables and numbers come from the files beside it."""

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from pages.fields import TEMPLATES, fill
from pages.site import RESULTS, table, wrap

FOLDER = RESULTS / "unexplained"
TABLES = ("equivalence", "rounding", "authors_code")
SEEDS = ("seed 0", "seed 52", "seed 105", "seed 157")
Row = dict[str, str]


def unexplained_page() -> str:
    """The text of lab/results/unexplained.md."""
    text = (TEMPLATES / "unexplained.md").read_text()
    studies = {"unexplained": {"verdicts": [{"claim": "facts", "numbers": facts()}], "tables": []}}
    text = wrap(fill(text, studies))
    for name in TABLES:
        rows = read(name)
        columns = ["" if column == "source" else column for column in rows[0]]
        text = text.replace(f"<<{name}>>", table(columns, [list(row.values()) for row in rows]))
    return text + "\n"


def read(name: str, folder: Path = FOLDER) -> list[Row]:
    """Return the rows of one file."""
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def facts() -> dict[str, float]:
    """What the sentences of the page say in numbers, by names."""
    return _of_equivalence_classes() | _of_rounding() | _of_other_runs()


def _of_equivalence_classes() -> dict[str, float]:
    points = read("authors_data_efficiency")

    def point(task: str, model: str, head: str, fraction: str) -> Row:
        names = {"task": task, "model": model, "head": head, "train_fraction": fraction}
        (found,) = (row for row in points if names.items() <= row.items())
        return found

    lowest = point("equivalence", "mlp", "linear", "0.1")
    rows, wrong = int(lowest["test_rows"]), int(lowest["errors"])
    by_source = {row["source"]: row for row in read("equivalence")}
    first, again = [], []
    for arm in ("standard MLP", "harmonic MLP"):
        readings = {source.removeprefix(f"{arm}, "): row for source, row in by_source.items() if source.startswith(arm)}
        ran, read_again = readings["authors' code on a CPU (seed 66)"], readings["authors' figure read again (seed 66)"]
        for fraction in ("0.1", "0.2", "0.3"):
            if (arm, fraction) != ("standard MLP", "0.1"):  # exactly the same number of errors
                again.append(abs(float(ran[fraction]) - float(read_again[fraction])))
                first.append(float(ran[fraction]) - float(readings["authors' figure as first read"][fraction]))
    drawn = [
        row for row in points if (row["task"], row["model"], row["head"]) == ("lattice", "transformer", "harmonic")
    ]
    return {
        "panels": len({row["task"] for row in points}),
        "points": len(points),
        "points of a panel": sum(row["task"] == "equivalence" for row in points),
        "test rows at 0.1": rows,
        "test rows at 0.2": int(point("equivalence", "mlp", "linear", "0.2")["test_rows"]),
        "wrong": wrong,
        "twice as many wrong": 2 * wrong,
        "accuracy": 1 - wrong / rows,
        "accuracy as first read": 1 - 2 * wrong / rows,
        "farthest from the figure": max(again),
        "least above the first reading": min(first),
        "most above the first reading": max(first),
        "lattice transformer at 0.1": float(point("lattice", "transformer", "harmonic", "0.1")["accuracy"]),
        "lattice transformer from 0.3 on": min(
            float(row["accuracy"]) for row in drawn if float(row["train_fraction"]) >= 0.3
        ),
    }


def _of_rounding() -> dict[str, float]:
    found = {(row["task"], row["n"], row["loss"]): [float(row[seed]) for seed in SEEDS] for row in read("rounding")}
    circle = {key[1:]: values for key, values in found.items() if key[0] == "modular addition"}

    def apart(n: str, one: str, two: str) -> Sequence[float]:
        return [a - b for a, b in zip(circle[n, one], circle[n, two], strict=True)]

    usual = {n: apart(n, "float32, usual", "float32, exact") for n in ("4", "8", "10")}
    exact = [abs(one) for n in usual for one in apart(n, "float64, usual", "float32, exact")]
    return {
        "runs of the circle": len(exact),
        "float64 from exact": max(exact),
        "too complete at 4": max(usual["4"]),
        "mean above at 8": mean(usual["8"]),
        "mean below at 10": -mean(usual["10"]),
        "lowest at 4": min(circle["4", "float32, exact"]),
        "highest at 4": max(circle["4", "float32, exact"]),
    }


def _of_other_runs() -> dict[str, float]:
    return {
        f"{row['what']}; {row['task']}, n = {row['n']}; {column}".replace(";", ","): float(row[column])
        for row in read("other_runs")
        for column in ("usual", "exact")
        if row[column]
    }
