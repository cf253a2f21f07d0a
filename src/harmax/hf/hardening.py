"""Hardening in the Trainer of transformers."""

import warnings
from typing import Any

from harmax.errors import needs
from harmax.heads.match import Hardening

with needs("hf"):
    from transformers import TrainerCallback


class HardeningCallback(TrainerCallback):
    """Takes the softening of a model from ``harmonize(model, match=True)`` to 0 while the Trainer trains it.

    To resume, load the model from the checkpoint (`AutoModelForCausalLM.from_pretrained(checkpoint)`), because its head
    has gone some way by then; a model with other settings refuses the checkpoint. An adapter of PEFT does not hold the
    softening: merge it after this training, or harden first and adapt afterwards.

    Args:
        share: of the steps, after which the softening is 0.

    >>> HardeningCallback(share=0.5).share
    0.5
    """

    def __init__(self, share: float = 2 / 3) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"`share` must lie in (0, 1], got {share}; it is a share of the steps.")
        self.share = share
        self._hardening: Hardening | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Find out how many steps are left."""
        left = round(self.share * state.max_steps) - state.global_step
        head = model.harmonic_head
        self._hardening = Hardening(head, max(1, left)) if head.softening else None
        if self._hardening is not None and getattr(model, "peft_config", None):
            warnings.warn(
                "the softening of the head must be saved with the model, got an adapter, which does not hold it; merge "
                "it after this training (merge_and_unload) and save the model, or harden first and adapt afterwards.",
                stacklevel=2,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Go one step further."""
        if self._hardening is not None:
            self._hardening.step()
