"""The model card of a harmonic model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harmax.hf.model import HarmonicModel

AUTOMATIC = "This model card has been automatically generated"
"""What transformers writes into a card about which it knows nothing."""


def is_automatic(card: str) -> bool:
    """Return whether a card says nothing about the model."""
    return AUTOMATIC in card


def model_card(model: HarmonicModel) -> str:
    """Return the card: what the model is, and how it is loaded."""
    return f"# {type(model).__name__}\n"
