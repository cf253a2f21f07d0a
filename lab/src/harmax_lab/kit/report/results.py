"""Small copies of results to keep: per experiment a page, a summary, the pictures and the numbers of every run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harmax.figures import to_png
from harmax.files import read_json, write_atomically, write_json
from harmax_lab.kit.claims import verdict_words
from harmax_lab.kit.experiment import PROFILES, Experiment
from harmax_lab.kit.published import ROWS, write_rows
from harmax_lab.kit.report.html import Section, collect, describe_environment, format_number


def write_results(experiments: Iterable[Experiment[Any, Any]], folder: Path | str, output: Path | str) -> list[Path]:
    """Write OUTPUT/<experiment>/README.md, summary.json, PNGs and rows for the best run of each experiment.

    What is published stays where the best run is less thorough: a quick run never replaces a full one.

    Args:
        experiments: in the order of the report.
        folder: with the runs.
        output: the folder to write to.
    """
    written = []
    for section in collect(experiments, folder)[0]:
        if section.run is None or not section.run.done:
            continue
        target = Path(output) / section.experiment.name
        if _thoroughness(section.run.profile) < _thoroughness(_published_profile(target)):
            continue
        for name, picture in section.pictures.items():
            write_atomically(target / f"{name}.png", to_png(picture.figure))
        write_json(target / "summary.json", section.experiment.summary_of(section.run, section.summary))
        write_atomically(target / "README.md", page(section).encode())
        assert section.results is not None
        write_rows(section.experiment, section.results, target)
        written.append(target)
    return written


def _published_profile(folder: Path) -> str | None:
    summary = folder / "summary.json"
    return read_json(summary)["profile"] if summary.is_file() else None


def _thoroughness(profile: str | None) -> int:
    return PROFILES.index(profile) if profile in PROFILES else -1


def page(section: Section) -> str:
    """The text of one experiment's page."""
    assert section.run is not None
    claims = [
        [claim.statement, claim.paper, verdict.sentence, f"**{verdict_words(verdict.verdict, claim)}**"]
        for claim, verdict in section.judged
    ]
    parts = [
        f"# {section.experiment.title}",
        f"{section.experiment.figure}. Made by `{section.command}`.",
        f"{describe_environment(section.run)}. Cells failed: {len(section.run.failed)}.",
        f"One row per finished cell: [{ROWS}]({ROWS}).",
        _table(["claim", "paper", "here", "verdict"], claims),
    ]
    for name, picture in section.pictures.items():
        parts += [f"![{name}]({name}.png)", picture.caption]
    for table in section.summary.tables:
        header = list(table.rows[0])
        rows = [[format_number(row[key]) for key in header] for row in table.rows]
        parts += [f"## {table.title}", _table(header, rows)]
    return "\n\n".join(parts) + "\n"


def _table(header: list[str], rows: list[list[str]]) -> str:
    def line(entries: list[str]) -> str:
        return "| " + " | ".join(entry.replace("|", "\\|") for entry in entries) + " |"

    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])
