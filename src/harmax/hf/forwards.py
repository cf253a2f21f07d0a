"""What happens when somebody replaces the forward of a harmonic model, as trainers do.

Wrappers, such as those of accelerate, call the forward that they replace, and stay. A replacement that multiplies by
the weight of the head itself would train inner products without a word, so it is served in another way or stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harmax.hf.model import HarmonicModel


def checked_forward(model: HarmonicModel, forward: Any) -> None:
    """Set the forward of a model to another one that is sure to ask the harmonic head."""
    model.__dict__["forward"] = forward
