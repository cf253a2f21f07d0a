"""The fused head of TRL for harmonic models: log-probabilities, entropies and more of each token, without logits.

TRL's trainers replace the forward of a model by one that multiplies hidden states with the weight of the head, and call
it with ``fused_lm_head=True``. Here the harmonic head answers such calls.

Shape suffixes: B sequences, T positions, V tokens. Leading dimensions are free.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from harmax.functional import harmonic_log_probabilities
from harmax.hf.head import IGNORED, TokenHead
from harmax.hf.labels import check_labels, following
from harmax.kernels.eager import entropy

if TYPE_CHECKING:
    from harmax.hf.model import HarmonicModel

BLOCK = 2**22
"""At most this many log-probabilities are in memory at once for entropies."""
FROM_ALL = ("entropy", "log_sum_sq_probs", "mean_logits")
"""Statistics that need the probabilities of all tokens."""
FIELDS = ("log_probs", "is_top1", *FROM_ALL)
"""All statistics, in the order of the last dimension of an answer."""


class TokenStatistics(NamedTuple):
    """A question: what are the log-probability and other statistics of each token? The answer is (..., 5)."""

    target: Tensor
    temperature: float
    wanted: tuple[str, ...]

    def answer(self, head: TokenHead, input: Tensor) -> Tensor:
        """Return the statistics in the order of `FIELDS`; those that are not wanted are 0."""
        target = self.target.to(input.device)
        stats = head.token_losses(input, target, self.temperature)
        zero = torch.zeros_like(stats.loss)
        columns = {"log_probs": -stats.loss, "is_top1": stats.hit.to(stats.loss.dtype)}
        if set(self.wanted) & set(FROM_ALL):
            places = target != IGNORED
            rows = self._from_all(head, input[places])
            columns |= {
                name: zero.masked_scatter(places, row) for name, row in zip(FROM_ALL, rows.unbind(-1), strict=True)
            }
        return torch.stack([columns.get(name, zero) for name in FIELDS], -1)

    def _from_all(self, head: TokenHead, x_BD: Tensor) -> Tensor:
        """Return `FROM_ALL` of each row, (B, 3), from one block of rows at a time."""
        x_BD, w_VD, kernel = head.at_temperature(x_BD, self.temperature)
        # The blocks are computed again for the gradient. By then an adapter has given the head its own centers back.
        block = functools.partial(from_all, w_VD=w_VD, **kernel)
        size = max(1, BLOCK // head.out_features)
        return torch.cat([checkpoint(block, x, use_reentrant=False) for x in x_BD.split(size)])


def from_all(x_BD: Tensor, w_VD: Tensor, **kernel: Any) -> Tensor:
    """Return `FROM_ALL` of each row, (B, 3)."""
    log_p_BV = harmonic_log_probabilities(x_BD, w_VD, **kernel)
    entropy_B = entropy(log_p_BV)
    with torch.no_grad():
        others = (2 * log_p_BV).logsumexp(-1), log_p_BV.mean(-1)
    return torch.stack([entropy_B, *others], -1)


class FusedHead:
    """The forward of a harmonic model that TRL trains.

    Args:
        model: the model.
        forward: what stood in the place of its forward before; None means that of its class.
        function: the forward that TRL would set; it knows the settings.
    """

    def __init__(self, model: HarmonicModel, forward: Any, function: Any) -> None:
        known = inspect.getclosurevars(function).nonlocals
        self.model, self.forward = model, forward
        self.temperature, self.wanted = float(known["temperature"]), tuple(known["outputs"])
        self.Output = function.__globals__["FusedCausalLMOutput"]
        self.__signature__ = inspect.signature(type(model).forward)

    @staticmethod
    def is_served(function: Any) -> bool:
        """Return whether a function is what `add_fused_lm_head` sets; refuse one of another version of TRL."""
        if function.__code__.co_name != "_fused_forward":
            return False
        known = inspect.getclosurevars(function).nonlocals
        if {"temperature", "outputs"} <= known.keys() and "FusedCausalLMOutput" in function.__globals__:
            return True
        raise RuntimeError(
            "the fused head of TRL must be that of a version which harmax knows (1.16), got another one; install that "
            "version, or train with the Trainer of transformers."
        )

    def __call__(self, *arguments: Any, fused_lm_head: bool = False, **options: Any) -> Any:
        """Return statistics of each token with `fused_lm_head`, else what the model returns."""
        if not fused_lm_head:
            if self.forward is None:
                return type(self.model).forward(self.model, *arguments, **options)
            return self.forward(*arguments, **options)
        options = self.model._named(arguments, options)
        labels, target = options.pop("labels", None), options.pop("shift_labels", None)
        items, whole = options.pop("num_items_in_batch", None), target is not None
        if target is None:
            target = following(labels)
        check_labels(target, self.model.harmonic_head.out_features)
        options.pop("return_dict", None)
        options["use_cache"] = False
        with self.model.harmonic_head.asked(TokenStatistics(target, self.temperature, self.wanted)):
            outputs = self.model._plain_forward(options)
        return self._as_trl_does(outputs, target, items, whole)

    def _as_trl_does(self, outputs: Any, target_BT: Tensor, items: Any, whole: bool) -> Any:
        stats = dict(zip(FIELDS, outputs.logits.unbind(-1), strict=True))
        if not whole:  # the last position has no following token
            target_BT, stats = target_BT[:, :-1], {name: value[:, :-1] for name, value in stats.items()}
        mask = (target_BT != IGNORED).to(stats["log_probs"].device)
        loss = -stats["log_probs"].sum() / (mask.sum().clamp(min=1) if items is None else items)
        stats["is_top1"] = stats["is_top1"].bool()
        wanted = {"log_probs": stats["log_probs"], **{name: stats[name] for name in self.wanted}}
        loss = self.model._plus_auxiliary(loss, outputs)
        return self.Output(loss=loss, label_mask=mask, aux_loss=outputs.get("aux_loss"), **wanted)
