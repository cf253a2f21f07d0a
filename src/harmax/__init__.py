"""harmax: harmonic loss for PyTorch. Output weights are class centres that a person can read.

>>> import torch
>>> from harmax import HarmonicHead
>>> head = HarmonicHead(16, 3)
>>> head(torch.randn(8, 16)).shape
torch.Size([8, 3])
"""

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
    "HarmonicHead",
    "HarmonicLoss",
    "LearnableHarmonicHead",
    "LossOptions",
    "LossOutput",
    "__version__",
    "harmax",
    "harmonic_logits",
    "harmonic_loss",
    "log_harmax",
    "open_runs",
    "replace_head",
    "run",
    "squared_distance",
]


def __getattr__(name: str) -> Any:
    # Experiments and stored runs are loaded on first use: a model that only needs a head should not pay for them.
    if name == "run":
        from harmax.engine import run

        return run
    if name == "open_runs":
        from harmax.store import open_runs

        return open_runs
    raise AttributeError(f"module 'harmax' has no attribute {name!r}")
