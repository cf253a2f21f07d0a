"""harmax: harmonic loss for PyTorch. Output weights are class centers that a person can read.

The names here are those that a training script needs. Other public modules are `harmax.heads` (with the registry
`HEADS`), `harmax.kernels` (with the registry `IMPLS`), `harmax.hf`, `harmax.sklearn`, `harmax.analysis`,
`harmax.data` and `harmax.train`.

>>> import torch
>>> from harmax import HarmonicHead
>>> head = HarmonicHead(16, 3)
>>> head(torch.randn(8, 16)).shape
torch.Size([8, 3])
"""

from harmax.functional import (
    LossOptions,
    LossOutput,
    harmax,
    harmonic_entropy,
    harmonic_logits,
    harmonic_loss,
    log_harmax,
    squared_distance,
)
from harmax.heads import HarmonicHead, HarmonicLoss, LearnableHarmonicHead, replace_head

__version__ = "0.1.0"

__all__ = [
    "HarmonicHead",
    "HarmonicLoss",
    "LearnableHarmonicHead",
    "LossOptions",
    "LossOutput",
    "__version__",
    "harmax",
    "harmonic_entropy",
    "harmonic_logits",
    "harmonic_loss",
    "log_harmax",
    "replace_head",
    "squared_distance",
]
