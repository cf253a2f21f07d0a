"""The harmonic head as a module of Flax (nnx), and its weights from and to torch."""

# B rows, D features, V classes

import math
from collections.abc import Mapping
from typing import Any, Literal, Self, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from jax import Array

from harmax.errors import whole_number
from harmax.functional import check_softening, resolve_exponent
from harmax.heads.scale import check_scale, matched_scale, warn_not_found
from harmax.heads.settings import KEY, Settings, differences
from harmax.jax.checks import ArrayLike, check_floating, values_of
from harmax.jax.functional import TargetSettings, harmonic_log_probabilities, harmonic_loss, squared_distance
from harmax.jax.problem import LossOutput


class ForwardSettings(TargetSettings, total=False):
    """Keyword arguments of a head's call with a target, as in `harmonic_loss`."""

    return_stats: bool


class HarmonicHead(nnx.Module):
    r"""A head of class centers. A call returns log-probabilities that fall with a power of the distance.

    .. math:: z_j = b_j - \tfrac{n}{2} \log(\|c\,x - w_j\|^2 + a), \qquad \log p_j = z_j - \log \sum_k e^{z_k}

    It computes what `harmax.HarmonicHead` computes in torch, from the same weights and settings. Given a target too, a
    call returns the loss, and never stores a large (tokens, classes) matrix.

    A compiled training step cannot look at its first batch. So the scale is not found by itself as in torch: call
    `find_scale` before training, or give `scale=1`.

    Args:
        in_features: D.
        out_features: V, the number of classes.
        exponent: n, the power of the distance; None means sqrt(D).
        softening: a, added to the squared distance.
        scale: c, the factor on the features; None means that it is not known yet, and counts as 1.
        prior: whether classes have a learned log-weight b, (V,), which starts at 0.
        param_dtype: of the centers and the prior.
        rngs: random numbers for the start of the centers, U(-1/sqrt(D), 1/sqrt(D)) as in torch.

    >>> head = HarmonicHead(16, 3, rngs=nnx.Rngs(0))
    >>> head(jnp.ones((8, 16))).shape
    (8, 3)
    >>> head.exponent
    4.0
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        exponent: float | None = None,
        softening: float = 0.0,
        scale: float | None = None,
        prior: bool = False,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.in_features = whole_number("in_features", in_features, least=1)
        self.out_features = whole_number("out_features", out_features, least=1)
        self.exponent = float(resolve_exponent(exponent, in_features))
        self.softening = check_softening(softening)
        self.scale = check_scale(scale)
        reach = 1 / math.sqrt(in_features)
        shape = (out_features, in_features)
        self.weight = nnx.Param(jax.random.uniform(rngs.params(), shape, param_dtype, -reach, reach))
        self.prior = nnx.Param(jnp.zeros(out_features, param_dtype)) if prior else None

    @property
    def wants_scale(self) -> bool:
        """Whether the scale is still to be found. With a softening it matters, so features then stay as they are."""
        return self.scale is None and self.softening == 0

    @property
    def centers(self) -> Array:
        """The class centers in units of the features, (V, D)."""
        return self.weight[...] / (self.scale or 1.0)

    @overload
    def __call__(self, input: ArrayLike) -> Array: ...
    @overload
    def __call__(
        self,
        input: ArrayLike,
        target: ArrayLike,
        *,
        return_stats: Literal[False] = ...,
        **settings: Unpack[TargetSettings],
    ) -> Array: ...
    @overload
    def __call__(
        self, input: ArrayLike, target: ArrayLike, *, return_stats: Literal[True], **settings: Unpack[TargetSettings]
    ) -> LossOutput: ...
    def __call__(self, input: ArrayLike, target: ArrayLike | None = None, **settings: Any) -> Array | LossOutput:
        """Return log-probabilities, (..., V); with a target the loss, as `harmonic_loss` computes it.

        Args:
            input: features, (..., D).
            target: class indices (...) of any integer dtype, or class probabilities (..., V).
            settings: with a target, keyword arguments of `harmonic_loss`: weight, reduction, ignore_index,
                label_smoothing, impl, chunk_classes, class_axis, batch_axis, return_stats.
        """
        if settings and target is None:
            raise TypeError(
                f"`{next(iter(settings))}` must come with a `target`, got none; it is a setting of the loss."
            )
        prior = None if self.prior is None else self.prior[...]
        kernel: Any = {"exponent": self.exponent, "softening": self.softening, "prior": prior}
        if target is None:
            return harmonic_log_probabilities(self._scaled(input), self.weight[...], **kernel)
        if self.wants_scale:
            warn_not_found()
        loss: Any = harmonic_loss(self._scaled(input), self.weight[...], target, **kernel, **settings)
        return loss

    def _scaled(self, input: ArrayLike) -> ArrayLike:
        check_floating("input", input)
        return input if self.scale is None or self.scale == 1 else input * self.scale

    def distance(self, input: ArrayLike) -> Array:
        """Return the distance to every center, (..., V), in units of the features. Its gradient is 0 at a center."""
        s = squared_distance(self._scaled(input), self.weight[...])
        root = jnp.where(s == 0, 0, jnp.sqrt(jnp.where(s == 0, 1, s)))
        return root / (self.scale or 1.0)

    def find_scale(self, features: ArrayLike) -> float:
        """Set the factor on the features from a batch of them, outside jit, and return it; see `harmax.HarmonicHead`.

        Args:
            features: inputs of the head, (..., D).

        >>> features = 20 * jax.random.normal(jax.random.key(0), (100, 400)) / 20
        >>> HarmonicHead(400, 10, rngs=nnx.Rngs(0)).find_scale(features)
        0.03125
        """
        check_floating("features", features)
        known, centers = values_of(features), values_of(self.weight[...])
        if known is None or centers is None:
            raise ValueError(
                "`features` must be known to find the scale, got traced ones; call find_scale outside jit, before "
                "training."
            )
        lengths = [_length(known), _length(centers)]
        if not all(0 < one < math.inf for one in lengths):
            raise ValueError(
                f"features and centers must have finite lengths above 0 to find their scale, got {lengths[0]:g} and "
                f"{lengths[1]:g}; look for a NaN or for layers that start at 0, or build the head with scale=1."
            )
        self.scale = matched_scale(self.exponent, self.in_features, *lengths)
        return self.scale

    @property
    def settings(self) -> Settings:
        """What the head needs beside its parameters, as torch saves it."""
        return Settings(self.exponent, self.softening, math.nan if self.scale is None else self.scale)

    @classmethod
    def from_torch(cls, state_dict: Mapping[str, torch.Tensor], prefix: str = "") -> Self:
        """Build the head that a state_dict of torch was saved from, with its settings and its weights.

        Args:
            state_dict: of a `harmax.HarmonicHead`, or of a model that has one.
            prefix: of the head's keys, such as "lm_head.".

        >>> from harmax import HarmonicHead as TorchHead
        >>> HarmonicHead.from_torch(TorchHead(16, 3, exponent=56).state_dict()).exponent
        56.0
        """
        saved, arrays = _read(state_dict, prefix)
        classes, features = arrays["weight"].shape
        head = nnx.eval_shape(
            lambda: cls(
                features,
                classes,
                exponent=saved.exponent,
                softening=saved.softening,
                scale=saved.known_scale,
                prior="prior" in arrays,
                param_dtype=arrays["weight"].dtype,
                rngs=nnx.Rngs(0),
            )
        )
        head._take(arrays)
        return head

    def load_torch(self, state_dict: Mapping[str, torch.Tensor], prefix: str = "") -> None:
        """Load weights of torch into this head; refuse those of a head with other settings or sizes."""
        saved, arrays = _read(state_dict, prefix)
        own = {"weight": self.weight.shape} | ({} if self.prior is None else {"prior": self.prior.shape})
        shapes = {name: array.shape for name, array in arrays.items()}
        other = differences(saved, self.settings)
        if other or shapes != own:
            got = ", ".join([*other, *(f"{name} {shape}" for name, shape in shapes.items())])
            raise ValueError(
                f"`state_dict` must be that of a head with exponent={self.exponent:.17g}, softening="
                f"{self.softening:.17g}, scale={self.scale} and {own}, got {got}; build the head with these, or use "
                "HarmonicHead.from_torch."
            )
        if self.scale is None:
            self.scale = saved.known_scale
        self._take(arrays)

    def _take(self, arrays: dict[str, Array]) -> None:
        for name, array in arrays.items():
            own = getattr(self, name)
            own.set_value(array.astype(own.dtype))

    def to_torch(self, prefix: str = "") -> dict[str, torch.Tensor]:
        """Return a state_dict that `harmax.HarmonicHead` loads, with the settings.

        Args:
            prefix: of its keys, such as "lm_head.".

        >>> sorted(HarmonicHead(16, 3, rngs=nnx.Rngs(0)).to_torch("head."))
        ['head.settings', 'head.weight']
        """
        tensors = {"weight": _tensor(self.weight[...]), KEY: self.settings.encode()}
        if self.prior is not None:
            tensors["prior"] = _tensor(self.prior[...])
        return {prefix + name: tensor for name, tensor in tensors.items()}


def _length(v: np.ndarray) -> float:
    """The root of the mean squared length of vectors, (..., D)."""
    return math.sqrt(np.square(v.astype(np.float32)).sum(-1).mean()) if v.size else 0.0


def _read(state_dict: Mapping[str, torch.Tensor], prefix: str) -> tuple[Settings, dict[str, Array]]:
    own = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
    if not {"weight", KEY} <= own.keys():
        raise ValueError(
            f"`state_dict` must have {prefix}weight and {prefix}{KEY}, got {sorted(own)[:6]}; give the `prefix` of the "
            "head's keys, or load the weights of a Linear into a torch head first and save that."
        )
    saved = Settings.decode(own.pop(KEY))
    if math.isnan(saved.exponent):
        raise ValueError(
            "`state_dict` must be that of a head with a fixed exponent, got a learned one; build a HarmonicHead with "
            "that exponent in torch, load weight and prior into it, and save that."
        )
    more = set(own) - {"weight", "prior"}
    if more and not prefix:
        raise ValueError(
            f"`state_dict` must be that of a HarmonicHead, got also {sorted(more)[:6]}; give the `prefix` of its keys."
        )
    return saved, {name: _array(own[name]) for name in ("weight", "prior") if name in own}


def _array(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:  # numpy has no such numbers
        return jnp.asarray(tensor.detach().float().cpu().numpy(), jnp.bfloat16)
    return jnp.asarray(tensor.detach().cpu().numpy())


def _tensor(array: Array) -> torch.Tensor:
    if array.dtype == jnp.bfloat16:
        return torch.from_numpy(np.array(array, np.float32)).bfloat16()
    return torch.from_numpy(np.array(array))
