r"""From a trained Linear to a harmonic head without a jump of the loss, and from there to a pure harmonic head.

A Linear has the logits v_j . x + b_j. A harmonic head with softening a and scale c on the same weight has

.. math:: z_j = p_j - \tfrac{n}{2} \log t_j, \qquad t_j = c^2 |x|^2 + |v_j|^2 + a - 2 c\, v_j \cdot x

Where a is large, t hardly varies, and z_j is nearly linear in v_j . x with slope n c / t. So the head follows the
Linear if n c equals a typical t, and if the prior p_j takes up the bias and what |v_j|^2 contributes. The slope stays
at 1 while a and n fall together, as long as n - a / c stays the same. At a = 0 this is the exponent at the end.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from harmax.heads.harmonic import HarmonicHead
from harmax.heads.scale import length

USUAL_END = 10
"""Exponent at the end where none is asked for, in units of |x| |v|: SmolLM2-135M loses 0.18 nat without training."""
STRAIGHTNESS = 40
"""Least exponent at the start, in the same units: with it the logits bend by less than a fortieth of their size."""
STEADINESS = 10
"""Least exponent at the start, in units of the one at the end: so the different lengths of features hardly matter."""
TYPICAL_COSINE = 0.1
"""Cosine between features and the row of the most probable class, at which the slope is exactly 1."""


class Match(NamedTuple):
    """Settings with which a head on the weight of a Linear has nearly its logits."""

    exponent: float
    softening: float
    scale: float
    prior_V: Tensor


def least_exponent(feature_length: float, weight_length: float) -> float:
    """Return the smallest exponent that a head can end with while its logits stay as large as those of the Linear.

    >>> least_exponent(47.0, 3.2)
    270.72
    """
    return 2 * (1 - TYPICAL_COSINE) * feature_length * weight_length


@torch.no_grad()
def match(linear: nn.Linear, feature_length: float, exponent: float | None = None) -> Match:
    """Find the settings of a head that keeps the loss of a trained Linear.

    Args:
        linear: the trained layer, with or without a bias.
        feature_length: the typical length of its inputs; see `length_behind` for a layer behind a norm.
        exponent: of the pure harmonic head that `Hardening` ends with; None means 10 |x| |v|. The smallest that is
            possible, near 2 |x| |v|, needs far more training.
    """
    v_VD, weight_length = linear.weight.detach().float(), length(linear.weight)
    product = feature_length * weight_length
    least, end = least_exponent(feature_length, weight_length), USUAL_END * product if exponent is None else exponent
    if not (0 < feature_length < math.inf and 0 < weight_length < math.inf):
        raise ValueError(
            f"features and weight must have finite lengths above 0, got {feature_length:g} and {weight_length:g}; look "
            "for a NaN, or for a layer that was not trained."
        )
    if end < 0.999 * least:
        raise ValueError(
            f"`exponent` must be at least {least:.4g} for this layer to keep its loss, got {end:g}: its features have "
            f"length {feature_length:.3g} and its rows {weight_length:.3g}, and a smaller exponent cannot give logits "
            "of this size; leave it out, or convert without `match`."
        )
    typical = TYPICAL_COSINE * product  # a logit
    half = 0.5 * max(end + 2 * typical, 2 * product)
    scale = (half + math.sqrt(max(0.0, half * half - product * product))) / feature_length**2
    start = max(STRAIGHTNESS * product, STEADINESS * end)
    softening = scale * (start - end)
    t_V = (scale * feature_length) ** 2 + v_VD.square().sum(1) + softening - 2 * scale * typical
    prior_V = 0.5 * start * (t_V.log() - t_V.log().mean())
    if linear.bias is not None:
        prior_V = prior_V + linear.bias.detach().float()
    return Match(start, softening, scale, prior_V)


class Hardening:
    """Takes the softening of a matched head to 0 in a number of steps, while its exponent falls to the one at the end.

    Call `step()` after each step of the optimizer. The state is in the head, so a resumed run makes a new one for the
    steps that are left.

    Args:
        head: from `HarmonicHead.from_linear(linear, match=True)` or `harmax.hf.harmonize(model, match=True)`.
        steps: number of steps after which the softening is 0.

    >>> head = HarmonicHead.from_linear(nn.Linear(8, 3), match=True, feature_length=2.0)
    >>> hardening = Hardening(head, steps=2)
    >>> for _ in range(2):
    ...     hardening.step()
    >>> head.softening, head.exponent == hardening.exponent
    (0.0, True)
    """

    def __init__(self, head: HarmonicHead, steps: int) -> None:
        if isinstance(head.exponent, Tensor):
            raise TypeError("`head` must have a fixed exponent, got a learned one; it would be overwritten each step.")
        if head.softening == 0:
            raise ValueError("`head` must have a softening to take away, got 0; it is a pure harmonic head already.")
        if steps < 1:
            raise ValueError(f"`steps` must be at least 1, got {steps}; 1 takes the softening away at once.")
        self.head, self.left = head, steps
        self.exponent: float = head.exponent - head.softening / (head.scale or 1.0)
        """The exponent at the end."""
        if self.exponent <= 0:
            raise ValueError(
                f"`head` must come from a match, got exponent {head.exponent:g} with softening {head.softening:g} and "
                f"scale {head.scale or 1.0:g}, which end at exponent {self.exponent:g}; convert with match=True."
            )

    def step(self) -> None:
        """Go one step further; after the last one nothing changes."""
        if self.left == 0:
            return
        self.left -= 1
        share = self.left / (self.left + 1)
        assert not isinstance(self.head.exponent, Tensor)
        # Equal factors, because what matters is by how many percent the exponent changes.
        exponent = self.exponent * (self.head.exponent / self.exponent) ** share
        self.head.exponent = exponent if self.left else self.exponent
        self.head.softening = (self.head.scale or 1.0) * (self.head.exponent - self.exponent)
        self.head.write_settings()  # so that an averaged copy of the model notices
