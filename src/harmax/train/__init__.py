"""Training: one loop (loop.py), one checkpoint format (checkpoint.py), and a recipe per task.

    language/   GPT-2; `harmax pretrain`
    vision/     image classifiers; `harmax vision`

from harmax.train import PRESETS
from harmax.train.language.train import pretrain

pretrain(PRESETS["smoke"], "runs/smoke")
"""

from harmax.train.language import PRESETS, PretrainSpec

__all__ = ["PRESETS", "PretrainSpec"]
