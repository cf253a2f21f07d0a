"""harmax-lab: the paper's experiments, and an engine that trains hundreds of small models as one.

>>> from harmax_lab import EXPERIMENTS
>>> EXPERIMENTS["toy_cases"].figure
'Fig. 1 b, c'
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# Loaded on first use: someone who stacks small models should not pay for every experiment.
_PLACES = {
    "EXPERIMENTS": "harmax_lab.experiments",
    "Ensemble": "harmax_lab.ensemble",
    "History": "harmax_lab.ensemble",
    "Plan": "harmax_lab.ensemble",
    "fit": "harmax_lab.ensemble",
    "open_runs": "harmax_lab.kit.store",
    "run": "harmax_lab.experiments",
}

__all__ = ["EXPERIMENTS", "Ensemble", "History", "Plan", "__version__", "fit", "open_runs", "run"]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'harmax_lab' has no attribute {name!r}")
