"""Small, lasting copies of results: a page, a summary and the pictures of each experiment."""

from pathlib import Path

from harmax.experiments.spec import verdict_words
from harmax.files import write_atomically, write_json
from harmax.report.figures import to_png
from harmax.report.html import Section, collect, describe_environment, format_number


def write_results(folder: Path | str, output: Path | str) -> list[Path]:
    """Write OUTPUT/<experiment>/README.md, summary.json and PNGs for the best run of each experiment in a folder."""
    written = []
    for section in collect(folder)[0]:
        if section.run is None or not section.run.done:
            continue
        target = Path(output) / section.experiment.name
        for name, picture in section.pictures.items():
            write_atomically(target / f"{name}.png", to_png(picture.figure))
        write_json(target / "summary.json", section.experiment.summary_of(section.run))
        write_atomically(target / "README.md", page(section).encode())
        written.append(target)
    return written


def page(section: Section) -> str:
    """The text of one experiment's page."""
    assert section.run is not None
    lines = [f"# {section.experiment.title}", f"{section.experiment.figure}. Made by `{section.command}`."]
    lines.append(f"{describe_environment(section.run)}. Cells failed: {len(section.run.failed)}.")
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
