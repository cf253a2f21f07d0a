"""The page: a built template of `site/` with a document inside. It opens from disk and loads nothing."""

import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path

from harmax.errors import DamagedError
from harmax.inspect.explorer.document import ExplorerDocument, plain

SLOT = '<script type="application/json" id="harmax-document">null</script>'
SOURCES = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")
"""Files of `site/` that decide what is built, beside those in `site/src`."""


def template() -> str:
    """Return the built page without data."""
    path = files("harmax.inspect.explorer").joinpath("built/index.html")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    if text.count(SLOT) != 1:
        raise DamagedError(
            "the explorer's page in the installed package must have one place for data, but has not; install harmax "
            "again, or run `make explorer` in a checkout."
        )
    return text


def page_of(document: ExplorerDocument) -> str:
    """Return a page with a document inside.

    Data cannot end the script that holds it, because no "<" of it is written as such. The page's policy lets only the
    page's own script run.
    """
    # json.dumps writes other than ASCII as escapes, so also the line ends that only JavaScript knows.
    data = json.dumps(plain(document), allow_nan=False, separators=(",", ":"))
    data = re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", data)
    start, end = template().split(SLOT)
    return start + SLOT.replace("null", data) + end


def built_from() -> str:
    """Return the digest of the sources from which the template was built."""
    found = re.search(r'<meta name="harmax-sources" content="([0-9a-f]{64})"', template())
    return found[1] if found else ""


def digest_of_sources(site: Path) -> str:
    """Return the digest of the sources in a checkout, as `site/vite.config.ts` computes it."""
    inside = (path.relative_to(site).as_posix() for path in (site / "src").rglob("*") if path.is_file())
    total = hashlib.sha256()
    for name in sorted([*SOURCES, *inside]):
        total.update(f"{name}\n".encode())
        total.update((site / name).read_bytes())
    return total.hexdigest()
