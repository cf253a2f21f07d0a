"""The harmonic loss by brute force in float64, and with mpmath at any precision: what must be matched."""

from typing import NamedTuple

import mpmath
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from harmax.kernels import IMPLS

ANYWHERE = [name for name in IMPLS if name != "triton"]
"""Implementations for every device, dtype and kind of target; test_triton.py is about the other one."""

# Rounding unit of what reaches the arithmetic, and of the gradients that come back.
UNIT = {torch.float64: 2e-15, torch.float32: 1e-6, torch.bfloat16: 1e-6, torch.float16: 1e-6}
GRADIENT_UNIT = {torch.float64: 0.0, torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


class Oracle(NamedTuple):
    loss: Tensor
    dx: Tensor
    dw: Tensor
    slack: Tensor
    """Per row, how far a relative error of 1 in every distance could move the loss."""
    dx_slack: Tensor
    dw_slack: Tensor
    """Per row and per class, how far a relative error of 1 in every term could move the gradient."""
    dexponent: Tensor
    dprior: Tensor
    dexponent_slack: Tensor
    dprior_slack: Tensor
    rounding: float
    """How far the oracle's own logits may be off: it takes logsumexp - z, which the code under test does not."""


def brute_force(
    x, w, target, exponent, softening=0.0, reduction="mean", prior=None, hit_floor=0.0, **options
) -> Oracle:
    """Loss and gradients in float64, every difference formed; `options` go to F.cross_entropy.

    A squared distance of zero counts as `hit_floor` times the smallest positive one of its row, or as the smallest one
    that the format knows.
    """
    prior = torch.zeros(len(w)) if prior is None else prior
    x, w, n, prior = (
        torch.as_tensor(v, dtype=torch.float64).detach().requires_grad_() for v in (x, w, exponent, prior)
    )
    options = {key: value.double() if isinstance(value, Tensor) else value for key, value in options.items()}
    target = target.double() if target.is_floating_point() else target
    gap = (x[:, None] - w).square().sum(-1)
    nearest = gap.detach().masked_fill(gap == 0, torch.inf).amin(1, keepdim=True).nan_to_num(posinf=0.0)
    s = gap + (gap == 0) * (hit_floor * nearest).clamp(min=2**13 * hit_floor**2)
    logits = (prior - 0.5 * n * (s + softening).log()).detach()
    # Relative to the most probable class, so that the gradient of the exponent does not cancel next to a center.
    z = prior - 0.5 * n * ((s + softening) / (s + softening).gather(1, logits.argmax(1)[:, None])).log()
    rows = F.cross_entropy(z, target, reduction="none", **options)
    loss = F.cross_entropy(z, target, reduction=reduction, **options)
    dx, dw, dn, dprior = torch.autograd.grad(loss.sum(), (x, w, n, prior))
    with torch.no_grad():
        p = z.softmax(-1)
        weight = options.get("weight", torch.ones(len(w), dtype=torch.float64))
        smoothing = options.get("label_smoothing", 0.0)
        if target.is_floating_point():
            share = (target * (1 - smoothing) + smoothing / len(w)) * weight
            count = torch.ones(len(x), dtype=torch.float64)
        else:
            kept = target != options.get("ignore_index", -100)
            index = target.masked_fill(~kept, 0)
            count = weight[index] * kept
            share = F.one_hot(index, len(w)) * weight * (1 - smoothing) + smoothing / len(w) * weight
            share = share * kept[:, None]
        mass = share.sum(-1, keepdim=True)
        scale = 1.0 if reduction != "mean" else 1 / (len(x) if target.is_floating_point() else count.sum())
        moved = scale * (share + mass * p)
        size = moved * 0.5 * exponent / (s + softening) * 2 * gap.sqrt()
        behind = prior.gather(0, z.argmax(1))[:, None] - prior
        behind = behind.abs().nan_to_num(posinf=0.0)
        slack = exponent * ((share - mass * p).abs().sum(-1) + rows.abs() / max(exponent, 1.0))
        slack = slack + ((share - mass * p) * behind).abs().sum(-1)
        reach = ((s + softening) / (s + softening).gather(1, z.argmax(1)[:, None])).log().abs()
        finite = logits[logits > -torch.inf]
        rounding = 1e-15 * (1 + finite.abs().max().item() + prior[prior > -torch.inf].abs().max().item())
    slacks = ((moved * reach).sum(), moved.sum(0))
    return Oracle(loss.detach(), dx, dw, slack, size.sum(1), size.sum(0), dn, dprior, *slacks, rounding)


def lost_below_tiny(x: Tensor, w: Tensor, options: dict, wide: torch.dtype) -> float:
    """Return the gradient that probabilities have that are too small for a float, and may come out as 0.

    A gradient is a probability times the exponent over a distance, summed over rows.
    """
    gaps = (x.double()[:, None] - w.double()).square().sum(-1)
    nearest = (gaps[gaps > 0].min() + options["softening"]).sqrt().item()
    return 4 * torch.finfo(wide).tiny * len(x) * max(1.0, options["exponent"] / nearest)


def assert_matches(want: Oracle, loss, dx, dw, *, options, unit, gradient_unit=0.0, smallest=1e-36):
    """Compare with the oracle, to so many rounding units of what the problem allows."""
    slack = want.slack if options["reduction"] == "none" else want.slack.sum()
    assert ((loss - want.loss).abs() <= unit * slack + len(dx) * want.rounding).all()
    for got, right, room in ((dx, want.dx, want.dx_slack), (dw, want.dw, want.dw_slack)):
        prior = options.get("prior")
        spread = 0.0 if prior is None else prior[prior > -torch.inf].abs().max().item()
        bound = (4 * unit * (1 + options["exponent"] + spread) + want.rounding) * room[:, None]
        reachable = right.abs() < torch.finfo(got.dtype).max / 2
        assert ((got.double() - right).abs() <= bound + gradient_unit * right.abs() + smallest)[reachable].all()


def assert_prior_gradients_match(want: Oracle, dexponent, dprior, *, options, unit):
    """Compare the gradients of the exponent and of the prior with the oracle, as `assert_matches` does the others."""
    spread = options["prior"][options["prior"] > -torch.inf].abs().max().item()
    relative = 4 * unit * (1 + options["exponent"] + spread) + want.rounding
    for got, right, room in (
        (dprior, want.dprior, want.dprior_slack),
        (dexponent, want.dexponent, want.dexponent_slack),
    ):
        assert ((got.double() - right).abs() <= relative * room + 1e-36).all()


def assert_right_next_to_a_center(compute, exponent: float, gap: float, right: bool) -> None:
    """Put a row at a relative distance from its center, or a wrong one, and compare loss and gradient with mpmath."""
    torch.manual_seed(3)
    w = torch.randn(7, 24)
    x = w[2] + gap * w[2].norm() * F.normalize(torch.randn(24), dim=0)
    target = 2 if right else 5
    want_loss, want_grad = precise(x, w, target, exponent)
    loss, dx, _ = compute(x[None], w, torch.tensor([target]), exponent=exponent)
    if want_loss > 1e-37:
        assert abs(loss.item() - want_loss) <= 1e-6 * (1 + exponent) * want_loss
    else:
        assert loss.item() < 1e-36
    if want_grad.norm() > 1e-30:
        assert (dx[0] - want_grad).norm() <= 2e-6 * (1 + exponent) * want_grad.norm()
    else:
        assert dx.norm() < 1e-29


HITS = ("right", "wrong", "twins", "origin")


def put_on_a_center(x, w, hit: str) -> None:
    """Put row 0, whose target is class 2, on its center, a wrong one, one of two alike, or one at the origin."""
    x[0] = w[2] if hit != "wrong" else w[3]
    if hit == "twins":
        w[4] = w[2]
    if hit == "origin":
        x[0] = w[2] = 0.0


def precise(x, w, target: int, exponent: float, softening: float = 0.0, digits: int = 60):
    """Loss and dloss/dx of one row with mpmath: no rounding worth the name."""
    with mpmath.workdps(digits):
        row = [mpmath.mpf(value) for value in x.double().tolist()]
        centers = [[mpmath.mpf(value) for value in center] for center in w.double().tolist()]
        t = [sum((a - b) ** 2 for a, b in zip(row, c, strict=True)) + mpmath.mpf(softening) for c in centers]
        ratio = [(t[target] / tj) ** (mpmath.mpf(exponent) / 2) for tj in t]
        rest = mpmath.fsum(r for j, r in enumerate(ratio) if j != target)
        loss = mpmath.log1p(rest)
        half = mpmath.mpf(exponent) / 2
        grad = []
        for k, value in enumerate(row):
            pull = half * rest / (1 + rest) / t[target] * 2 * (value - centers[target][k])
            push = mpmath.fsum(
                half * ratio[j] / (1 + rest) / t[j] * 2 * (value - centers[j][k]) for j in range(len(t)) if j != target
            )
            grad.append(float(pull - push))
        return float(loss), torch.tensor(grad, dtype=torch.float64)


@st.composite
def problems(draw, dtypes=tuple(UNIT), probabilities=True):
    rows, features, classes = draw(st.integers(1, 9)), draw(st.integers(1, 40)), draw(st.integers(1, 30))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    x = torch.randn(rows, features, generator=generator, dtype=torch.float64)
    w = torch.randn(classes, features, generator=generator, dtype=torch.float64)
    if dtype != torch.float16:
        for row in range(draw(st.integers(0, rows))):  # so many rows lie close to a center, right or wrong
            step = 10.0 ** -draw(st.integers(1, 5))
            x[row] = w[draw(st.integers(0, classes - 1))] + step * x[row]
        shift = draw(st.sampled_from([0.0, 0.0, 10.0]))
        x, w = x + shift, w + shift
    x, w = x.to(dtype), w.to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    options = {
        "exponent": draw(st.sampled_from([0.5, 1.0, 2.0, 3.7, 28.0, 300.0, 2048.0])),
        "softening": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "reduction": draw(st.sampled_from(["mean", "sum", "none"])),
        "label_smoothing": draw(st.sampled_from([0.0, 0.0, 0.1, 1.0])),
    }
    if draw(st.booleans()):
        options["weight"] = torch.rand(classes, generator=generator, dtype=wide) + 0.1
    if probabilities and draw(st.booleans()):
        target = torch.rand(rows, classes, generator=generator, dtype=wide)
        return x, w, target / target.sum(-1, keepdim=True), options
    target = torch.randint(classes, (rows,), generator=generator)
    if rows > 1 and draw(st.booleans()):
        target[0] = -100
    return x, w, target, options


@st.composite
def problems_with_prior(draw, **choices):
    """Problems with a prior, weak or strong, that may leave out classes that are no target."""
    x, w, target, options = draw(problems(**choices))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    prior = draw(st.sampled_from([0.1, 3.0, 30.0, 300.0])) * torch.randn(len(w), generator=generator, dtype=wide)
    if draw(st.booleans()) and not options["label_smoothing"] and not target.is_floating_point():
        left_out = torch.rand(len(w), generator=generator) < 0.3
        left_out[target.clamp(min=0)] = False
        prior[left_out] = -torch.inf
    return x, w, target, {**options, "prior": prior}
