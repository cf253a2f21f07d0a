"""Arguments of the classifier: what they may be."""

import math
import numbers
from typing import TYPE_CHECKING, Any

from harmax.errors import whole_number
from harmax.sklearn.training import MINI_BATCH, MINI_BATCH_ABOVE, Fitting

if TYPE_CHECKING:
    from harmax.sklearn.classifier import HarmonicClassifier


def check_settings(model: "HarmonicClassifier") -> None:
    """Refuse arguments that cannot work, when `fit` begins, as scikit-learn wants it."""
    for name in ("exponent", "temperature"):
        value = getattr(model, name)
        if not (isinstance(value, str) and value == "auto"):
            _positive(name, value, 'or "auto"')
    if not _is_number(model.pull) or not 0 <= model.pull < math.inf:
        raise ValueError(f"`pull` must be a finite number of at least 0, got {model.pull!r}; 0.1 is the default.")
    whole_number("folds", model.folds, least=2)
    whole_number("max_iter", model.max_iter, least=1)
    if model.hidden is not None:
        whole_number("hidden", model.hidden, least=1)
    if model.batch_size is not None and model.batch_size != "auto":
        whole_number("batch_size", model.batch_size, least=1)
    if model.features is not None and not callable(model.features):
        raise TypeError(
            f"`features` must be a module or a function, got {type(model.features).__name__}; for "
            "sentence-transformers pass model.encode."
        )


def fitting_of(model: "HarmonicClassifier", classes: int, rows: int, seed: int) -> Fitting:
    """Return how to fit, with "auto" replaced."""
    batch: Any = model.batch_size
    if batch == "auto":
        batch = MINI_BATCH if rows > MINI_BATCH_ABOVE else None
    return Fitting(classes, float(model.pull), model.hidden, batch, model.max_iter, seed)


def _positive(name: str, value: Any, other: str) -> None:
    if not _is_number(value) or not 0 < value < math.inf:
        raise ValueError(f'`{name}` must be a positive number {other}, got {value!r}; try {name}="auto".')


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
