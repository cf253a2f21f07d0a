"""Small copies of results to keep: per experiment a page, a summary, the pictures and the numbers of every run."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harmax.figures import to_png
from harmax.files import read_json, write_atomically, write_json
from harmax_lab.kit.claims import Claim, Verdict, conclude, verdict_words
from harmax_lab.kit.experiment import PROFILES, Experiment
from harmax_lab.kit.published import OLD_ROWS, ROWS, read_rows, write_rows
from harmax_lab.kit.tables import Table
from harmax_lab.report.html import Section, collect, describe_environment, format_number
from harmax_lab.report.markdown import from_markdown, to_markdown

OTHER_VERSION = "The published runs are of an earlier version of this experiment. Run it again."
NO_ROWS = "The rows of the published runs were not kept, and their verdicts are on other statements. Run it again."


def write_results(experiments: Iterable[Experiment[Any, Any]], folder: Path | str, output: Path | str) -> list[Path]:
    """Write OUTPUT/<experiment>/README.md, summary.json, PNGs and rows for the best run of each experiment.

    What is published stays where the best run is less thorough: a quick run never replaces a full one.

    Args:
        experiments: in the order of the report.
        folder: with the runs.
        output: the folder to write to.
    """
    written = []
    for section in collect(experiments, folder).sections:
        if section.run is None or not section.run.done or section.variant:
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


def judge_again(experiments: Iterable[Experiment[Any, Any]], output: Path | str) -> list[Path]:
    """Judge published rows by today's claims, and write verdicts and tables into the published pages.

    Pictures stay as they are: rows hold what claims and tables need, and no more. Rows of an older form lack what some
    tables need, so their tables stay too. Where no rows were kept, a verdict stays as long as its statement does, and
    any other claim is not decided. Nor is any, if the runs are of another version of the experiment. What is exact
    needs no rows.

    Args:
        experiments: whose published pages are judged.
        output: what was given to `write_results`.
    """
    written = []
    for experiment in experiments:
        folder = Path(output) / experiment.name
        if not (folder / "summary.json").is_file():
            continue
        stored, text = read_json(folder / "summary.json"), (folder / "README.md").read_text()
        new = _judged_again(experiment, folder, stored, text)
        write_json(folder / "summary.json", {**stored, **new})
        judged = list(zip(experiment.claims, [Verdict(**one) for one in new["verdicts"]], strict=True))
        tables = tuple(Table(**one) for one in new["tables"]) if "tables" in new else None
        write_atomically(folder / "README.md", _with_verdicts(text, judged, tables).encode())
        written.append(folder)
    return written


def _judged_again(
    experiment: Experiment[Any, Any], folder: Path, stored: Mapping[str, Any], text: str
) -> dict[str, Any]:
    """Return today's verdicts on published runs and, where their rows are whole, their tables."""
    if stored.get("versions", [1] * len(experiment.versions)) != experiment.versions:
        return {"verdicts": [asdict(_unanswered(experiment, claim, OTHER_VERSION)) for claim in experiment.claims]}
    if (folder / ROWS).is_file():
        return asdict(experiment.judge(read_rows(experiment, folder)))
    if (folder / OLD_ROWS).is_file():  # without what an experiment measures of its runs
        results = read_rows(experiment, folder)
        return {"verdicts": asdict(experiment.summarize(results.spec, results))["verdicts"]}
    before = {one["claim"]: one for one in stored["verdicts"]}
    said = from_markdown(text)  # older pages are not escaped
    same = {claim.id for claim in experiment.claims if claim.statement.replace("|", "\\|") in said and not claim.exact}
    return {
        "verdicts": [
            before[claim.id] if claim.id in same & before.keys() else asdict(_unanswered(experiment, claim, NO_ROWS))
            for claim in experiment.claims
        ]
    }


def _unanswered(experiment: Experiment[Any, Any], claim: Claim, reason: str) -> Verdict:
    if claim.exact or claim.not_run:
        return conclude(claim, experiment.results(experiment.profiles["full"], {}))
    return claim.unanswered(reason)


def _with_verdicts(text: str, judged: list[tuple[Claim, Verdict]], tables: tuple[Table, ...] | None) -> str:
    """Return a published page with other verdicts and, unless they are None, other tables."""
    blocks = text.rstrip("\n").split("\n\n")
    claims = next(number for number, block in enumerate(blocks) if block.startswith("| claim |"))
    first = next((number for number, block in enumerate(blocks) if block.startswith("## ")), len(blocks))
    kept = blocks[first:] if tables is None else _table_blocks(tables)
    return "\n\n".join([*blocks[:claims], _claims_block(judged), *blocks[claims + 1 : first], *kept]) + "\n"


def _published_profile(folder: Path) -> str | None:
    summary = folder / "summary.json"
    return read_json(summary)["profile"] if summary.is_file() else None


def _thoroughness(profile: str | None) -> int:
    return PROFILES.index(profile) if profile in PROFILES else -1


def page(section: Section) -> str:
    """The text of one experiment's page."""
    assert section.run is not None
    parts = [
        f"# {to_markdown(section.experiment.title)}",
        f"{to_markdown(section.experiment.figure)}. Made by `{section.command}`.",
        f"{to_markdown(describe_environment(section.run))}. Cells failed: {len(section.run.failed)}.",
        f"One row per finished cell: [{ROWS}]({ROWS}).",
        _claims_block(section.judged),
    ]
    for name, picture in section.pictures.items():
        parts += [f"![{name}]({name}.png)", to_markdown(picture.caption)]
    return "\n\n".join(parts + _table_blocks(section.summary.tables)) + "\n"


def _claims_block(judged: list[tuple[Claim, Verdict]]) -> str:
    rows = [
        [claim.statement, claim.source, verdict.sentence, f"**{verdict_words(verdict.verdict, claim)}**"]
        for claim, verdict in judged
    ]
    return _table(["claim", "paper", "here", "verdict"], rows)


def _table_blocks(tables: Iterable[Table]) -> list[str]:
    blocks = []
    for table in tables:
        header = list(table.rows[0])
        rows = [[format_number(row[key]) for key in header] for row in table.rows]
        blocks += [f"## {to_markdown(table.title)}", _table(header, rows)]
    return blocks


def _table(header: list[str], rows: list[list[str]]) -> str:
    def line(entries: list[str]) -> str:
        return "| " + " | ".join(map(_escaped, entries)) + " |"

    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])


def _escaped(entry: str) -> str:
    return to_markdown(entry).replace("|", "\\|")
