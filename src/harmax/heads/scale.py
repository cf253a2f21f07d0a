"""At which scale features and centers should meet when training starts.

The harmonic loss is the same when features and centers are scaled together, so only the ratio of their lengths matters.
A network decides this ratio by accident. Behind a LayerNorm features have length sqrt(D), about 20 at D = 384, while
the rows of an embedding start with length 0.4. Then all centers are nearly equally far away, and a small exponent sees
no difference between them. So a head multiplies its features by a number that it finds from its first batch.
"""

# B rows, D features, V classes

import math
import warnings

import torch
from torch import Tensor, nn

from harmax.errors import unknown
from harmax.sharding import local_part, total_of_parts

STARTS = ("factor", "gain")
"""Where the factor on the features goes: into the head, as a constant, or into the gain of the norm before it."""
LEAST_RATIO = math.sqrt(2)
"""Features start at least this much longer than centers, because centers grow faster."""


def check_scale(scale: float | None) -> float | None:
    """Return the factor on the features as a float, or None; refuse values that are not positive and finite."""
    if scale is None:
        return None
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"`scale` must be a number or None, got {scale!r}; None means that the first batch decides.")
    if not 0 < scale < math.inf:
        raise ValueError(f"`scale` must be a positive number, got {scale}; 1 takes the features as they are.")
    return float(scale)


def check_start(start: str, scale: float | None, softening: float) -> str:
    """Return where the factor on the features goes; refuse a gain where no factor would be found."""
    if start not in STARTS:
        raise ValueError(unknown("start", start, STARTS))
    if start == "gain" and (scale is not None or softening):
        raise ValueError(
            f"`start` gain must go without `scale` and without a softening, got scale {scale} and softening "
            f"{softening:g}; the gain takes the factor that matches features and centers at the start."
        )
    return start


def matched_ratio(exponent: float, in_features: int) -> float:
    r"""Return how much longer than the centers the features should be at the start.

    .. math:: \rho + 1 / \rho = n / \sqrt{D}, \qquad \rho \ge \sqrt 2

    With this ratio the logits of random centers have a standard deviation of 1. An exponent below 2 sqrt(D) cannot
    reach it; then a ratio near 1 comes closest.

    >>> [round(matched_ratio(n, 384), 2) for n in (20, 80, 384)]
    [1.41, 3.82, 19.54]
    """
    half = 0.5 * exponent / math.sqrt(in_features)
    return max(LEAST_RATIO, half + math.sqrt(max(0.0, half * half - 1)))


def matched_scale(exponent: float, in_features: int, feature_length: float, center_length: float) -> float:
    """Return the factor on the features that gives them the ratio of `matched_ratio`, rounded to a power of two.

    A power of two is exact in every floating-point format, and small differences between batches do not change it.

    >>> matched_scale(20, 384, feature_length=19.6, center_length=0.39)
    0.03125
    """
    wanted = matched_ratio(exponent, in_features) * center_length / feature_length
    return 2.0 ** round(math.log2(wanted))


@torch.no_grad()
def length(v: Tensor, *, over_ranks: bool = False) -> float:
    """Return the root of the mean squared length of vectors, (..., D), over the batches of all ranks where asked."""
    squares = local_part(v).detach().float().square().sum(-1).flatten()
    total = total_of_parts(torch.stack([squares.sum(), squares.new_tensor(float(len(squares)))]), of=v)
    if over_ranks and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(total)
    summed, count = total.tolist()
    return math.sqrt(summed / count) if count else 0.0


def length_behind(norm: nn.Module, width: int) -> float:
    """Return the length of features behind a norm: that of random vectors that went through it.

    >>> round(length_behind(nn.LayerNorm(400), 400), 1)
    20.0
    """
    like = next(norm.parameters(), torch.empty(0))
    vectors = torch.randn(256, width, generator=torch.Generator().manual_seed(0))
    return length(norm(vectors.to(like.device, like.dtype)))


@torch.no_grad()
def scale_norm(norm: nn.Module, width: int, factor: float) -> None:
    """Multiply what a norm returns by a factor, in its gain and bias, which training can then change.

    >>> norm = nn.LayerNorm(400)
    >>> scale_norm(norm, 400, 0.5)
    >>> round(length_behind(norm, 400), 1)
    10.0
    """
    gain, bias, wanted = getattr(norm, "weight", None), getattr(norm, "bias", None), factor * length_behind(norm, width)
    changed = [own for own in (gain, bias) if isinstance(own, Tensor)]
    before = [own.clone() for own in changed]
    if isinstance(gain, Tensor):
        for added in (0.0, 1.0):  # some norms multiply by 1 + weight
            for own, old in zip(changed, before, strict=True):
                shift = added if own is gain else 0.0
                own.copy_(factor * (old + shift) - shift)
            if math.isclose(length_behind(norm, width), wanted, rel_tol=0.02):  # half precision rounds the gain
                return
    for own, old in zip(changed, before, strict=True):
        own.copy_(old)
    raise ValueError(
        f"the norm before the head must have a gain for `start` gain, got {type(norm).__name__} without one; use "
        "`start` factor."
    )


def warn_not_found() -> None:
    """Say that a head could not look at its first batch."""
    warnings.warn(
        "the scale of a HarmonicHead must be found from a real batch, got a traced one, so features are taken as they "
        "are; call head.find_scale(features) first, or build the head with scale=1.",
        stacklevel=4,
    )
