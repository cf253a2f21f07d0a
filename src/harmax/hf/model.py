"""What all harmonic models of transformers share: the head, how it is saved, loaded and resized."""

from __future__ import annotations

import inspect
import logging
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harmax.errors import DamagedError, needs
from harmax.heads.harmonic import HarmonicHead
from harmax.heads.learnable import LearnedExponent
from harmax.heads.scale import length, length_behind, matched_scale, scale_norm
from harmax.heads.settings import KEY, Settings, differences
from harmax.hf.card import is_automatic, model_card
from harmax.hf.forwards import set_forward
from harmax.hf.head import TokenHead
from harmax.hf.kinds import check_config, head_path, the_linear
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
            named = [name for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD]
            cls.harmonic_parameters = tuple(named[1:])
            cls.forward = with_signature(cls.forward, signature)

    def __init__(self, config: Any, *inputs: Any, **options: Any) -> None:
        check_config(type(self), config)
        super().__init__(config, *inputs, **options)
        self._take_head()
        self._try()

    @property
    def harmonic_head(self) -> TokenHead:
        """The head, also where PEFT has put a layer of its own around it."""
        return within(self.get_submodule(self.harmonic_head_path))

    def _take_head(self) -> None:
        """Replace the Linear at the end by a head with the settings of the configuration, and write these back."""
        self.harmonic_head_path = path = head_path(self)
        linear, config = the_linear(self, path), self.config
        prior = linear.bias is not None if config.harmonic_prior is None else config.harmonic_prior
        if not prior and f"{path}.bias" not in (self._tied_weights_keys or {}):
            linear.register_parameter("bias", None)  # of a class that always builds one
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

    def _start_with_gain(self, norm: nn.Module | None) -> None:
        """Put the factor on the features into the gain of the norm before the head, which training can change."""
        head = self.harmonic_head
        if head.scale is None or norm is None:
            raise ValueError(
                "`start` gain needs centers with a length and a norm before the head, got a model without one of them; "
                "use `start` factor."
            )
        scale_norm(norm, head.in_features, head.scale)
        head.scale = 1.0
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
        from safetensors import SafetensorError

        try:
            model, info = super().from_pretrained(*arguments, output_loading_info=True, **options)
        except SafetensorError as error:
            place = str(arguments[0] if arguments else options.get("pretrained_model_name_or_path"))
            raise DamagedError(
                f"the weights of {place!r} cannot be read ({error}); fetch or save them again."
            ) from error
        model._check_loaded(info)
        return (model, info) if output_loading_info else model

    def _check_loaded(self, info: dict[str, Any]) -> None:
        weight, head = f"{self.harmonic_head_path}.weight", self.harmonic_head
        other_size = [key for key, *_ in info["mismatched_keys"]]
        if weight in info["missing_keys"] or weight in other_size:  # a new head on the body of another model
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
            if head.wants_scale:  # the weights of a plain model
                self._try()
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
        named = dict(zip(self.harmonic_parameters, arguments, strict=False))
        if len(named) < len(arguments) or any(name in options for name in named):
            raise TypeError(
                f"the forward of {type(self).__name__} must get each of its {len(self.harmonic_parameters)} arguments "
                f"at most once, got {len(arguments)} by position and {', '.join(options) or 'none'} by name; pass all "
                "of them by name."
            )
        return {**named, **options}

    def _check_inputs(self, options: dict[str, Any]) -> None:
        """Refuse inputs that a model would take without an error."""


def within(module: Any) -> TokenHead:
    """Return the head that computes when a module is called: the module itself, or one inside a layer of PEFT."""
    if hasattr(module, "get_base_layer"):  # an adapter changes its centers
        return module.get_base_layer()
    if hasattr(module, "original_module"):  # `modules_to_save` trains a copy of it
        active = [] if module.disable_adapters else module.active_adapters
        return module.modules_to_save[active[0]] if active else module.original_module
    return module


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
