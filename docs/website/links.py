"""Links of a page as the site needs them: to its own pages where there is one, else to the repository's address."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pages.site import REPOSITORY, ROOT, address

OWN = re.compile(
    rf"(?:{REPOSITORY}/(?:blob|tree)|{REPOSITORY.replace('github.com', 'raw.githubusercontent.com')})/main/(.+)"
)
LINK = re.compile(r'(?<=\]\()[^)\s]+(?=\))|(?<=<img src=")[^"]+(?=")')
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
PICTURES = {".png", ".svg", ".gif", ".jpg"}


def rewritten(text: str, page: Path, sources: Mapping[Path, str]) -> tuple[str, set[Path]]:
    """Return a page's text with its links rewritten, and the pictures that it shows. Code stays as it is."""
    pictures: set[Path] = set()

    def link(match: re.Match[str]) -> str:
        new, picture = target_of(match[0], page, sources)
        pictures.update([picture] if picture else [])
        return new

    parts = CODE.split(text)
    return "".join(part if place % 2 else LINK.sub(link, part) for place, part in enumerate(parts)), pictures


def target_of(target: str, page: Path, sources: Mapping[Path, str]) -> tuple[str, Path | None]:
    """Return where a link leads on the site, and the picture that it shows, if it does."""
    link, mark, anchor = target.partition("#")
    own = OWN.fullmatch(link)
    if not link or (own is None and re.match(r"\w+:", link)):
        return target, None
    path = Path(os.path.normpath(ROOT / own[1] if own else page.parent / link))
    if not path.exists():
        raise FileNotFoundError(f"{page.relative_to(ROOT)} links to {target}, which does not exist; correct the link.")
    if path.is_dir() and path / "README.md" in sources:
        path /= "README.md"
    here = Path(sources[page]).parent
    if path in sources:
        return os.path.relpath(f"{sources[path]}.md", here) + mark + anchor, None
    place = str(path.relative_to(ROOT))
    if path.suffix in PICTURES:
        return os.path.relpath(place, here), path
    return address(place) + mark + anchor, None
