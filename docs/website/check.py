"""What the site must hold once it is built: links lead somewhere, and nothing is loaded from elsewhere."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
OWN_PAGE = "explorer"
"""A folder whose file is not made by Sphinx; the tests of the explorer look after it."""


@dataclass
class Page(HTMLParser):
    """The anchors and links of a page, and what it loads."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to."""
        found = {name: value or "" for name, value in attributes}
        self.anchors.update(found[name] for name in ("id", "name") if found.get(name))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if found.get(LOADED.get(tag, "")) and found.get("rel") not in ("canonical", "index", "next", "prev"):
            self.loaded.append(found[LOADED[tag]])


def problems(folder: Path) -> list[str]:
    """Return a line for each link that leads nowhere, and for each thing that is loaded from elsewhere."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html")) if path.parent.name != OWN_PAGE}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder)
        found += [f"{name} loads {one}" for one in page.loaded if urlsplit(one).scheme not in ("", "data")]
        for target in [*page.links, *page.loaded]:
            address = urlsplit(target)
            if address.scheme or address.netloc:
                continue
            leads = (path.parent / unquote(address.path)).resolve() if address.path else path
            if not leads.exists():
                found.append(f"{name} links to {target}, which does not exist")
            elif address.fragment and leads in pages and unquote(address.fragment) not in pages[leads].anchors:
                found.append(f"{name} links to {target}, and the page has no such anchor")
    return found
