"""Make everything in docs/ and README.md that is not written by hand.

    make docs                       or: python docs/build.py
    python docs/build.py --check    only say whether the pages of text are current (exit 1 if not)

api.md comes from the docstrings, results/ from the finished runs in runs/ and from benchmarks/results, the README's
picture from its example and its tables from benchmarks/results and lab/results; loss_page.py fills is_it_the_loss.md.
"""

import argparse
import inspect
import json
import os
import re
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib

import harmax
import loss_page
from harmax.bench import figures
from harmax.heads import HEADS
from harmax.kernels import MODES
from harmax_lab.experiments import EXPERIMENTS
from harmax_lab.kit.claims import Claim, verdict_words
from harmax_lab.kit.experiment import Experiment

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "lab/results"
BENCHMARKS = DOCS.parent / "benchmarks/figures"
MEASURED = DOCS.parent / "benchmarks/results"
ON_GPU = MEASURED / "loss-cuda.jsonl"
IN_README = ("cross_entropy_compiled", "liger", "cut_cross_entropy", *(f"triton_{mode}" for mode in MODES))
"""What the README shows of `ON_GPU`; the page of benchmarks shows all of it."""


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
    from harmax_lab.kit.report import write_results

    for folder in write_results(EXPERIMENTS.values(), runs, RESULTS):
        print(folder)


def bench_table() -> str:
    """The README's table of costs."""
    lines = (MEASURED / "loss-cpu.jsonl").read_text().splitlines()
    table = ["| tokens x D x V | | time, ms | ratio | memory, MiB | ratio | error |", "|---|---|---|---|---|---|---|"]
    for row in map(json.loads, lines):
        shape = f"{row['tokens']} x {row['features']} x {row['classes']}"
        name = row["impl"] if row["impl"].startswith("cross") else f"harmonic, `{row['impl']}`"
        cost = f"{row['ms_p50']:.0f} | {row['time_ratio']:.2f} | {row['peak_mib']:.0f} | {row['memory_ratio']:.2f}"
        table.append(f"| {shape} | {name.replace('_', ' ')} | {cost} | {row['error']:.0e} |")
    return "\n".join(table)


def gpu_rows() -> list[figures.Row]:
    """What was measured on a GPU; nothing where nothing was."""
    return [json.loads(line) for line in ON_GPU.read_text().splitlines()] if ON_GPU.exists() else []


