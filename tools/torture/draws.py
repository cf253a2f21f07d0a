"""Drawn calls of `harmonic_loss`, with all its options, against a float64 brute force."""

# B rows, D features, V classes

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harmax import LossOptions, harmonic_loss
from harmax.kernels.eager import hit_floor
from oracle import GRADIENT_UNIT, UNIT, Oracle, brute_force, lost_below_tiny

EXPONENTS = (0.5, 1.0, 2.0, 3.75, 9.0, 28.0, 300.0, 2048.0)
# What the guide says of Triton in half precision: both factors of a product are rounded to 11 bits, and the factor of
# each pair in the backward pass to bfloat16.
PRODUCT_UNIT, FACTOR_UNIT = 2.0**-10, 2.0**-8
Problem = tuple[Tensor, Tensor, Tensor, dict[str, Any]]


def draw(seed: int, dtypes: Sequence[torch.dtype] = tuple(UNIT), *, probabilities: bool = True) -> Problem:
    """Return input (B, D), centers (V, D), target, and options of a call."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, features, classes = choose.randint(1, 9), choose.randint(1, 40), choose.randint(1, 30)
    dtype = choose.choice(dtypes)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.randn(rows, features, generator=generator, dtype=torch.float64)
    w = torch.randn(classes, features, generator=generator, dtype=torch.float64)
    if dtype != torch.float16:
        for row in range(choose.randint(0, rows)):  # so many rows lie close to a center, right or wrong
            x[row] = w[choose.randrange(classes)] + 10.0 ** -choose.randint(1, 5) * x[row]
        shift, scale = choose.choice((0.0, 0.0, 10.0)), 2.0 ** choose.choice((0, 0, 0, -20, 20))
        x, w = (x + shift) * scale, (w + shift) * scale
    options: dict[str, Any] = {
        "exponent": choose.choice(EXPONENTS),
        "softening": choose.choice((0.0, 0.0, 0.3)),
        "reduction": choose.choice(("mean", "sum", "none")),
        "label_smoothing": choose.choice((0.0, 0.0, 0.1, 1.0)),
    }
    if choose.random() < 0.5:
        options["weight"] = torch.rand(classes, generator=generator, dtype=wide) + 0.1
    target = torch.randint(classes, (rows,), generator=generator)
    if probabilities and choose.random() < 0.3:
        target = torch.rand(rows, classes, generator=generator, dtype=wide)
        target = target / target.sum(-1, keepdim=True)
    elif rows > 1 and choose.random() < 0.5:
        options["ignore_index"] = choose.choice((-100, -1))
        target[0] = options["ignore_index"]
    if choose.random() < 0.5:
        options["prior"] = _prior(choose, generator, target, options, wide, classes)
    x, w = x.to(dtype), w.to(dtype)
    # An exact hit has a finite value only with softening; the tests compare hits without it with mpmath.
    if (x.double()[:, None] - w.double()).square().sum(-1).min() == 0:
        options["softening"] = 0.3
    return x, w, target, options


def _prior(
    choose: random.Random, generator: torch.Generator, target: Tensor, options: dict[str, Any], wide: Any, classes: int
) -> Tensor:
    """Return log-weights, weak or strong, that may leave out classes that are no target."""
    prior = choose.choice((0.1, 3.0, 30.0, 300.0)) * torch.randn(classes, generator=generator, dtype=wide)
    if choose.random() < 0.5 and not options["label_smoothing"] and not target.is_floating_point():
        left_out = torch.rand(classes, generator=generator) < 0.3
        left_out[target.clamp(min=0)] = False
        if not left_out.all():
            prior[left_out] = -torch.inf
    return prior


def difference(impl: str, problem: Problem, want: Oracle, device: str = "cpu", chunk_rows: int = 4) -> str | None:
    """Return how a call differs from the oracle by more than its rounding allows, or None."""
    x, w, target, options = problem
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    number = torch.tensor(options["exponent"], dtype=wide)
    x, w, exponent = (v.detach().to(device).clone().requires_grad_() for v in (x, w, number))
    prior = options.get("prior")
    prior = None if prior is None else prior.to(device).detach().clone().requires_grad_()
    given = {
        **{key: value.to(device) if isinstance(value, Tensor) else value for key, value in options.items()},
        "exponent": exponent,
        "prior": prior,
    }
    loss = harmonic_loss(x, w, target.to(device), impl=impl, options=LossOptions(chunk_rows=chunk_rows), **given)
    asked = (x, w, exponent) if prior is None else (x, w, exponent, prior)
    dx, dw, dn, *dp = (g.cpu() for g in torch.autograd.grad(loss.sum(), asked))
    unit, gradient_unit = UNIT[x.dtype], GRADIENT_UNIT[x.dtype]
    rounded = 1e-7 if x.dtype == torch.float16 else 0.0  # gradients come back in the type of the input
    coarse = impl == "triton" and x.dtype in (torch.float16, torch.bfloat16)
    if coarse:
        unit = PRODUCT_UNIT
    smallest = rounded + lost_below_tiny(x, w, options, wide)
    slack = want.slack if options["reduction"] == "none" else want.slack.sum()
    kept = options["prior"][options["prior"] > -torch.inf] if prior is not None else torch.zeros(1)
    relative = 4 * unit * (1 + options["exponent"] + kept.abs().max().item()) + want.rounding
    relative += FACTOR_UNIT if coarse else 0.0
    checks = [
        # The last term is the rounding of the result itself, of a sum and a quotient.
        (
            "loss",
            loss.detach().cpu(),
            want.loss,
            unit * slack + len(x) * want.rounding + 2 * torch.finfo(wide).eps * want.loss.abs(),
        ),
        ("input's gradient", dx, want.dx, relative * want.dx_slack[:, None] + gradient_unit * want.dx.abs() + smallest),
        (
            "centers' gradient",
            dw,
            want.dw,
            relative * want.dw_slack[:, None] + gradient_unit * want.dw.abs() + smallest,
        ),
        # An error of one unit in a distance moves its logarithm by one unit, however small the logarithm is.
        (
            "exponent's gradient",
            dn,
            want.dexponent,
            relative * want.dexponent_slack + unit * want.dprior_slack.sum() + 1e-36,
        ),
        *(("prior's gradient", one, want.dprior, relative * want.dprior_slack + 1e-36) for one in dp),
    ]
    for name, got, right, bound in checks:
        reachable = right.abs() < torch.finfo(got.dtype).max / 2
        off = ((got.double() - right).abs() - bound)[reachable]
        if off.numel() and not (off <= 0).all():
            return (
                f"{impl}: {name} is off by {off.max().item():.3g} beyond its tolerance ({x.dtype}, {_short(options)})"
            )
    return None


def _short(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={'...' if isinstance(value, Tensor) else value}" for key, value in options.items())


def case(seed: int, impls: Sequence[str], device: str = "cpu", **choices: Any) -> str | None:
    """Compare each implementation with the oracle on the problem of a seed."""
    problem = draw(seed, **choices)
    x, w, target, options = problem
    # An exact hit counts as a very small distance; the softening is added to that.
    floor = hit_floor(torch.float64 if x.dtype == torch.float64 else torch.float32)
    want = brute_force(x, w, target, hit_floor=floor, **options)
    found = [difference(impl, problem, want, device, 1 + seed % 5) for impl in impls]
    return "; ".join(words for words in found if words) or None


SINGLE = {"dtypes": (torch.float32, torch.bfloat16, torch.float16), "probabilities": False}
on_cpu: Callable[[int], str | None] = partial(case, impls=("eager", "chunked"))
# In half precision the interpreter cuts off where a GPU rounds.
in_triton: Callable[[int], str | None] = partial(case, impls=("triton",), dtypes=(torch.float32,), probabilities=False)
on_gpu: Callable[[int], str | None] = partial(case, impls=("triton", "chunked", "eager"), device="cuda", **SINGLE)
