"""The verbs of the command line, in the order of the help: where each is, and what it does in a few words.

A verb's module is imported when it is asked for, so that `harmax --help` and light verbs do not pay for the others.
"""

import importlib
from typing import Any

VERBS: dict[str, tuple[str, str]] = {
    "list": ("listing:List", "List the experiments."),
    "run": ("run:RunExperiment", "Run one experiment, or what is left of it."),
    "reproduce": ("run:Reproduce", "Run every experiment, then write the report."),
    "analyze": ("analyze:Analyze", "Measure the stored embeddings of `algorithmic`, or make a film of them."),
    "geometry": ("geometry:Geometry", "Measure word pairs and token centres in language models of transformers."),
    "prototypes": ("prototypes:Prototypes", "Show an image classifier's centres, and why it decided as it did."),
    "report": ("report:WriteReport", "Write one self-contained HTML file from the runs that are there."),
    "data": ("data:Data", "Make token shards for GPT-2, or fetch and check image data sets."),
    "pretrain": ("pretrain:Pretrain", "Pre-train a GPT-2, or go on with one."),
    "vision": ("vision:Vision", "Train an image classifier, or go on with one."),
    "bench": ("bench:Bench", "Run a benchmark."),
    "doctor": ("doctor:Doctor", "Say what is installed, what is missing and how to get it."),
}


def load_verb(name: str) -> Any:
    """Import a verb: what tyro makes an object of, which does the work when it is called.

    >>> load_verb("list").__name__
    'List'
    """
    module, _, attribute = VERBS[name][0].partition(":")
    return getattr(importlib.import_module(f"harmax.cli.{module}"), attribute)
