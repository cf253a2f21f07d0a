"""When an accuracy curve rises and stays high, and how much later the test set follows the training set."""

# S runs, E epochs

from typing import Any

import numpy as np

THRESHOLD, WINDOW = 0.9, 20


def grokking_epochs(accuracy: Any, threshold: float = THRESHOLD, window: int = WINDOW) -> np.ndarray:
    """Return, for each run, the first of `window` consecutive epochs above a threshold, (S,) float64.

    min { e : accuracy[e], ..., accuracy[e + window - 1] > threshold }. It is infinity if there is no such epoch, so
    that a median over runs includes the runs that never reach the threshold. NaN does not count as above the threshold.

    Args:
        accuracy: (S, E), one value per epoch; epochs count from 0.
        threshold: accuracy must be above it; an equal value is not enough.
        window: number of consecutive epochs.

    >>> grokking_epochs([[0.5, 1.0, 0.2, 1.0, 1.0], [0.5, 0.5, 0.5, 0.5, 1.0]], window=2)
    array([ 3., inf])
    """
    found = np.asarray(accuracy, dtype=np.float64)
    if found.ndim != 2 or 0 in found.shape:
        raise ValueError(
            f"`accuracy` must have shape (runs, epochs), got {found.shape}; use grokking_epoch for one run."
        )
    _check_window(window)
    runs, epochs = found.shape
    if epochs < window:
        return np.full(runs, np.inf)
    passed = np.pad(np.cumsum(found > threshold, axis=1), ((0, 0), (1, 0)))
    starts: np.ndarray = passed[:, window:] - passed[:, :-window] == window
    return np.where(starts.any(1), starts.argmax(1), np.inf)


def grokking_epoch(accuracy: Any, threshold: float = THRESHOLD, window: int = WINDOW) -> int | None:
    """Return the first of `window` consecutive epochs above a threshold for one run, or None.

    Args:
        accuracy: (E,), as one row of `grokking_epochs`.
        threshold: as for `grokking_epochs`.
        window: as for `grokking_epochs`.

    >>> grokking_epoch([0.5, 0.95, 0.95, 0.95], window=3)
    1
    """
    found = np.asarray(accuracy, dtype=np.float64)
    if found.ndim != 1 or not len(found):
        raise ValueError(f"`accuracy` must have shape (epochs,), got {found.shape}; use grokking_epochs for many runs.")
    epoch = grokking_epochs(found[None], threshold, window)[0]
    return int(epoch) if np.isfinite(epoch) else None


def grokking_gaps(train: Any, test: Any, threshold: float = THRESHOLD, window: int = WINDOW) -> np.ndarray:
    """Return, for each run, by how many epochs the test set follows the training set, (S,) float64.

    grokking_epochs(test) - grokking_epochs(train). It is infinity if the test set never reaches the threshold. It is
    NaN if the test set does but the training set does not, which happens because training accuracy is measured with
    dropout. Count such runs separately.

    Args:
        train: training accuracy, (S, E).
        test: test accuracy, (S, E).
        threshold: as for `grokking_epochs`.
        window: as for `grokking_epochs`.

    >>> grokking_gaps([[0.0, 1.0, 1.0, 1.0]] * 2, [[0.0, 0.0, 0.0, 1.0], [0.0] * 4], window=1)
    array([ 2., inf])
    """
    shapes = np.shape(train), np.shape(test)
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"`train` and `test` must have the same shape, got {shapes[0]} and {shapes[1]}; pass the same runs."
        )
    fitted, generalized = (grokking_epochs(found, threshold, window) for found in (train, test))
    never, unfitted = np.isinf(generalized), np.isinf(fitted)
    return np.where(never, np.inf, np.where(unfitted, np.nan, generalized - np.where(unfitted, 0, fitted)))


def grokking_gap(train: Any, test: Any, threshold: float = THRESHOLD, window: int = WINDOW) -> float:
    """Return by how many epochs the test set follows the training set in one run; see `grokking_gaps`.

    Args:
        train: training accuracy, (E,).
        test: test accuracy, (E,).
        threshold: as for `grokking_epochs`.
        window: as for `grokking_epochs`.

    >>> grokking_gap([0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0], window=2)
    1.0
    """
    if np.ndim(train) != 1:
        raise ValueError(f"`train` must have shape (epochs,), got {np.shape(train)}; use grokking_gaps for many runs.")
    return float(grokking_gaps(np.asarray(train)[None], np.asarray(test)[None], threshold, window)[0])


def _check_window(window: int) -> None:
    if not isinstance(window, int | np.integer) or window < 1:
        raise ValueError(f"`window` must be a whole number of at least 1, got {window!r}; the paper's code uses 20.")
