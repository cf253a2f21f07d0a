"""Make everything in docs/ and README.md that is not written by hand.

    make docs                       or: python docs/build.py
    python docs/build.py --check    only say whether the pages of text are current (exit 1 if not)

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
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib

import harmax
from harmax.experiments import EXPERIMENTS
from harmax.experiments.spec import Claim, Experiment, verdict_words
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


def judged() -> Iterator[tuple[Experiment[Any, Any], list[tuple[Claim, str]]]]:
    """Every experiment that has results, with its claims and the verdicts on them."""
    for name, experiment in EXPERIMENTS.items():
        path = DOCS / "results" / name / "summary.json"
        if path.exists():
            verdicts = {entry["claim"]: entry["verdict"] for entry in json.loads(path.read_text())["verdicts"]}
            yield experiment, [(claim, verdict_words(verdicts[claim.id], claim)) for claim in experiment.claims]


def verdict_table() -> str:
    """The README's table: how many claims of each experiment came back."""
    words = ("reproduced", "not reproduced", "not decided", "holds", "does not hold", "not decided")
    table = [
        "| experiment | in the paper | reproduced | not reproduced | not decided "
        "| controls that hold | that do not | not decided |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for experiment, claims in judged():
        own, controls = (
            Counter(verdict for claim, verdict in claims if claim.control == control) for control in (False, True)
        )
        counts = [own[word] for word in words[:3]] + [controls[word] for word in words[3:]]
        link = f"[{experiment.title}](docs/results/{experiment.name})"
        table.append(f"| {link} | {experiment.figure} | {' | '.join(str(count or '') for count in counts)} |")
    return "\n".join(table)


def claims_page() -> str:
    """The text of results/README.md."""
    parts = [
        "# Every claim",
        'Made from the stored runs by `make docs`. "Control" marks what the paper does not claim: checks of the '
        "method, and its claims under the matched protocol.",
    ]
    for experiment, claims in judged():
        parts.append(f"## [{experiment.title}]({experiment.name})")
        rows = [
            f"| {'control: ' if claim.control else ''}{claim.statement.replace('|', chr(92) + '|')} | {words} |"
            for claim, words in claims
        ]
        parts.append("\n".join([f"| {experiment.figure} | verdict |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


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
    front, index = DOCS.parent / "README.md", DOCS / "results" / "README.md"
    if parser.parse_args().check:
        made = {DOCS / "api.md": api(), index: claims_page(), front: readme(front.read_text())}
        stale = [str(path.relative_to(DOCS.parent)) for path, text in made.items() if path.read_text() != text]
        print(f"not current: {', '.join(stale)}; run make docs" if stale else "everything is current")
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
    index.write_text(claims_page())
    front.write_text(readme(front.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
