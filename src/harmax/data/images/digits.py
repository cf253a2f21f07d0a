"""The digits inside scikit-learn: 1,797 images of 8 x 8, no download."""

from pathlib import Path

import numpy as np

from harmax.data.images.source import Images
from harmax.errors import needs

CLASSES = tuple("0123456789")
TRAINING = 1437
LEVELS = 16  # the gray levels of the original go from 0 to 16


def read_digits(folder: Path, split: str) -> Images:
    """Return the first 1,437 digits (train) or the last 360 (test), most of them by other writers.

    scikit-learn defines no split. The file is ordered by writer. So this cut, unlike a random one, tests whether a
    classifier can read writers that it has not seen.
    """
    with needs("sklearn"):
        from sklearn.datasets import load_digits

    bundle = load_digits()
    part = slice(None, TRAINING) if split == "train" else slice(TRAINING, None)
    pixels = np.rint(bundle.images[part] * (255 / LEVELS)).astype(np.uint8)
    return Images(pixels, bundle.target[part].astype(np.int64), CLASSES)
