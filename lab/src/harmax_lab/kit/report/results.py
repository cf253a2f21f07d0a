"""Small, lasting copies of results: a page, a summary, the pictures and every run's numbers, of each experiment."""

import csv
import gzip
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harmax.figures import to_png
from harmax.files import write_atomically, write_json
from harmax_lab.kit.claims import verdict_words
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.report.html import Section, collect, describe_environment, format_number
from harmax_lab.kit.store import Run

CELLS = "cells.csv.gz"


def write_results(experiments: Iterable[Experiment[Any, Any]], folder: Path | str, output: Path | str) -> list[Path]:
    """Write OUTPUT/<experiment>/README.md, summary.json, PNGs and cells.csv.gz for the best run of each experiment.

    A view's cells are its source's, and written there alone.

    Args:
        experiments: in the order of the report.
        folder: with the runs.
        output: where a folder an experiment is made.
    """
    written = []
    for section in collect(experiments, folder)[0]:
        if section.run is None or not section.run.done:
            continue
        target = Path(output) / section.experiment.name
        for name, picture in section.pictures.items():
            write_atomically(target / f"{name}.png", to_png(picture.figure))
        write_json(target / "summary.json", section.experiment.summary_of(section.run))
        write_atomically(target / "README.md", page(section).encode())
        if section.run.source is None:
            # Without a time the same cells give the same file.
            write_atomically(target / CELLS, gzip.compress(cells_csv(section.run).encode(), mtime=0))
        written.append(target)
    return written


def cells_csv(run: Run) -> str:
    """Return what every finished cell is and its single numbers and texts, a line a cell, to six digits.

    A number of the name of a field, such as an exponent that was set and is learned, is named apart.
    """
    cells = run.cells
    rows = []
    for name, one in run.results.items():
        found = {key: _plain(value) for key, value in one.metrics.items() if not _nested(value)}
        rows.append({**cells[name], **{f"{key}, found" if key in cells[name] else key: found[key] for key in found}})
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _nested(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


def _plain(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def page(section: Section) -> str:
    """The text of one experiment's page."""
    assert section.run is not None
    lines = [f"# {section.experiment.title}", f"{section.experiment.figure}. Made by `{section.command}`."]
    lines.append(f"{describe_environment(section.run)}. Cells failed: {len(section.run.failed)}.")
    if section.run.source is None:
        lines.append(f"Every finished cell's numbers: [{CELLS}]({CELLS}).")
    claims = [
        [claim.statement, claim.paper, verdict.sentence, f"**{verdict_words(verdict.verdict, claim)}**"]
        for claim, verdict in section.judged
    ]
    lines.append(_table(["claim", "paper", "here", "verdict"], claims))
    for name, picture in section.pictures.items():
        lines += [f"![{name}]({name}.png)", picture.caption]
    for table in section.tables:
        header = list(table.rows[0])
        lines.append(f"## {table.title}")
        lines.append(_table(header, [[format_number(row[key]) for key in header] for row in table.rows]))
    return "\n\n".join(lines) + "\n"


def _table(header: list[str], rows: list[list[str]]) -> str:
    def line(entries: list[str]) -> str:
        return "| " + " | ".join(entry.replace("|", "\\|") for entry in entries) + " |"

    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])
