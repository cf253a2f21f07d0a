"""harmax: harmonic loss for PyTorch. Output weights are class centers that a person can read.

>>> import torch
>>> from harmax import HarmonicHead
>>> head = HarmonicHead(16, 3)
>>> head(torch.randn(8, 16)).shape
torch.Size([8, 3])
"""

from harmax.functional import (
    LossOptions,
    harmax,
    harmonic_logits,
    harmonic_loss,
    log_harmax,
    squared_distance,
)
from harmax.heads import HEADS, HarmonicHead, HarmonicLoss, LearnableHarmonicHead, replace_head
from harmax.kernels import IMPLS, LossOutput

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
    "replace_head",
    "squared_distance",
]
