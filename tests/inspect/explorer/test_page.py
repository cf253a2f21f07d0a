"""The page without a browser: it is one file, current, and data in it stays data."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harmax.inspect.explorer import ExplorerDocument, page_of
from harmax.inspect.explorer.page import built_from, digest_of_sources, template

SITE = Path(__file__).parents[3] / "site"
MOST_BYTES = 2_000_000


class Reader(HTMLParser):
    """Collects scripts, and every address that a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.addresses: list[str] = []
        self._inside: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [str(found[name]) for name in ("src", "href", "srcset") if name in found]
        if tag == "script":
            self._inside = found
            self.scripts.append((found, ""))

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.scripts[-1] = (self._inside, self.scripts[-1][1] + data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._inside = None


def test_the_built_page_is_made_from_the_sources_that_are_here() -> None:
    if not (SITE / "src").is_dir():
        pytest.skip("only a checkout has the sources")
    assert built_from() == digest_of_sources(SITE), "site/ has changed since the page was built; run `make explorer`"


def test_the_built_page_is_one_small_file_that_loads_nothing() -> None:
    text = template()
    reader = Reader(text)
    assert len(text.encode()) < MOST_BYTES
    assert all(address.startswith("data:") for address in reader.addresses)
    assert [found.get("type") for found, _ in reader.scripts] == ["application/json", "module"]
    assert "default-src 'none'" in text
    assert not re.search(r"url\((?!data:)|@import|\bfetch\(|XMLHttpRequest|WebSocket", text)


def test_data_cannot_leave_the_place_for_data() -> None:
    attack = "</script><script>alert(1)</script><!-- <script> & \u2028\u2029"
    reader = Reader(page_of(ExplorerDocument(attack, "harmax", attack, notes=(attack,))))
    assert len(reader.scripts) == 2
    (found,) = (json.loads(text) for attributes, text in reader.scripts if attributes["type"] == "application/json")
    assert (found["title"], found["source"], found["notes"]) == (attack, attack, [attack])
    assert found["growth"] == []
    assert found["verdicts"] is None


def test_a_number_that_json_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        page_of(ExplorerDocument("title", "harmax", "", missing={"growth": float("nan")}))  # type: ignore[dict-item]


def test_the_registry_is_not_named_in_the_list_of_packages() -> None:
    listed = json.loads((SITE / "package-lock.json").read_text())["packages"]
    assert not [name for name, one in listed.items() if "resolved" in one]
