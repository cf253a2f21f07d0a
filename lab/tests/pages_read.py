"""Pages of HTML as tests read them."""

from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """Every element of a page, with its attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.feed(self.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))

    def values(self, name: str, tag: str = "") -> list[str]:
        """The values of an attribute."""
        return [found[name] for kind, found in self.elements if name in found and tag in ("", kind)]

    def count(self, tag: str) -> int:
        return sum(kind == tag for kind, _ in self.elements)

    def of_class(self, name: str) -> list[dict[str, str]]:
        return [found for _, found in self.elements if name in found.get("class", "").split()]
