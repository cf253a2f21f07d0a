"""The harmonic head: a layer whose rows are class centers."""

# B rows, D features, V classes

import math
from collections.abc import Mapping
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from harmax.functional import (
    TargetSettings,
    harmonic_entropy,
    harmonic_log_probabilities,
    harmonic_loss,
    squared_distance,
)
from harmax.heads.centers import CenterHead, CenterOptions, numbers_of, safe_sqrt
from harmax.heads.describe import HeadDescription, describe
from harmax.heads.scale import check_scale, length, matched_scale, warn_not_found
from harmax.heads.settings import KEY, Settings, Watch, differences
from harmax.kernels.operators import is_exporting, is_traced, is_wrapped
from harmax.sharding import local_part, whole


class HeadOptions(CenterOptions, total=False):
    """Keyword arguments of `HarmonicHead`, for heads that pass them on."""

    scale: float | None
    prior: bool


class ForwardSettings(TargetSettings, total=False):
    """Keyword arguments of a head's forward with a target, as in `harmonic_loss`."""

    return_stats: bool


# torch.compiler.disable would import the compiler, some seconds, as soon as harmax is imported.
without_dynamo = torch._disable_dynamo

UNKNOWN_SCALE = (
    "a HarmonicHead must know its scale before it is compiled as one graph or exported for training; train one batch "
    "before, call head.find_scale(features), or build it with scale=1."
)


def _as_leaf(head: nn.Module, input: Proxy, *arguments: Any, **settings: Any) -> Any:
    """Write the call of a head into the graph that torch.fx makes, as for a layer of torch."""
    path = input.tracer.path_of_module(head)  # type: ignore[attr-defined]  # of tracers of modules, and no others call
    if head._forward_hooks or head._forward_pre_hooks:  # they have seen the proxy, and would act again
        raise ValueError(f"`{path}` must have no hooks while torch.fx traces, got some; remove them first.")
    return input.tracer.create_proxy("call_module", path, (input, *arguments), settings)


def _plain(exponent: float | Tensor) -> float:
    return float(exponent.detach()) if isinstance(exponent, Tensor) else float(exponent)


