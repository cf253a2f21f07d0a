"""harmax: harmonic loss for PyTorch. Output weights are class centres that a person can read.

>>> import torch
>>> from harmax import HarmonicHead
>>> head = HarmonicHead(16, 3)
>>> head(torch.randn(8, 16)).shape
torch.Size([8, 3])
"""

import importlib
from typing import Any

from harmax.functional import (
    LossOptions,
    harmax,
    harmonic_logits,
    harmonic_loss,
    log_harmax,
    squared_distance,
)
from harmax.heads import HEADS, HarmonicHead, HarmonicLoss, LearnableHarmonicHead, replace_head
from harmax.kernels import IMPLS
from harmax.kernels.eager import LossOutput

__version__ = "0.1.0"

__all__ = [
    "HEADS",
    "IMPLS",
    "Ensemble",
    "HarmonicHead",
    "HarmonicLoss",
    "History",
    "LearnableHarmonicHead",
    "LossOptions",
    "LossOutput",
    "Plan",
    "__version__",
    "fit",
    "harmax",
    "harmonic_logits",
    "harmonic_loss",
    "log_harmax",
    "open_runs",
    "replace_head",
    "run",
    "squared_distance",
]


# Loaded on first use: a model that only needs a head should not pay for experiments, stored runs and stacked training.
_LATER = {
    "run": "harmax.engine",
    "open_runs": "harmax.store",
    "Ensemble": "harmax.ensemble",
    "History": "harmax.ensemble",
    "Plan": "harmax.ensemble",
    "fit": "harmax.ensemble",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'harmax' has no attribute {name!r}")
