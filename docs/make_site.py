"""Build the site: static HTML, which opens from disk and loads nothing from a network.

    make site                       or: python docs/make_site.py
    python docs/make_site.py --output FOLDER

The pages are the repository's own; website/contents.py says which, and in what order. Examples are executed once, and
again when they or harmax change. The build fails if a link leads nowhere.
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
from website.gallery import executed
from website.stage import stage

BUILD = ROOT / "build"
MOST_BYTES = 6e6
"""What the explorer's page may weigh."""


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
    """Write the page of `harmax explore` as it is where there are no runs."""
    file.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as empty:
        words = ["-m", "harmax", "explore", "--output", str(file)]
        subprocess.run([sys.executable, *words], cwd=empty, check=True, stdout=subprocess.DEVNULL)
    if file.stat().st_size > MOST_BYTES:
        raise RuntimeError(f"{file.name} must have at most {MOST_BYTES:,.0f} bytes, got {file.stat().st_size:,}")


def main() -> int:
    """Build and check; 1 if a link leads nowhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=BUILD / "site", help="the folder for the site")
    output = parser.parse_args().output.resolve()
    source = BUILD / "site-source/pages"
    stage(source, examples())
    shutil.rmtree(output, ignore_errors=True)
    sphinx(source, output)
    explorer(output / "docs/website/explorer/explore.html")
    found = problems(output)
    print(*found, f"{output}/index.html", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
