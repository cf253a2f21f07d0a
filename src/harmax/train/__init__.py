"""Pre-training of language models: a spec says what, `pretrain` does it, on one process or many.

from harmax.train import PRESETS
from harmax.train.pretrain import pretrain

pretrain(PRESETS["smoke"], "runs/smoke")
"""

from harmax.train.presets import PRESETS
from harmax.train.spec import PretrainSpec

__all__ = ["PRESETS", "PretrainSpec"]
