"""What all harmonic models of transformers share: the head, how it is saved, loaded and resized."""

from __future__ import annotations

import inspect
import logging
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harmax.errors import needs
from harmax.heads.harmonic import HarmonicHead
from harmax.heads.learnable import LearnedExponent
from harmax.heads.scale import length, length_behind, matched_scale
from harmax.heads.settings import KEY, Settings, differences
from harmax.hf.card import is_automatic, model_card
from harmax.hf.forwards import set_forward
from harmax.hf.head import BatchLoss, TokenHead
from harmax.hf.kinds import check_config, check_problem, head_path, the_linear
from harmax.hf.labels import check_labels, following, kept_labels
from harmax.hf.probe import Trial, try_model

with needs("hf"):
    from transformers import initialization as init
    from transformers.integrations.fsdp import is_fsdp_enabled
    from transformers.modeling_utils import is_local_dist_rank_0

logger = logging.getLogger(__name__)

Base: Any = object  # the models of transformers, into one of which it is mixed


class HarmonicModel(Base):
    """A model of transformers whose head is harmonic.

    The methods are the places where transformers lets a model class step in.
    """

    harmonic_head_path: str
    all_tied_weights_keys: Any
    _tied_weights_keys: Any
    harmonic_parameters: tuple[str, ...]
    """Names of the arguments of `forward`."""
    _keys_to_ignore_on_load_missing: Any = (rf"(^|\.){KEY}$",)  # of models that were saved before heads had settings

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        plain: Any = next((base for base in cls.__mro__ if base.__module__.startswith("transformers.")), None)
        if plain is not None and not hasattr(cls, "harmonic_parameters"):
            # The Trainer reads the names of the columns that a model takes from its signature.
            signature = inspect.signature(plain.forward)
            cls.harmonic_parameters = tuple(signature.parameters)[1:]
            cls.forward = with_signature(cls.forward, signature)

    def __init__(self, config: Any, *inputs: Any, **options: Any) -> None:
        check_config(type(self), config)
        super().__init__(config, *inputs, **options)
        self._take_head()
        self._try()

    @property
    def harmonic_head(self) -> TokenHead:
        """The head."""
        head: Any = self.get_submodule(self.harmonic_head_path)
        return head

    def _take_head(self) -> None:
        """Replace the Linear at the end by a head with the settings of the configuration, and write these back."""
        self.harmonic_head_path = path = head_path(self)
        linear, config = the_linear(self, path), self.config
        prior = linear.bias is not None if config.harmonic_prior is None else config.harmonic_prior
        options: dict[str, Any] = dict(softening=config.harmonic_softening, scale=config.harmonic_scale, prior=prior)
        head = TokenHead.from_linear(linear, config.harmonic_exponent, **options)
        parent, _, name = path.rpartition(".")
        setattr(self.get_submodule(parent), name, head)
        self._adopt_head()

    def _adopt_head(self) -> None:
        """Make the model's own tables agree with its head."""
        path = self.harmonic_head_path
        self._tied_weights_keys = with_prior(self._tied_weights_keys, path)
        self.all_tied_weights_keys = with_prior(self.all_tied_weights_keys, path)
        # Tensor parallelism would give each rank some classes, but each must normalize over all of them.
        for plan in (self._tp_plan, self._pp_plan):
            plan.pop(path, None)
        self._write_config()

    def _write_config(self) -> None:
        """Copy the settings of the head, which training may have changed, into the configuration."""
        config, head = self.config, self.harmonic_head
        if not isinstance(head, LearnedExponent):
            config.harmonic_exponent = float(head.exponent)
        config.harmonic_softening, config.harmonic_prior = head.softening, head.prior is not None
        config.harmonic_scale = head.scale

    def _try(self) -> None:
        """Run the new model on a few tokens, to see that its head stands at the end, and behind which norm."""
        if not self.harmonic_head.weight.is_meta:
            self._match_scale(try_model(self, self.harmonic_head_path))

    def _match_scale(self, trial: Trial) -> None:
        """Give the head the scale that suits its initial weights, where a norm gives all features one length."""
        head, norm = self.harmonic_head, trial.norm
        if head.wants_scale and norm is not None:
            lengths = length_behind(norm, head.in_features), length(head.token_weight)
            if all(0 < one < math.inf for one in lengths):
                exponent = head.exponent.detach() if isinstance(head.exponent, Tensor) else head.exponent
                head.scale = matched_scale(float(exponent), head.in_features, *lengths)
                head.write_settings()
        self._write_config()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, HarmonicHead):
            super()._init_weights(module)
            return
        super()._init_weights(as_linear(module))
        loaded = getattr(module.settings, "_is_hf_initialized", False)  # then the buffer holds what a file says
        if isinstance(module, LearnedExponent):
            init.constant_(module.log_exponent, math.log(module._start))
            loaded = loaded and not (has_read_file() and Settings.decode(module.settings).exponent == module._start)
        if not loaded:
            module.write_settings()

    @classmethod
    def is_custom_code(cls) -> bool:
        """Return False: as in models of transformers, initial weights never replace those of a file."""
        return False

    @classmethod
    def from_pretrained(cls, *arguments: Any, output_loading_info: bool = False, **options: Any) -> Any:
        """Load a model, as in transformers; refuse weights whose head had other settings than the configuration."""
        model, info = super().from_pretrained(*arguments, output_loading_info=True, **options)
        model._check_loaded(info)
        return (model, info) if output_loading_info else model

    def _check_loaded(self, info: dict[str, Any]) -> None:
        path, head = self.harmonic_head_path, self.harmonic_head
        if f"{path}.weight" in info["missing_keys"]:  # a new head on the body of another model
            head.scale = None
            self._try()
        elif not head.settings.is_meta and has_read_file():
            saved = Settings.decode(head.settings)
            if other := differences(saved, head._current_settings()):
                raise ValueError(
                    f"config.json and the weights must have the same settings of the head, got {head.extra_repr()} in "
                    f"config.json and {', '.join(other)} with the weights; correct config.json, or copy both files "
                    "from one model."
                )
            if head.scale is None and not math.isnan(saved.scale):
                head.scale = saved.scale
        head.write_settings()
        self._write_config()

    def save_pretrained(self, save_directory: Any, *arguments: Any, **options: Any) -> None:
        """Save the model, as in transformers, with a model card."""
        self._write_config()
        super().save_pretrained(save_directory, *arguments, **options)
        card = Path(save_directory) / "README.md"
        if options.get("is_main_process", True) and not card.exists():
            card.write_text(model_card(self), encoding="utf-8")

    def _upload_modified_files(self, working_dir: Any, *arguments: Any, **options: Any) -> Any:
        card = Path(working_dir) / "README.md"
        if not card.exists() or is_automatic(card.read_text(encoding="utf-8")):
            card.write_text(model_card(self), encoding="utf-8")
        return super()._upload_modified_files(working_dir, *arguments, **options)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head by another harmonic one."""
        if not isinstance(new_embeddings, TokenHead):
            raise TypeError(
                f"`new_embeddings` must be a harmonic head, got {type(new_embeddings).__name__}, which computes inner "
                "products; build one with TokenHead.from_linear."
            )
        parent, _, name = self.harmonic_head_path.rpartition(".")
        setattr(self.get_submodule(parent), name, new_embeddings)
        source = (self._tied_weights_keys or {}).get(f"{self.harmonic_head_path}.prior")
        if source is not None:  # BERT keeps its bias beside the head, too
            owner, _, name = source.rpartition(".")
            setattr(self.get_submodule(owner), name, new_embeddings.prior)

    def _get_resized_lm_head(self, old_lm_head: Any, *arguments: Any, **options: Any) -> Any:
        # transformers resizes a Linear only. Its rows and its bias become those of the head.
        linear = super()._get_resized_lm_head(as_linear(old_lm_head), *arguments, **options)
        rows = len(linear.weight)
        old_lm_head.weight.data = linear.weight.data
        if (prior := old_lm_head.prior) is not None:
            mean = prior.data[: old_lm_head.out_features].mean()
            more = mean.expand(max(0, rows - len(linear.bias)))  # of a tied head transformers leaves the bias as it is
            prior.data = torch.cat([linear.bias.data[:rows], more])
        old_lm_head.out_features = rows
        return old_lm_head

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            set_forward(self, value)
        else:
            super().__setattr__(name, value)

    def _named(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call of `forward` by name."""
        return {**dict(zip(self.harmonic_parameters, arguments, strict=False)), **options}

    def _check_inputs(self, options: dict[str, Any]) -> None:
        """Refuse inputs that a model would take without an error."""


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
            arguments, options: as in the model of transformers. `labels` are the tokens themselves, and -100 is not
                predicted. `shift_labels` are labels that are shifted already. `num_items_in_batch` divides the summed
                loss. With `logits_to_keep` only some positions get logits and a loss; labels are then those of all
                positions, or only of these. `skip_logits` returns None for the logits, which are larger than all other
                activations together; None means: skip them while training with labels.
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
            outputs = with_loss(outputs, self._plus_auxiliary(outputs.logits.flatten()[0], outputs), logits=None)
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


def has_read_file() -> bool:
    """Return whether this process reads weights by itself; with FSDP they may come from another one."""
    return not is_fsdp_enabled() or is_local_dist_rank_0()


def with_signature(forward: Any, signature: inspect.Signature) -> Any:
    """Return a forward that shows the signature of another one."""

    def shown(self: Any, *arguments: Any, **options: Any) -> Any:
        return forward(self, *arguments, **options)

    shown.__signature__ = signature  # type: ignore[attr-defined]
    shown.__name__, shown.__doc__, shown.__module__ = "forward", forward.__doc__, forward.__module__
    return shown


def as_linear(head: TokenHead | HarmonicHead) -> nn.Linear:
    """Return a Linear around the parameters of a head, for code of transformers that knows nothing else."""
    linear = nn.Linear(head.in_features, len(head.weight), bias=head.prior is not None, device="meta")
    linear.weight = head.weight
    if head.prior is not None:
        linear.bias = head.prior
    return linear


def with_prior(tied: dict[str, str] | None, path: str) -> dict[str, str]:
    """Return which parameters are tied, with the bias of the head under its new name."""
    old, new = f"{path}.bias", f"{path}.prior"
    return {(new if key == old else key): (new if value == old else value) for key, value in (tied or {}).items()}


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
