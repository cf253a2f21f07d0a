"""Build the site: static HTML, which opens from disk and loads nothing from a network.

    make site                       or: python docs/make_site.py
    python docs/make_site.py --output FOLDER

The pages are the repository's own; website/contents.py says which, and in what order. Examples are executed once, and
again when they or harmax change. So is the training that the explorer shows, which takes about a minute on two cores.
The build fails if a link leads nowhere.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pages.site import DOCS, ROOT
from website.check import problems
from website.contents import NOT_EXECUTED, below
from website.gallery import executed, fingerprint
from website.reach import make_reachable
from website.stage import stage

BUILD = ROOT / "build"
MOST_BYTES = 6e6
"""What the explorer's page may weigh."""
PARTS = {".py", ".html", ".json", ".jsonl", ".png"}
"""Files that decide what is on it."""


def examples() -> dict[Path, Path | None]:
    """Execute the examples that can be."""
    return {
        path: None if path.stem in NOT_EXECUTED else executed(path, BUILD / "gallery") for path in below("examples")
    }


def sphinx(source: Path, output: Path) -> None:
    """Make HTML of the pages; a warning is an error."""
    words = ["--fail-on-warning", "--keep-going", "--quiet", "--fresh-env", "-c", str(DOCS / "website")]
    doctrees = ["-d", str(source.parent / "doctrees")]
    subprocess.run([sys.executable, "-m", "sphinx", *words, *doctrees, str(source), str(output)], check=True)


def explorer(file: Path) -> None:
    """Write the page of `harmax watch`: a training of both losses, the published verdicts and the measured costs."""
    places = ("src/harmax", "lab/src", "lab/results", "benchmarks/results")
    parts = [path for place in places for path in (ROOT / place).rglob("*.*") if path.suffix in PARTS]
    made = BUILD / f"explorer/{fingerprint(*parts)}.html"
    if not made.is_file():
        shutil.rmtree(made.parent, ignore_errors=True)
        with tempfile.TemporaryDirectory() as empty:
            words = ["-m", "harmax", "watch", "modular_addition", "--output", str(made)]
            subprocess.run([sys.executable, *words], cwd=empty, check=True, stdout=subprocess.DEVNULL)
    if made.stat().st_size > MOST_BYTES:
        raise RuntimeError(f"{made.name} must have at most {MOST_BYTES:,.0f} bytes, got {made.stat().st_size:,}")
    file.parent.mkdir(exist_ok=True)
    shutil.copy(made, file)


def main() -> int:
    """Build and check; 1 if a link leads nowhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=BUILD / "site", help="the folder for the site")
    output = parser.parse_args().output.resolve()
    source = BUILD / "site-source/pages"
    stage(source, examples())
    shutil.rmtree(output, ignore_errors=True)
    sphinx(source, output)
    make_reachable(output)
    explorer(output / "docs/website/explorer/explore.html")
    found = problems(output)
    print(*found, f"{output}/index.html", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
