"""Training of image classifiers: a specification says what, `train_classifier` does it, on one process or many.

from harmax.train.vision import VISION_PRESETS
from harmax.train.vision.train import train_classifier

train_classifier(VISION_PRESETS["smoke"], "runs/smoke")
"""

from harmax.train.vision.presets import VISION_PRESETS
from harmax.train.vision.settings import VisionSpec

__all__ = ["VISION_PRESETS", "VisionSpec"]
