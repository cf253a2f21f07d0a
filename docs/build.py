"""Make every page, table and picture of the documentation that is not written by hand.

    make docs                       or: python docs/build.py
    python docs/build.py --check    write nothing; say which pages of text are not current (exit 1 if any)

Each module of docs/pages makes one kind of page: `api` from the docstrings, `benchmarks` from benchmarks/results,
`verdicts` from lab/results. loss_page.py makes lab/results/is_it_the_loss.md from its template; `fields` fills numbers
of results into the sentences of docs/templates. The results themselves are copied from the finished runs in runs/,
where there are any. circle.py makes the README's film and the numbers of its caption; it trains for two minutes, so it
is called by hand.
"""

import argparse
import json
import os
import runpy
import sys
from pathlib import Path

import matplotlib

import loss_page
import start_figures
from harmax.bench import figures
from harmax_lab.experiments import EXPERIMENTS
from pages import api, benchmarks, changes, fields, unexplained, verdicts
from pages.site import DOCS, FIGURES, RESULTS, ROOT, filled


def pages() -> dict[Path, str]:
    """Every page of text that is made, wholly or between markers, and what it should say."""
    made = sections_of_results()
    filled_in = {
        ROOT / "README.md": {"costs": benchmarks.costs_table(), "film": made["film"], "holds": made["holds"]},
        ROOT / "lab/README.md": {"verdicts": verdicts.verdict_table(), "experiments": made["experiments"]},
        ROOT / "benchmarks/README.md": benchmarks.sections(),
    }
    rows = benchmarks.gpu_rows()
    return {
        DOCS / "api.md": api.library_page(),
        DOCS / "api_lab.md": api.laboratory_page(),
        RESULTS / "README.md": verdicts.claims_page(),
        RESULTS / "changes.md": changes.changes_page(),
        RESULTS / "unexplained.md": unexplained.unexplained_page(),
        RESULTS / "rules.md": verdicts.rules_page(),
        RESULTS / "is_it_the_loss.md": loss_page.page(RESULTS),
        **({FIGURES / "README.md": benchmarks.figures_page(rows)} if rows else {}),
        **{path: filled(path.read_text(), made) for path, made in filled_in.items()},
    }


def sections_of_results() -> dict[str, str]:
    """Sentences with numbers of results, by the marker that they stand behind."""
    studies = fields.summaries(RESULTS)
    film = {"film": json.loads((DOCS / "images/circle.json").read_text())}
    return {
        "film": fields.page("film", film),
        "holds": fields.page("what_holds", studies),
        "experiments": fields.page("experiments", studies),
    }


def draw_digits() -> None:
    """Draw the guide's picture of weights with the example that shows how."""
    picture = DOCS / "images" / "digits.svg"
    picture.parent.mkdir(exist_ok=True)
    # Without a date and with fixed ids the same weights give the same file.
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    with matplotlib.rc_context({"svg.hashsalt": "digits"}):
        runpy.run_path(str(ROOT / "examples" / "digits.py"))["main"](output=str(picture))


def copy_results(runs: Path) -> None:
    """Copy the best finished run of each experiment from runs/ to lab/results, and judge all published rows again."""
    from harmax_lab.report import judge_again, write_results

    copied = write_results(EXPERIMENTS.values(), runs, RESULTS) if runs.is_dir() else []
    for folder in (*copied, *judge_again(EXPERIMENTS.values(), RESULTS)):
        print(folder)


def check() -> int:
    """Say which pages are not current; 1 if any."""
    stale = [
        str(path.relative_to(ROOT)) for path, text in pages().items() if not path.exists() or path.read_text() != text
    ]
    print(f"not current: {', '.join(stale)}; run make docs" if stale else "everything is current")
    return 1 if stale else 0


def main() -> int:
    """Build, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is not current")
    if parser.parse_args().check:
        return check()
    draw_digits()
    start_figures.draw()
    copy_results(ROOT / "runs")
    if rows := benchmarks.gpu_rows():
        figures.write_figures(rows, FIGURES)
    # Last: the tables read what is written above.
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
