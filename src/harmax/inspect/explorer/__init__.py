"""The explorer: one HTML file that shows runs, classifiers, verdicts and costs. `harmax explore` writes it.

    document.py       the types of everything on a page; `site/src/document.ts` has the same
    page.py           the built template with a document inside
    assemble.py       from sources to a document
    parts.py          what a source gives
    growth.py         an embedding over training
    classifiers.py    a classifier's centers and decisions
    costs.py          measured times and memory
    clouds.py         large point clouds for other programs

`make explorer` builds the template from `site/`. Users need no npm.

>>> page = page_of(ExplorerDocument("A title", "harmax", ""))
>>> page.startswith("<!doctype html>"), '"title":"A title"' in page
(True, True)
"""

from harmax.inspect.explorer.assemble import Assembled, assemble
from harmax.inspect.explorer.classifiers import Shown, shown_classifier, shown_pictures
from harmax.inspect.explorer.clouds import write_parquet, write_projector
from harmax.inspect.explorer.document import Example, ExplorerDocument, GrownRun, ShownClassifier, pack, unpack
from harmax.inspect.explorer.growth import grown_run
from harmax.inspect.explorer.page import page_of
from harmax.inspect.explorer.parts import Cloud, ExplorerOptions, ExplorerParts

__all__ = [
    "Assembled",
    "Cloud",
    "Example",
    "ExplorerDocument",
    "ExplorerOptions",
    "ExplorerParts",
    "GrownRun",
    "Shown",
    "ShownClassifier",
    "assemble",
    "grown_run",
    "pack",
    "page_of",
    "shown_classifier",
    "shown_pictures",
    "unpack",
    "write_parquet",
    "write_projector",
]