def as_autocast_multiplies(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return features and centers in the dtype in which autocast would multiply them, as for a Linear layer.

    The norm before a head returns float32, and float32 products would cost several times the whole model.
    """
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return x, w
    dtype = torch.get_autocast_dtype(kind)
    return x.to(dtype), w.to(dtype)


class HarmonicHead(CenterHead):
    r"""A head of class centers. `forward` returns log-probabilities that fall with a power of the distance.

    .. math:: z_j = b_j - \tfrac{n}{2} \log(\|c\,x - w_j\|^2 + a), \qquad \log p_j = z_j - \log \sum_k e^{z_k}

    With the defaults a = 0 and b = 0 this is p_j ~ d_j^-n, where d_j is the distance to center j. Given a target too,
    `forward` returns the loss, and never stores a (tokens, classes) matrix.

    It is no `nn.Linear` and has no `bias`, so that no tool takes it for an inner product. The weight has the shape and
    the state_dict key of a Linear's: the checkpoint of a Linear without bias loads, and the weight can be shared with
    an `nn.Embedding`. Exponent, softening and scale are saved with the weight, as the buffer `settings`. A state_dict
    with another exponent does not load. Under autocast features and centers are rounded to its dtype, as in a Linear;
    the distances of the rounded vectors are exact.

    **The scale.** Only the ratio of the lengths of features and centers matters to the loss. By default the head finds
    a factor c on its features from its first batch of training, such that training starts well; see `find_scale`. In
    units of the features the centers are then w / c, which is what `centers` returns.

    The initialization is that of `nn.Linear`, U(-1/sqrt(D), 1/sqrt(D)), as in the paper's classifiers. A head on
    trained features starts better from `init_from_class_means`.

    Args:
        in_features: D.
        out_features: V, the number of classes.
        exponent: n, the power of the distance; None means sqrt(D). `repr` shows the number.
        softening: a, added to the squared distance.
        scale: c, the factor on the features; None means that the first batch of training decides, or 1 if there is a
            softening. 1 turns it off.
        prior: whether classes have a learned log-weight b, (V,), as the parameter `prior`. It starts at 0.

    Shape: (..., D) to (..., V). Log-probabilities are float32 for half-precision inputs.

    >>> HarmonicHead(16, 3)
    HarmonicHead(in_features=16, out_features=3, exponent=4, softening=0)
    """

    prior: nn.Parameter | None
    settings: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        scale: float | None = None,
        prior: bool = False,
        **options: Unpack[CenterOptions],
    ) -> None:
        super().__init__(in_features, out_features, **options)
        self.scale = self._scale_at_start = check_scale(scale)
        log_weight_V = nn.Parameter(torch.empty_like(self.weight[:, 0])) if prior else None
        self.register_parameter("prior", log_weight_V)
        self.register_buffer(KEY, self._current_settings().encode().to(self.weight.device))
        self._watch = Watch()
        self.reset_extras()

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        exponent: float | None = None,
        *,
        match: bool = False,
        feature_length: float | None = None,
        **options: Any,
    ) -> Self:
        """Return a head that shares the weight of a Linear; its bias, if it has one, becomes the prior.

        Without `match` the head predicts by distances what the Linear predicted by inner products, so its loss is
        another one. With `match` it has nearly the logits of the Linear: a large exponent and softening make it almost
        linear, and a prior takes up the lengths of the rows. `Hardening` then leads to a pure harmonic head.

        Args:
            linear: the layer whose rows become centers.
            exponent: as for the head; None means its default. With `match` the exponent that `Hardening` ends with.
            match: whether to keep the loss of a trained Linear.
            feature_length: with `match`, the typical length of the layer's inputs: the root of their mean square.
            options: further arguments of the head.

        >>> head = HarmonicHead.from_linear(nn.Linear(8, 3), match=True, feature_length=2.0)
        >>> head.softening > 0
        True
        """
        if match:
            return cls._from_match(linear, exponent, feature_length, **options)
        if feature_length is not None:
            raise TypeError("`feature_length` must go with match=True, got it alone; leave it out.")
        if linear.bias is not None and not options.setdefault("prior", True):
            raise ValueError(
                "`prior` must be True for a Linear with a bias, got False; leave it out, or drop the bias first "
                "(linear.bias = None)."
            )
        head = cls._on_weight_of(linear, exponent, **options)
        if linear.bias is not None:
            head.prior = linear.bias
        return head

    @classmethod
    def _from_match(
        cls, linear: nn.Linear, exponent: float | None, feature_length: float | None, **options: Any
    ) -> Self:
        from harmax.heads.match import match  # it builds on this file

        if set(options) & {"softening", "scale", "prior"}:
            raise TypeError("`softening`, `scale` and `prior` follow from match=True; leave them out.")
        if feature_length is None:
            raise TypeError(
                "`feature_length` must be given with match=True: the typical length of the layer's inputs, "
                "features.square().sum(-1).mean().sqrt()."
            )
        found = match(linear, feature_length, exponent)
        settings: Any = {"softening": found.softening, "scale": found.scale, "prior": True}
        head = cls._on_weight_of(linear, found.exponent, **settings, **options)
        assert head.prior is not None
        head.prior.data.copy_(found.prior_V)
        return head

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Tensor], prefix: str = "") -> Self:
        """Build the head that a state_dict was saved from, with its settings, and load it.

        Args:
            state_dict: of a head, or of a model that has one.
            prefix: of the head's keys, such as "lm_head.".

        >>> head = HarmonicHead.from_state_dict(HarmonicHead(16, 3, exponent=56).state_dict())
        >>> head.exponent
        56.0
        """
        own = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
        if not {"weight", KEY} <= own.keys():
            raise ValueError(
                f"`state_dict` must have {prefix}weight and {prefix}{KEY}, got {sorted(own)[:6]}; give the `prefix` of "
                "the head's keys, or build the head and load the weights of a Linear into it."
            )
        saved, weight = Settings.decode(own[KEY]), own["weight"]
        head = cls(
            weight.shape[1],
            len(weight),
            exponent=None if math.isnan(saved.exponent) else saved.exponent,
            softening=saved.softening,
            scale=saved.known_scale,
            prior="prior" in own,
            device=weight.device,
            dtype=weight.dtype,
        )
        head.load_state_dict(own)
        return head

    def reset_extras(self) -> None:
        """Forget the scale, and give every class the same prior."""
        self.scale = self._scale_at_start
        if self.prior is not None:
            nn.init.zeros_(self.prior)
        self.write_settings()

    def init_from_class_means(self, features: Tensor, target: Tensor) -> None:
        """Move each center to the mean of its class; a class without features keeps its center.

        Features and centers then have one scale, so a scale that was not found yet becomes 1.

        Args:
            features: inputs of the head, (..., D).
            target: class indices, (...), int64.
        """
        if self.scale is None:
            self.scale = 1.0
            self.write_settings()
        super().init_from_class_means(features * self.scale, target)

    @without_dynamo
    def find_scale(self, features: Tensor) -> float:
        r"""Set the factor on the features from a batch of them, and return it.

        The first batch of training calls it, unless the scale is known. The factor gives random centers logits with a
        standard deviation of 1, or as near to it as the exponent allows. It is a power of two. In a distributed run
        all ranks get the same factor, so all of them must call it.

        Args:
            features: inputs of the head, (..., D).

        >>> head = HarmonicHead(400, 10)
        >>> head.find_scale(20 * torch.nn.functional.normalize(torch.randn(100, 400), dim=1))
        0.03125
        """
        lengths = self._lengths(features)
        if not all(0 < one < math.inf for one in lengths):
            raise ValueError(
                f"features and centers must have finite lengths above 0 to find their scale, got {lengths[0]:g} and "
                f"{lengths[1]:g}; look for a NaN or for layers that start at 0, or build the head with scale=1."
            )
        self.scale = matched_scale(_plain(self.exponent), self.in_features, *lengths)
        self.write_settings()  # at once, because averages of models copy buffers
        return self.scale

    def describe(self, features: Tensor) -> HeadDescription:
        """Return what a batch of features looks like to this head, and what to change before training.

        It has the lengths of features and centers and their ratio, the entropy of the probabilities, and an estimate of
        the features' intrinsic dimension with the exponent that the paper's rule gives for it. `print` it.

        Args:
            features: inputs of the head, (..., D).

        >>> description = HarmonicHead(400, 10, scale=1.0).describe(20 * torch.ones(5, 400))
        >>> description.suggestions[0].startswith("features are")
        True
        """
        return describe(self, features)

    def _lengths(self, features: Tensor) -> tuple[float, float]:
        return length(features, over_ranks=True), length(self._classes(features)[0])

    @property
    def wants_scale(self) -> bool:
        """Whether the scale is still to be found. With a softening it matters, so features then stay as they are."""
        return self.scale is None and self.softening == 0

    @property
    def centers(self) -> Tensor:
        """The class centers in units of the features, (V, D), without gradient."""
        return numbers_of(self.weight).detach() / (self.scale or 1.0)

    def forward(self, input: Tensor, target: Tensor | None = None, **settings: Unpack[ForwardSettings]) -> Tensor:
        """Return log-probabilities, (..., V); with a target the loss, as `harmonic_loss` computes it.

        Args:
            input: features, (..., D).
            target: class indices (...), int64, or class probabilities (..., V).
            settings: with a target, keyword arguments of `harmonic_loss`: weight, reduction, ignore_index,
                label_smoothing, impl, options, return_stats.
        """
        if isinstance(input, Proxy):
            return _as_leaf(self, input, *(() if target is None else (target,)), **settings)
        if not torch.compiler.is_compiling():
            self._follow_settings()
        if self.wants_scale and self.training:
            if is_exporting():
                raise ValueError(UNKNOWN_SCALE)
            if torch.compiler.is_compiling():
                torch._dynamo.graph_break(msg=UNKNOWN_SCALE)
            self._look_at_first_batch(input)
        if settings and target is None:
            raise TypeError(
                f"`{next(iter(settings))}` must come with a `target`, got none; it is a setting of the loss."
            )
        weight_VD, prior_V = self._classes(input)
        x, w_VD = as_autocast_multiplies(self._scaled(input), weight_VD)
        kernel: Any = {"exponent": self.exponent, "softening": self.softening, "prior": prior_V}
        if target is None:
            return harmonic_log_probabilities(x, w_VD, **kernel)
        loss: Any = harmonic_loss(x, w_VD, target, **kernel, **settings)
        return loss  # with return_stats a LossOutput

    def _classes(self, input: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return centers and prior of the classes, without padding, for features that may be distributed."""
        return numbers_of(self.weight), self.prior

    def _scaled(self, input: Tensor) -> Tensor:
        return input if self.scale is None or self.scale == 1 else input * self.scale

    @without_dynamo
    def _look_at_first_batch(self, input: Tensor) -> None:
        if input.is_meta or self.weight.is_meta or not input.numel():
            return
        if is_traced(local_part(input)) or is_traced(local_part(numbers_of(self.weight))):
            warn_not_found()
        elif all(0 < one < math.inf for one in self._lengths(input)):  # else the loss will show what is wrong
            self.find_scale(input)

    @torch.no_grad()
    def to_argmax_linear(self) -> nn.Linear:
        r"""Return a Linear whose largest output is at the nearest center, for top-1 and greedy decoding elsewhere.

        .. math:: v_j = c\,w_j, \qquad b_j = -\tfrac12 \|w_j\|^2

        Its softmax is *not* the model's probability: it falls with the squared distance, at another temperature. A
        prior would move the argmax, so a head with one is refused.

        >>> head, x = HarmonicHead(16, 5, scale=0.5), torch.randn(8, 16)
        >>> bool((head.to_argmax_linear()(x).argmax(1) == head(x).argmax(1)).all())
        True
        """
        weight_VD, prior_V = self._classes()
        if prior_V is not None:
            raise ValueError(
                "a head must have no prior to become a Linear with the same argmax, got one; predict with the head."
            )
        weight_VD = whole(weight_VD)
        linear = nn.Linear(self.in_features, len(weight_VD), device=weight_VD.device, dtype=weight_VD.dtype)
        linear.weight.copy_((self.scale or 1.0) * weight_VD)
        linear.bias.copy_(-0.5 * weight_VD.float().square().sum(1))
        return linear

    def entropy(self, input: Tensor) -> Tensor:
        """Return the entropy of the probabilities, (...), in nats; see `harmonic_entropy`.

        >>> head, x = HarmonicHead(16, 5, scale=1), torch.randn(8, 16)
        >>> bool((head.entropy(x) < math.log(5)).all())
        True
        """
        weight_VD, prior_V = self._classes(input)
        x, w_VD = as_autocast_multiplies(self._scaled(input), weight_VD)
        return harmonic_entropy(x, w_VD, exponent=self.exponent, softening=self.softening, prior=prior_V)

    def distance(self, input: Tensor) -> Tensor:
        """Return the distance to every center, (..., V), in units of the features.

        Its gradient is finite everywhere, and 0 at a center.
        """
        return safe_sqrt(squared_distance(self._scaled(input), self._classes(input)[0])) / (self.scale or 1.0)

    def extra_repr(self) -> str:
        """Return the sizes, the exponent and the softening, and what is not at its default."""
        scale = "" if self.scale in (None, 1.0) else f", scale={self.scale:g}"
        return f"{super().extra_repr()}{scale}{'' if self.prior is None else ', prior=True'}"

    def _current_settings(self) -> Settings:
        exponent = math.nan if isinstance(self.exponent, Tensor) else float(self.exponent)
        return Settings(exponent, self.softening, math.nan if self.scale is None else self.scale)

    def write_settings(self) -> None:
        """Copy exponent, softening and scale into the buffer that is saved; saving does this by itself."""
        if not self.settings.is_meta:
            encoded = self._current_settings().encode()
            self.settings = encoded.to(self.settings.device)
            self._watch.note(self.settings, encoded)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, as every module does; before predictions look whether the buffer holds a new scale."""
        if not mode:  # a compiled forward cannot look
            self._heed_settings()
        return super().train(mode)

    def _follow_settings(self) -> None:
        """Follow the buffer in a forward, where something wrote into it; see `_heed_settings`."""
        # In training on a GPU the host would wait for the device in each step.
        if self.training and not self.wants_scale and self.settings.device.type != "cpu":
            return
        if not self._heed_settings() and not self.training:
            raise ValueError(
                f"`{KEY}` must hold the scale of this head, got numbers that something has changed, such as an average "
                "of models with use_buffers=True; leave use_buffers out, or average after the first batch of training."
            )

    def _heed_settings(self) -> bool:
        """Take over a scale that something else wrote into the buffer, and refuse other settings.

        Checkpoints that load in place do so, and copies of a model that follow its training. Return False if the
        numbers are of no use, although the head needs a scale from them.
        """
        stored = self._watch.changed(self.settings)
        if stored is None:
            return True
        try:
            saved = Settings.decode(stored)
        except ValueError:  # averaged, or memory without values as `to_empty` makes it: the numbers of the head count
            return not self.wants_scale
        other = differences(saved, self._current_settings())
        if other or is_wrapped(self.settings):  # one head cannot compute with the scales of several
            raise ValueError(
                f"`{KEY}` must be those of this head ({self.extra_repr()}), got {', '.join(other) or 'a scale'} in the "
                "buffer, from a checkpoint that loads in place, or from another head of an ensemble; build the head "
                "with these, or use HarmonicHead.from_state_dict."
            )
        if self.scale is None:
            self.scale = saved.known_scale
        self._watch.note(self.settings, stored)
        return True

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self._heed_settings():  # else they stay damaged, so that loading them says so
            self.write_settings()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = prefix + KEY
        stored = state_dict.get(key)
        if stored is None:
            if prefix + "weight" in state_dict and self.scale is None:
                self.scale = 1.0  # these centers were trained on features as they are
        elif not stored.is_meta:
            self._take_settings(stored, prefix, error_msgs)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if stored is None and key in missing_keys:  # the weights of a Linear, or of an older head
            missing_keys.remove(key)

    def _take_settings(self, stored: Tensor, prefix: str, error_msgs: list[str]) -> None:
        try:
            saved = Settings.decode(stored)
        except ValueError as error:
            error_msgs.append(f"{prefix or 'head '}{error}")
            return
        if other := differences(saved, self._current_settings()):
            error_msgs.append(
                f"`{prefix}{KEY}` must be those of this head ({self.extra_repr()}), got {', '.join(other)}; build the "
                "head with these, or use HarmonicHead.from_state_dict."
            )
        elif self.scale is None:
            self.scale = saved.known_scale
