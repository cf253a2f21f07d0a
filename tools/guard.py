"""Record what every experiment says, and compare two recordings: a refactoring must change no number.

    python tools/guard.py record OUT                    run the smoke profile of every experiment, keep what it says
    python tools/guard.py record OUT --profile quick    the same for another profile
    python tools/guard.py record OUT --runs FOLDER      judge and draw runs that are there, training nothing
    python tools/guard.py record OUT --only mnist       one experiment (may be repeated)
    python tools/guard.py compare BEFORE AFTER          list what differs; exit 1 if anything does

A recording has one JSON file per experiment: the ids and verdicts of its claims with their numbers, the entries of its
tables, the data of every artist of its figures, and a digest of every stored array. Texts are left out of the
comparison, but the numbers inside them are not: a sentence may be reworded, its numbers may not change.
"""

import argparse
import hashlib
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def numbers_in(text: str) -> list[str]:
    """Return the numbers of a text, in its order."""
    return NUMBER.findall(text)


def american(name: str) -> str:
    """Return a name as it is spelled now; recordings may be older."""
    return name.replace("centre", "center").replace("neighbour", "neighbor").replace("generalise", "generalize")


def plain(value: Any) -> Any:
    """Return a value as JSON has it: floats by their exact digits, texts by the numbers in them."""
    if isinstance(value, dict):
        return {american(str(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value).hex()
    return {"text": numbers_in(str(value))}


def digest(array: Any) -> str:
    """Return a short digest of an array's numbers, rounded so that a change of memory layout does not count."""
    found = np.ma.filled(np.ma.asarray(array), np.nan)
    if found.dtype.kind not in "fiub":
        found = np.asarray([str(entry) for entry in found.ravel()])
        return hashlib.sha256("|".join(found.tolist()).encode()).hexdigest()[:16]
    data = np.ascontiguousarray(found.astype(np.float64))
    return f"{found.shape}:{hashlib.sha256(data.tobytes()).hexdigest()[:16]}"


def artists(axes: Any) -> list[list[str]]:
    """Describe everything with data that axes show, in the order in which it was drawn."""
    shown: list[list[str]] = []
    shown += [["line", digest(line.get_xydata())] for line in axes.lines]
    for collection in axes.collections:
        values = collection.get_array()
        shown.append(
            [
                "collection",
                digest(collection.get_offsets()),
                "|".join(digest(path.vertices) for path in collection.get_paths()[:64]),
                "" if values is None else digest(values),
            ]
        )
    shown += [["image", digest(image.get_array())] for image in axes.images]
    shown += [
        ["patch", digest(patch.get_path().vertices), digest(patch.get_extents().bounds[2:])] for patch in axes.patches
    ]
    shown += [["text", digest(text.get_position()), *numbers_in(text.get_text())] for text in axes.texts]
    return shown


def figure_data(figure: Any) -> list[Any]:
    """Describe a figure: the data of each of its axes, with titles and labels reduced to their numbers."""
    figure.draw_without_rendering()
    return [
        {
            "limits": [digest(axes.get_xlim()), digest(axes.get_ylim())],
            "numbers": numbers_in(" ".join([axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()])),
            "artists": artists(axes),
        }
        for axes in figure.axes
    ]


def describe(experiment: Any, run: Any) -> dict[str, Any]:
    """Describe what one run says."""
    try:
        from harmax.figures import house_style
    except ImportError:
        from harmax.report.figures import house_style

    summary = experiment.summary_of(run)
    spec = experiment.load_spec(run.config["spec"])
    with house_style():
        pictures = experiment.draw(spec, experiment.by_cell(spec, run.results))
        drawn = {name: figure_data(picture.figure) for name, picture in pictures.items()}
    captions = {name: numbers_in(picture.caption) for name, picture in pictures.items()}
    cells = {}
    if run.source is None:
        for name, found in run.results.items():
            cells[name] = {
                "curves": {american(key): digest(array) for key, array in found.curves.items()},
                "arrays": {american(key): digest(array) for key, array in found.arrays.items()},
                "metrics": plain({key: value for key, value in found.metrics.items() if key != "cost"}),  # times differ
            }
    return {
        "claims": {
            one["claim"]: {
                "verdict": one["verdict"],
                "numbers": plain(one["numbers"]),
                "sentence": numbers_in(one["sentence"]),
            }
            for one in summary["verdicts"]
        },
        "tables": [[[plain(entry) for entry in row.values()] for row in table["rows"]] for table in summary["tables"]],
        "figures": drawn,
        "captions": captions,
        "counts": summary["cells"],
        "cells": cells,
    }


def record(output: Path, profile: str, runs: Path | None, only: list[str]) -> None:
    """Run (or open) every experiment and keep what it says."""
    try:
        from harmax_lab import EXPERIMENTS, open_runs, run
    except ImportError:
        from harmax.engine import run
        from harmax.experiments import EXPERIMENTS
        from harmax.store import open_runs

    output.mkdir(parents=True, exist_ok=True)
    for name, experiment in EXPERIMENTS.items():
        if only and name not in only:
            continue
        began = time.perf_counter()
        if runs is None:
            found = run(name, profile=profile, folder=output / "runs", device="cpu")
        else:
            stored = [one for one in open_runs(runs).query(experiment=name) if one.profile == profile]
            if not stored:
                print(f"{name}: no run", file=sys.stderr)
                continue
            found = stored[0]
        (output / f"{name}.json").write_text(json.dumps(describe(experiment, found), indent=1))
        print(f"{name}: {time.perf_counter() - began:.1f} s, {len(found.failed)} failed", flush=True)


def differences(before: Any, after: Any, where: str) -> list[str]:
    """List the places in which two descriptions differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = [
            f"{where}/{key}: only {'before' if key in before else 'after'}" for key in before.keys() ^ after.keys()
        ]
        for key in before.keys() & after.keys():
            found += differences(before[key], after[key], f"{where}/{key}")
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            one for i, pair in enumerate(zip(before, after, strict=True)) for one in differences(*pair, f"{where}/{i}")
        ]
    return [] if before == after else [f"{where}: {str(before)[:100]} -> {str(after)[:100]}"]


def compare(before: Path, after: Path, only: list[str], skip: list[str]) -> int:
    """List what differs between two recordings."""
    count = 0
    for path in sorted(before.glob("*.json")):
        if only and path.stem not in only:
            continue
        if not (after / path.name).exists():
            print(f"{path.stem}: missing")
            count += 1
            continue
        old, new = (json.loads((folder / path.name).read_text()) for folder in (before, after))
        found = [
            one
            for part in old.keys() | new.keys()
            if part not in skip
            for one in differences(old.get(part), new.get(part), part)
        ]
        count += len(found)
        print(f"{path.stem}: {len(found) or 'no'} difference{'s' * (len(found) != 1)}")
        for one in found[:12]:
            print(f"    {one}")
    return 1 if count else 0


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    keep = verbs.add_parser("record")
    keep.add_argument("output", type=Path)
    keep.add_argument("--profile", default="smoke")
    keep.add_argument("--runs", type=Path)
    keep.add_argument("--only", action="append", default=[])
    look = verbs.add_parser("compare")
    look.add_argument("before", type=Path)
    look.add_argument("after", type=Path)
    look.add_argument("--only", action="append", default=[])
    look.add_argument(
        "--skip", action="append", default=[], help="a part: claims, tables, figures, captions, counts, cells"
    )
    asked = parser.parse_args()
    if asked.verb == "compare":
        return compare(asked.before, asked.after, asked.only, asked.skip)
    record(asked.output, asked.profile, asked.runs, asked.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