def gpu_table(rows: Sequence[figures.Row]) -> str:
    """Costs on a GPU, a row a shape and implementation."""
    table = [
        "| tokens x D x V | | time, ms | ratio | host, ms | memory, MiB | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shape, time = " x ".join(map(str, figures.shape_of(row))), figures.cost(row, "time")
        times = f"{time:.{1 if time >= 10 else 2}f} | {row['time_ratio']:.2f} | {row['host_ms']:.1f}"
        costs = f"{times} | {figures.cost(row, 'memory'):.0f}"
        error = "" if row["error"] is None else f"{row['error']:.0e}"
        table.append(f"| {shape} | {figures.label(row['impl'])} | {costs} | {error} |")
    return "\n".join(table)


def gpu_section(rows: Sequence[figures.Row]) -> str:
    """The README's words, table and figure of costs on a GPU; nothing without rows."""
    if not rows:
        return ""
    shown = [by_impl[impl] for by_impl in figures.anchors(rows).values() for impl in IN_README if impl in by_impl]
    others = {"liger": "Liger's fused cross-entropy", "cut_cross_entropy": "Cut Cross-Entropy (CCE)"}
    named = " and ".join(words for impl, words in others.items() if any(row["impl"] == impl for row in shown))
    beside = f", with {named}" if named else ""
    return f"""On one {rows[0]["gpu"]}, {rows[0]["dtype"]}, torch {rows[0]["torch"]}{beside}.
Time is the GPU's, with the host ahead of it as in training; what the host needs to queue a step is beside it, and is
what a step takes where nothing else is queued and that is more. Memory here is with the gradients of features and
weight.

{gpu_table(shown)}

<img src="benchmarks/figures/loss_sweep.png" width="720" alt="Time and memory of the harmonic loss and of compiled
cross-entropy against the number of tokens and of classes">

*{figures.CAPTIONS["loss_sweep"]} [Every size and implementation](benchmarks/figures).*"""


def step_table(name: str, caption: str, columns: str, line: Callable[[Any], str]) -> str:
    """A table of training steps, a row of `harmax bench NAME` each; nothing without rows.

    Args:
        name: of the benchmark.
        caption: may name keys of the first row in braces.
        columns: heads, split by |.
        line: makes a row's cells, split by |.
    """
    path = MEASURED / f"{name}-cuda.jsonl"
    if not path.exists():
        return ""
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    where = f"one {rows[0]['gpu']}, torch {rows[0]['torch']} (`harmax bench {name}`):"
    ruler = "|".join("---" for _ in columns.split("|"))
    lines = [f"{caption.format(**rows[0])}, {where}", "", f"| {columns} |", f"|{ruler}|"]
    return "\n".join([*lines, *(f"| {line(row)} |" for row in rows)])


def gpt2_table() -> str:
    """The README's table of a training step of GPT-2."""

    def line(row: Any) -> str:
        costs = f"{row['tokens_per_s']:,} | {row['speed_ratio']:.2f} | {row['peak_gib']:.1f} | {row['mfu']:.0%}"
        return f"{row['head']} | {row['loss'].replace('_', ' ')} | {costs}"

    columns = "head | loss | tokens a second | of cross-entropy's | peak memory, GiB | model FLOP utilization"
    return step_table("gpt2", "{sequences} x {context} tokens a step, {dtype}, compiled", columns, line)


def vision_table() -> str:
    """The README's table of a training step of ResNet-50."""
    return step_table(
        "vision",
        "{images} images of {image_size} x {image_size} a step, {dtype}, compiled and recorded as a CUDA graph",
        "head | images a second | of the linear head's | peak memory, GiB",
        lambda row: f"{row['head']} | {row['images_per_s']:,.0f} | {row['speed_ratio']:.3f} | {row['peak_gib']:.1f}",
    )


def bench_page(rows: Sequence[figures.Row]) -> str:
    """The text of results/benchmarks/README.md."""
    parts = [
        "# What the loss costs on a GPU",
        f"Head and loss, forward and backward, {rows[0]['dtype']}. Made by `harmax bench loss --device cuda` on one "
        f"{rows[0]['gpu']}, torch {rows[0]['torch']}.",
    ]
    for name, caption in figures.CAPTIONS.items():
        parts += [f"![{name}]({name}.png)", caption]
    parts += [
        "Time: the GPU's, with the host ahead of it as in training. Host: what the processor needs to queue a step. "
        "Ratio: time relative to the faster `F.cross_entropy`, eager or compiled (in sweeps: compiled). Memory: the "
        "most a step holds beyond its inputs, gradients among it. Error: the largest relative error of loss and "
        "gradients against float64, where that was computed.",
        gpu_table(sorted(rows, key=figures.shape_of)),
    ]
    return "\n\n".join(parts) + "\n"


def ensemble_table() -> str:
    """The README's table of stacked runs."""
    table = [
        "| device | model | head | runs at once | us a run and step | plain loop, us | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(MEASURED.glob("ensemble-*.jsonl")):
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
        path = RESULTS / name / "summary.json"
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
        link = f"[{experiment.title}](lab/results/{experiment.name})"
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
    made = {
        "bench": bench_table(),
        "bench-gpu": gpu_section(gpu_rows()),
        "gpt2": gpt2_table(),
        "vision": vision_table(),
        "ensembles": ensemble_table(),
        "verdicts": verdict_table(),
    }
    return filled(text, made)


def filled(text: str, made: dict[str, str]) -> str:
    """A page with what is made between its markers."""
    for name, table in made.items():
        pattern = rf"(<!-- {name}:[^\n]*-->\n).*?(<!-- /{name} -->)"
        filling = f"\n{table}\n\n" if table else ""
        text = re.sub(pattern, lambda match, text=filling: f"{match[1]}{text}{match[2]}", text, flags=re.DOTALL)
    return text


def pages() -> dict[Path, str]:
    """Every page of text that is made, and what it should say."""
    front, losses = DOCS.parent / "README.md", RESULTS / "is_it_the_loss.md"
    made = {DOCS / "api.md": api(), RESULTS / "README.md": claims_page(), front: readme(front.read_text())}
    made[losses] = filled(losses.read_text(), loss_page.sections(RESULTS))
    if rows := gpu_rows():
        made[BENCHMARKS / "README.md"] = bench_page(rows)
    return made


def main() -> int:
    """Build, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is not current")
    if parser.parse_args().check:
        stale = [
            str(path.relative_to(DOCS.parent))
            for path, text in pages().items()
            if not path.exists() or path.read_text() != text
        ]
        print(f"not current: {', '.join(stale)}; run make docs" if stale else "everything is current")
        return 1 if stale else 0
    picture = DOCS / "images" / "digits.svg"
    picture.parent.mkdir(exist_ok=True)
    # Without a date and with fixed ids the same weights give the same file.
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    with matplotlib.rc_context({"svg.hashsalt": "digits"}):
        runpy.run_path(str(DOCS.parent / "examples" / "digits.py"))["main"](output=str(picture))
    if (DOCS.parent / "runs").is_dir():
        results(DOCS.parent / "runs")
    if rows := gpu_rows():
        figures.write_figures(rows, BENCHMARKS)
    # Last: the tables read what is written above.
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
