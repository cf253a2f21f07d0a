"""Exchange the head of a model of transformers for a harmonic one."""

from __future__ import annotations

import copy
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from harmax.errors import needs
from harmax.functional import check_softening, resolve_exponent
from harmax.heads.match import Match
from harmax.heads.match import match as match_linear
from harmax.heads.scale import check_scale, check_start, length_behind, scale_norm
from harmax.hf.classes import config_class, model_class
from harmax.hf.config import PREFIX
from harmax.hf.kinds import check_config, head_path, kind_of, the_linear
from harmax.hf.model import HarmonicModel
from harmax.hf.probe import Trial, try_model
from harmax.hf.tasks import HarmonicLanguageModel

with needs("hf"):
    from transformers import PreTrainedConfig, PreTrainedModel

Model = TypeVar("Model", bound=PreTrainedModel)


@torch.no_grad()
def harmonize(
    model: Model,
    *,
    exponent: float | None = None,
    softening: float = 0.0,
    scale: float | None = None,
    prior: bool | None = None,
    match: bool = False,
    feature_length: float | None = None,
    start: Literal["factor", "gain"] = "factor",
) -> Model:
    """Change a model of transformers in place so that it predicts by distances to class centers, and return it.

    Its head becomes a harmonic one around the same weight. A head that is tied to the embedding stays tied, and a bias
    becomes the prior. Its class becomes `Harmonic...`, a subclass that computes the loss without logits while
    training, and that is saved and loaded as what it is. A trained model needs further training. With `match` it starts
    from the loss that it has; `HardeningCallback` then leads to a pure harmonic head.

    Args:
        model: a causal or masked language model, or a sequence or image classifier, of transformers.
        exponent: n, the power of the distance; None means the square root of the head's width.
        softening: a, added to the squared distance.
        scale: c, the factor on the features; None means that the norm before the head decides, or the first batch of
            training where there is no norm.
        prior: whether classes have a learned log-weight; None means: where the head has a bias.
        match: whether to keep the loss of a trained model, see `HarmonicHead.from_linear`. `exponent` is then the one
            at the end, and softening, scale and prior follow.
        feature_length: with `match`, the typical length of the head's input; None means that of the norm before it.
        start: where the factor on the features goes. "factor": into the head, as the constant `scale`. "gain": into the
            gain of the norm before the head, which training can change. `scale` is then 1, so a new model that is built
            from the configuration alone starts with features as they are.

    Raises:
        TypeError: if `model` is not a model of transformers.
        ValueError: if the model cannot have a harmonic head. The model is then unchanged.

    >>> from transformers import ViTConfig, ViTForImageClassification
    >>> sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=32)
    >>> harmonize(ViTForImageClassification(ViTConfig(**sizes))).classifier
    TokenHead(in_features=16, out_features=2, exponent=4, softening=0, scale=0.03125, prior=True)
    """
    plain, trial = check_model(model)
    linear = the_linear(model, head_path(model))
    if prior is False and linear.bias is not None:
        raise ValueError(
            f"`prior` must be True or None for a head with a bias, got False in {plain.__name__}; the bias becomes the "
            "prior."
        )
    check_start(start, scale, softening)
    if start == "gain":
        check_gain(trial, linear, match)
    if match:
        if softening or scale is not None or prior is not None:
            raise TypeError("`softening`, `scale` and `prior` follow from match=True; leave them out.")
        found = match_linear(linear, feature_length or length_before(trial, linear), exponent)
        matched: Match | None = found
        settings: dict[str, Any] = dict(
            exponent=found.exponent, softening=found.softening, scale=found.scale, prior=True
        )
    else:
        matched = None
        settings = {
            "exponent": float(resolve_exponent(exponent, linear.in_features)),
            "softening": check_softening(softening),
            "scale": check_scale(scale),
            "prior": prior,
        }
    kind: Any = config_class(type(model.config))
    exchange_config(model, kind, {**kind.as_harmonized, **{PREFIX + key: value for key, value in settings.items()}})
    changed: Any = model
    changed.__class__ = model_class(plain)
    changed.config.architectures = [type(changed).__name__]
    changed._take_head()
    if matched is not None:
        changed.harmonic_head.prior.data.copy_(matched.prior_V)
    if trial is not None:
        changed._match_scale(trial)
        if start == "gain":
            changed._start_with_gain(trial.norm)
    if isinstance(changed, HarmonicLanguageModel):
        changed._adopt_loss()
    return model


def length_before(trial: Trial | None, linear: nn.Linear) -> float:
    """Return the typical length of the input of a head behind a norm."""
    if trial is None or trial.norm is None:
        raise ValueError(
            "`feature_length` must be given with match=True for a head without a norm before it: the root of the mean "
            "squared length of its inputs."
        )
    return length_behind(trial.norm, linear.in_features)


def check_gain(trial: Trial | None, linear: nn.Linear, match: bool) -> None:
    """Refuse a start with a small gain where there is none, before anything is changed."""
    if match:
        raise TypeError("`start` must be left out with match=True, because the match sets the scale.")
    if trial is None or trial.norm is None:
        raise ValueError(
            "`start` gain needs a norm right before the head and weights that are not on the meta device, got a model "
            "without; use `start` factor."
        )
    scale_norm(copy.deepcopy(trial.norm), linear.in_features, 0.5)


def check_model(model: Any) -> tuple[type[PreTrainedModel], Trial | None]:
    """Return the class of a model, and what a trial of it found; refuse one that cannot have a harmonic head."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"`model` must be a model of transformers, got {type(model).__name__}; for another model use "
            "harmax.replace_head."
        )
    if isinstance(model, HarmonicModel):
        raise ValueError(
            f"`model` must not be harmonic already, got {type(model).__name__}; to change its exponent, start again "
            "from the model of transformers."
        )
    plain = type(model)
    check_config(plain, model.config)
    kind_of(plain)
    if "forward" in model.__dict__:
        raise ValueError(
            "`model` must have the forward of its class, got one that was replaced; harmonize it first, and apply "
            "kernels, device maps and trainers afterwards."
        )
    path = head_path(model)
    linear = the_linear(model, path)
    if linear._forward_hooks or linear._forward_pre_hooks or linear._backward_hooks:
        raise ValueError(f"`{path}` must have no hooks, because they would be lost, got some; remove them first.")
    return plain, None if linear.weight.is_meta else try_model(model, path)


def exchange_config(model: PreTrainedModel, kind: type[PreTrainedConfig], settings: dict[str, Any]) -> None:
    """Give a model a configuration of its own, of another class, wherever its modules hold the old one."""
    copies: dict[int, Any] = {}
    config: Any = copy.deepcopy(model.config, copies)
    config.__class__ = kind
    # What it was loaded from has another head. Trainers would take that as a reference, and adapters as their base.
    config.name_or_path = model.name_or_path = ""
    for key, value in settings.items():
        setattr(config, key, value)
    for module in model.modules():
        held = module.__dict__.get("config")
        if id(held) in copies:
            module.config = copies[id(held)]
