"""The folder that Sphinx reads: every page with the site's links, its pictures, and the navigation."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from pages.site import ROOT
from website import gallery
from website.contents import BELOW, SECTIONS, below, entries, sources
from website.links import rewritten

Executed = Mapping[Path, Path | None]
"""Each example with the folder of what it printed and drew; None where it was not executed."""


def stage(folder: Path, examples: Executed) -> None:
    """Write all pages of the site into an empty folder."""
    places = sources()
    shutil.rmtree(folder, ignore_errors=True)
    drawn = {}
    for path, name in places.items():
        if path.suffix == ".py":
            text, drawn[path] = gallery.page_of(path, examples[path])
            pictures = {one: f"examples/{one.name}" for one in drawn[path]}
        else:
            text, shown = rewritten(path.read_text(encoding="utf-8"), path, places)
            pictures = {one: str(one.relative_to(ROOT)) for one in shown}
        write(folder / f"{name}.md", text)
        for picture, place in pictures.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, folder / place)
    write(folder / f"{gallery.INDEX}.md", gallery.index_page(drawn))
    for place in BELOW:
        name = gallery.INDEX if place == "examples" else places[ROOT / place]
        append(folder / f"{name}.md", contents([_entry(path, places) for path in below(place)]))
    append(folder / "index.md", "".join(navigation(places)))


def navigation(places: Mapping[Path, str]) -> list[str]:
    """Return the site's navigation, a section each."""
    return [
        contents([entry for name in names for entry in _entries(name, places)], caption)
        for caption, names in SECTIONS.items()
    ]


def _entries(name: str, places: Mapping[Path, str]) -> list[str]:
    return [f"/{gallery.INDEX}"] if name == "examples" else [_entry(path, places) for path in entries(name)]


def _entry(path: Path, places: Mapping[Path, str]) -> str:
    """An example is listed by its name, because its title is a sentence."""
    return f"{path.stem} </{places[path]}>" if path.suffix == ".py" else f"/{places[path]}"


def contents(names: list[str], caption: str = "") -> str:
    """Return a list of pages for the navigation, which is not shown on the page itself."""
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *names, "```", ""])


def write(path: Path, text: str) -> None:
    """Write a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def append(path: Path, text: str) -> None:
    """Write behind the text of a page."""
    write(path, path.read_text(encoding="utf-8") + text)
