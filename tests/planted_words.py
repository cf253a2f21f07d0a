"""Word pairs of a made-up task, and what chance gives for their parallelograms."""

import numpy as np

PAIRS = np.arange(200).reshape(100, 2)  # tokens 0 : 1, 2 : 3, ...
GAUSSIAN_MEDIAN = 2 * np.sqrt(np.log(2))  # of |a - b - c + d| / sqrt(E |a|^2) for Gaussian points in the plane
