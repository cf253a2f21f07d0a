"""Forward and loss of harmonic language models and classifiers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from harmax.hf.head import BatchLoss
from harmax.hf.kinds import check_problem
from harmax.hf.labels import check_labels, following, kept_labels
from harmax.hf.model import HarmonicModel


class HarmonicLanguageModel(HarmonicModel):
    """A causal or masked language model whose fused loss is computed by its head."""

    harmonic_shifts: bool
    """Whether each position predicts the next token; else it predicts its own."""

    def __init__(self, config: Any, *inputs: Any, **options: Any) -> None:
        super().__init__(config, *inputs, **options)
        self._adopt_loss()

    def _adopt_loss(self) -> None:
        if self.harmonic_shifts:
            # transformers derives this from the name of the class. The Trainer needs it to count shifted labels.
            self.loss_type = "ForCausalLM"

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Predict, as the model of transformers does; with `labels` also compute the loss.

        The body of the model never sees the labels, because it would compute the loss from inner products of its own.

        Args:
            arguments, options: as in the model of transformers. `labels` are the tokens themselves, which are shifted
                where the model of transformers shifts them. -100 is not predicted. `shift_labels` are labels that are
                shifted already. `num_items_in_batch` divides the summed loss. With `logits_to_keep` only some positions
                get logits and a loss; labels are then those of all positions, or only of these. `skip_logits` returns
                None for the logits, which are larger than all other activations together; None means: skip them while
                training with labels.
        """
        options = self._named(arguments, options)
        self._check_inputs(options)
        items, skip = options.pop("num_items_in_batch", None), options.pop("skip_logits", None)
        as_dict = options.pop("return_dict", None)
        as_dict = self.config.return_dict if as_dict is None else as_dict
        target = self._target(options)
        learns = self.training and target is not None
        if learns and options.get("use_cache") is None and "use_cache" in self.harmonic_parameters:
            options["use_cache"] = False
        if target is None and skip:
            raise ValueError(
                "`skip_logits` must come with `labels`, got none; without them there is nothing else to return."
            )
        fused = learns if skip is None else skip
        question = BatchLoss(target, items) if target is not None and fused else None
        with self.harmonic_head.asked(question):
            outputs = self._plain_forward(options)
        if question is not None:
            loss = outputs.logits.flatten()[0].clone()  # no view, because the Trainer multiplies it in place
            outputs = with_loss(outputs, self._plus_auxiliary(loss, outputs), logits=None)
        elif target is not None:
            loss = loss_of(outputs.logits, target, items)
            outputs = with_loss(outputs, self._plus_auxiliary(loss, outputs), logits=outputs.logits)
        return outputs if as_dict else outputs.to_tuple()

    def _plain_forward(self, options: dict[str, Any]) -> Any:
        """Call the forward of transformers, whose loss is never asked for."""
        return super().forward(**options, return_dict=True)

    def _target(self, options: dict[str, Any]) -> Tensor | None:
        """Take the labels out of the options, and return what each position with logits predicts."""
        labels, target = options.pop("labels", None), options.pop("shift_labels", None)
        if target is None:
            if labels is None:
                return None
            target = following(labels) if self.harmonic_shifts else labels
        check_labels(target, self.harmonic_head.out_features)
        which, places = options.get("logits_to_keep", 0), options.get("input_ids")
        if places is None:
            places = options.get("inputs_embeds")
        whole = places is None or target.shape[1] == places.shape[1]
        return kept_labels(target, which) if whole else target

    def _plus_auxiliary(self, loss: Tensor, outputs: Any) -> Tensor:
        """Add the loss that keeps the experts of a mixture equally busy, as the model itself would with labels."""
        auxiliary = outputs.get("aux_loss")
        if auxiliary is None:
            return loss
        for owner in (self, self.config):
            for name in ("router_aux_loss_coef", "aux_loss_coef"):
                if (weight := getattr(owner, name, None)) is not None:
                    return loss + weight * auxiliary.to(loss.device)
        raise ValueError(
            f"`config` must have router_aux_loss_coef, because {type(self).__name__} returned an auxiliary loss, got "
            "none; set it, or set output_router_logits=False."
        )


class HarmonicClassifier(HarmonicModel):
    """A sequence or image classifier with a harmonic head.

    Its head returns log-probabilities, so the cross-entropy that the model of transformers computes is the harmonic
    loss. Classes are few, so their logits are small.
    """

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Predict, as the model of transformers does; with `labels`, one class index per example, also return the loss.

        Args:
            arguments, options: as in the model of transformers.
        """
        options = self._named(arguments, options)
        check_problem(self.config, options.get("labels"))
        return super().forward(**options)


def with_loss(outputs: Any, loss: Tensor, logits: Tensor | None) -> Any:
    """Return outputs of transformers with a loss, which comes first when they are made a tuple."""
    others = {key: value for key, value in outputs.items() if key not in ("loss", "logits")}
    return type(outputs)(loss=loss, logits=logits, **others)


def loss_of(log_probabilities: Tensor, target: Tensor, items: int | Tensor | None) -> Tensor:
    """Return the mean loss of the labels, or their sum divided by a number of items."""
    flat, target = log_probabilities.flatten(0, -2), target.to(log_probabilities.device).flatten()
    if items is None:
        return nn.functional.nll_loss(flat, target)
    total = nn.functional.nll_loss(flat, target, reduction="sum")
    return total / (items.to(total.device) if isinstance(items, Tensor) else items)
