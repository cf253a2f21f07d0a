"""The verbs of the command line: where each one is, and what it does in a few words.

The library brings its own; an installed package adds more through the entry-point group `harmax.verbs`, as a dict of
the same form. A verb's module is imported when it is asked for, so `harmax --help` and light verbs stay fast.
"""

import importlib
from typing import Any

from harmax.plugins import plugins

VERBS: dict[str, tuple[str, str]] = {
    "data": ("harmax.cli.data:Data", "Make token shards for GPT-2, or fetch and check image data sets."),
    "pretrain": ("harmax.cli.pretrain:Pretrain", "Pre-train a GPT-2, or resume one."),
    "vision": ("harmax.cli.vision:Vision", "Train an image classifier, or resume one."),
    "geometry": ("harmax.cli.geometry:Geometry", "Measure word pairs and token centers in language models."),
    "prototypes": ("harmax.cli.prototypes:Prototypes", "Show an image classifier's centers and its reasons."),
    "explore": ("harmax.cli.explore:Explore", "Write one page to look at runs, classifiers, verdicts and costs."),
    "bench": ("harmax.cli.bench:Bench", "Run a benchmark."),
    "doctor": ("harmax.cli.doctor:Doctor", "Report what is installed, what is missing and how to get it."),
}

LAB_VERBS = ("list", "run", "reproduce", "search", "watch", "analyze", "report")
"""What harmax-lab adds: without it, these say what to install."""


def all_verbs() -> dict[str, tuple[str, str]]:
    """Return the library's verbs and those of installed packages, packages' first."""
    added: dict[str, tuple[str, str]] = {}
    for verbs in plugins("verbs").values():
        added |= verbs
    return added | VERBS


def load_verb(place: str) -> Any:
    """Import a verb: a dataclass that tyro fills from the command line and that does the work when called.

    >>> load_verb("harmax.cli.doctor:Doctor").__name__
    'Doctor'
    """
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
