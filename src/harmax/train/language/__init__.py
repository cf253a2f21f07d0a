"""Pre-training of GPT-2: a specification says what, `pretrain` does it, on one process or many.

from harmax.train.language import PRESETS
from harmax.train.language.train import pretrain

pretrain(PRESETS["smoke"], "runs/smoke")
"""

from harmax.train.language.presets import PRESETS
from harmax.train.language.settings import PretrainSpec

__all__ = ["PRESETS", "PretrainSpec"]
