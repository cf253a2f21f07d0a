"""The head of a small model, by name."""

from typing import Any

from torch import nn

from harmax.functional import unknown
from harmax.heads import HEADS


def make_head(name: str, width: int, vocabulary: int, **options: Any) -> nn.Linear:
    """Build a head of the registry, or say which names are near."""
    if name not in HEADS:
        raise ValueError(unknown("head", name, HEADS))
    return HEADS[name](width, vocabulary, **options)
