"""Make everything in docs/ and README.md that is not written by hand.

    make docs                       or: python docs/build.py
    python docs/build.py --check    only say whether docs/api.md and README.md are current (exit 1 if not)

api.md comes from the docstrings, results/ from the finished runs in runs/, the README's picture from its example and
its tables from benchmarks/results and docs/results.
"""

import argparse
import inspect
import json
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

import harmax
from harmax.experiments import EXPERIMENTS
from harmax.experiments.spec import verdict_words
from harmax.heads import HEADS

DOCS = Path(__file__).parent


def entry(name: str, thing: Callable[..., object]) -> str:
    """One public name: its signature and its docstring."""
    signature = f"{name}{inspect.signature(thing)}"
    return f"### `{name}`\n\n```python\n{signature}\n```\n\n```text\n{inspect.getdoc(thing)}\n```\n"


def api() -> str:
    """The text of api.md."""
    names = [name for name in harmax.__all__ if callable(getattr(harmax, name))]
    functions = [name for name in names if not inspect.isclass(getattr(harmax, name))]
    classes = [name for name in names if name not in functions]
    others = {cls.__name__: cls for cls in HEADS.values() if cls.__name__ not in classes}
    parts = ["# API", "Made from the docstrings by `make docs`.", "## Functions"]
    parts += [entry(name, getattr(harmax, name)) for name in functions]
    parts += ["## Classes", *(entry(name, getattr(harmax, name)) for name in classes)]
    registry = "\n".join(f"- `{name}`: `{cls.__name__}`" for name, cls in HEADS.items())
    parts += ["## The family of heads", f"`HEADS` maps names to classes:\n\n{registry}"]
    parts += [entry(name, cls) for name, cls in others.items()]
    return "\n\n".join(parts) + "\n"


def results(runs: Path) -> None:
    """Copy summary and figures of the best finished run of each experiment from runs/ to results/."""
    from harmax.report import write_results

    for folder in write_results(runs, DOCS / "results"):
        print(folder)


def bench_table() -> str:
    """The README's table of costs."""
    lines = (DOCS.parent / "benchmarks/results/loss-cpu.jsonl").read_text().splitlines()
    table = ["| tokens x D x V | | time, ms | ratio | memory, MiB | ratio | error |", "|---|---|---|---|---|---|---|"]
    for row in map(json.loads, lines):
        shape = f"{row['tokens']} x {row['features']} x {row['classes']}"
        name = row["impl"] if row["impl"].startswith("cross") else f"harmonic, `{row['impl']}`"
        cost = f"{row['ms_p50']:.0f} | {row['time_ratio']:.2f} | {row['peak_mib']:.0f} | {row['memory_ratio']:.2f}"
        table.append(f"| {shape} | {name.replace('_', ' ')} | {cost} | {row['error']:.0e} |")
    return "\n".join(table)


def ensemble_table() -> str:
    """The README's table of stacked runs."""
    table = [
        "| device | model | head | runs at once | us a run and step | plain loop, us | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted((DOCS.parent / "benchmarks/results").glob("ensemble-*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        plain = {(row["model"], row["head"]): row["us_per_run_step"] for row in rows if row["loop"] == "plain"}
        for row in rows:
            if row["loop"] == "stacked" and row["evaluate"]:
                where = row.get("gpu") or f"CPU, {row['threads']} thread"
                beside = plain[row["model"], row["head"]]
                costs = f"{row['us_per_run_step']:.3g} | {beside:.0f} | {row['ratio']:.0f}"
                table.append(f"| {where} | {row['model']} | {row['head']} | {row['runs']} | {costs} |")
    return "\n".join(table)


def verdict_table() -> str:
    """The README's table of claims."""
    table = ["| experiment | claim | verdict |", "|---|---|---|"]
    for name, experiment in EXPERIMENTS.items():
        path = DOCS / "results" / name / "summary.json"
        if not path.exists():
            continue
        verdicts = {entry["claim"]: entry["verdict"] for entry in json.loads(path.read_text())["verdicts"]}
        for claim in experiment.claims:
            kind = "control: " if claim.control else ""
            words = verdict_words(verdicts[claim.id], claim)
            table.append(
                f"| [{name}](docs/results/{name}) | {kind}{claim.statement.replace('|', chr(92) + '|')} | {words} |"
            )
    return "\n".join(table)


def readme(text: str) -> str:
    """README.md with its tables filled in."""
    for name, table in (("bench", bench_table()), ("ensembles", ensemble_table()), ("verdicts", verdict_table())):
        pattern = rf"(<!-- {name}:[^\n]*-->\n).*?(<!-- /{name} -->)"
        text = re.sub(pattern, lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", text, flags=re.DOTALL)
    return text


def main() -> int:
    """Build, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is not current")
    front = DOCS.parent / "README.md"
    if parser.parse_args().check:
        stale = [
            path.name
            for path, text in ((DOCS / "api.md", api()), (front, readme(front.read_text())))
            if path.read_text() != text
        ]
        print(f"not current: {', '.join(stale)}; run make docs" if stale else "api.md and README.md are current")
        return 1 if stale else 0
    (DOCS / "api.md").write_text(api())
    picture = DOCS / "images" / "digits.svg"
    picture.parent.mkdir(exist_ok=True)
    # Without a date and with fixed ids the same weights give the same file.
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    with matplotlib.rc_context({"svg.hashsalt": "digits"}):
        runpy.run_path(str(DOCS.parent / "examples" / "digits.py"))["main"](output=str(picture))
    if (DOCS.parent / "runs").is_dir():
        results(DOCS.parent / "runs")
    front.write_text(readme(front.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
