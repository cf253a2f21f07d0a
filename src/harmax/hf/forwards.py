"""What happens when somebody replaces the forward of a harmonic model, as trainers do.

Wrappers, such as those of accelerate, call the forward that they replace, and stay. A replacement that multiplies by
the weight of the head itself would train inner products without a word. That of Liger is dropped, because the model's
own forward needs no logits either. That of TRL is served by the harmonic head. Any other one is watched: it must ask
the head.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import torch

from harmax.hf.trl import FusedHead

if TYPE_CHECKING:
    from harmax.hf.model import HarmonicModel

logger = logging.getLogger(__name__)


def set_forward(model: HarmonicModel, forward: Any) -> None:
    """Set the forward of a model to another one that is sure to ask the harmonic head."""
    original = getattr(forward, "_torchdynamo_orig_callable", forward)  # torch.compile(model.forward) keeps it here
    function = getattr(original, "__func__", original)
    owner = getattr(function, "__globals__", {}).get("__name__", "")  # functools.wraps copies __module__, but not this
    if function is type(model).forward:
        model.__dict__.pop("forward", None)
        if original is not forward:
            model.__dict__["forward"] = forward
    elif owner.startswith("liger_kernel."):
        logger.warning("The fused cross-entropy of Liger is left out: %s has its own fused loss.", type(model).__name__)
    elif owner.startswith("trl.") and FusedHead.is_served(function):
        model.__dict__["forward"] = FusedHead(model, model.__dict__.get("forward"), function)
    else:
        model.__dict__["forward"] = Watched(model, forward)


class Watched:
    """A forward that must ask the head of its model, at least when it is first called in training or with labels."""

    def __init__(self, model: HarmonicModel, forward: Any) -> None:
        functools.update_wrapper(self, forward)
        self.model, self.forward, self.seen = model, forward, set[tuple[bool, bool]]()

    @property
    def __func__(self) -> Any:
        """The function of a bound method, which accelerate takes to wrap it once more."""
        return self.forward.__func__

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the forward, and stop if it did not ask the head."""
        kind = self.model.training, options.get("labels") is not None
        if kind in self.seen or torch.compiler.is_compiling():
            return self.forward(*arguments, **options)
        asked: list[None] = []
        hook = self.model.harmonic_head.register_forward_hook(lambda *_: asked.append(None))
        try:
            outputs = self.forward(*arguments, **options)
        finally:
            hook.remove()
        if not asked:
            name = getattr(self.forward, "__qualname__", type(self.forward).__qualname__)
            raise RuntimeError(
                f"the forward of {type(self.model).__name__} must ask its harmonic head, got {name}, which somebody "
                "set in its place and which computes something else, such as inner products with the weight; delete "
                "it with `del model.forward`, or turn off what set it."
            )
        self.seen.add(kind)
        return outputs
