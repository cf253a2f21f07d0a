"""The digits inside scikit-learn: 1,797 images of 8 x 8, no download."""

from pathlib import Path

import numpy as np

from harmax.data.images.source import Images
from harmax.errors import needs

CLASSES = tuple("0123456789")
TRAINING = 1437
LEVELS = 16  # the greys of the original run from 0 to 16


def read_digits(folder: Path, split: str) -> Images:
    """Return the first 1,437 digits (train) or the last 360 (test), which other hands wrote for the most part.

    scikit-learn names no split. The order of the file goes by writers, so that a cut in it, unlike a draw, asks whether
    a classifier knows hands that it has not seen.
    """
    with needs("sklearn"):
        from sklearn.datasets import load_digits

    bundle = load_digits()
    part = slice(None, TRAINING) if split == "train" else slice(TRAINING, None)
    pixels = np.rint(bundle.images[part] * (255 / LEVELS)).astype(np.uint8)
    return Images(pixels, bundle.target[part].astype(np.int64), CLASSES)
