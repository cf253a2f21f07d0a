"""The head of a small model, by name."""

import inspect
from typing import Any

from torch import nn

from harmax.errors import unknown
from harmax_lab.losses import LOSSES


def make_head(name: str, width: int, vocabulary: int, **options: Any) -> nn.Module:
    """Build a head of the registry of losses, or say which names are near."""
    if name not in LOSSES:
        raise ValueError(unknown("head", name, LOSSES))
    known = _options(LOSSES[name])
    for option in options:
        if option not in known:
            raise TypeError(unknown(f"option of {name}", option, known))
    return LOSSES[name](width, vocabulary, **options)


def _options(head: type[nn.Module]) -> list[str]:
    """Return the names of what a head can be told, those it hands on to its parents included."""
    names: list[str] = []
    for parent in head.__mro__:
        parameters = inspect.signature(parent).parameters.values()
        names += [given.name for given in parameters if given.kind is given.KEYWORD_ONLY and given.name not in names]
        if not any(given.kind is given.VAR_KEYWORD for given in parameters):
            break
    return names
