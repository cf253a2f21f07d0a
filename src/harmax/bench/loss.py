"""Head and loss, forward and backward: every implementation of harmonic loss, and the linear head with cross-entropy.

Shape suffixes: B tokens, V classes, D features.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from harmax.bench.measure import milliseconds, peak_mib
from harmax.bench.options import BenchOptions
from harmax.functional import LossOptions, harmonic_loss
from harmax.kernels import MODES
from harmax.kernels.triton import support


class Shape(NamedTuple):
    """The sizes of one problem."""

    tokens: int
    features: int
    classes: int


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

SMOKE = (Shape(64, 16, 128),)
ON_CPU = (Shape(4096, 256, 8192), Shape(1024, 768, 50304))
ON_GPU = (Shape(16384, 768, 50304), Shape(8192, 4096, 128256), Shape(8192, 2304, 256000))
SWEEP = (
    *(Shape(tokens, 768, 50304) for tokens in (2048, 4096, 8192, 32768, 65536)),
    *(Shape(8192, 768, classes) for classes in (8192, 32768, 131072, 524288)),
    Shape(16384, 768, 50257),
    Shape(65536, 4096, 256000),
)
"""Further GPU shapes, only for `IN_SWEEP`: more tokens, more classes, GPT-2's own vocabulary, a very large problem."""
MOST_FOR_ERROR = 2**44
"""Largest tokens x features x classes for which errors against float64 are computed; larger ones would take long."""
KINDS = ("linear", "harmonic", "prior")
"""Kinds of losses that have their own float64 reference."""
STANDARDS = ("cross_entropy", "cross_entropy_compiled")
IN_SWEEP = ("three_products", "cross_entropy_compiled", *(f"triton_{mode}" for mode in MODES))


def cross_entropy(x_BD: Tensor, w_VD: Tensor, target_B: Tensor) -> Tensor:
    """Return the loss of the standard linear head."""
    return F.cross_entropy(F.linear(x_BD, w_VD), target_B)


def textbook(x_BD: Tensor, w_VD: Tensor, target_B: Tensor) -> Tensor:
    """Return the harmonic loss in its simplest form, with every step in the dtype of the inputs."""
    s_BV = x_BD.square().sum(1, keepdim=True) + w_VD.square().sum(1) - 2 * (x_BD @ w_VD.T)
    return F.cross_entropy(-0.5 * x_BD.shape[1] ** 0.5 * s_BV.clamp(min=1e-6).log(), target_B)


def _harmonic(impl: str, mode: str = "fast") -> Loss:
    options = LossOptions(mode=mode)
    return lambda x_BD, w_VD, target_B: harmonic_loss(x_BD, w_VD, target_B, impl=impl, options=options)


def word_prior(w_VD: Tensor) -> Tensor:
    """Return the log-weights of words by rank, (V,): word j is as frequent as 1 / j."""
    return -torch.arange(1, len(w_VD) + 1, dtype=torch.float32, device=w_VD.device).log()


def _with_prior(impl: str, mode: str = "fast") -> Loss:
    """Return a loss with a prior whose gradient is computed as well. The prior is made once per size."""
    options, priors = LossOptions(mode=mode), dict[int, Tensor]()

    def loss(x_BD: Tensor, w_VD: Tensor, target_B: Tensor) -> Tensor:
        if len(w_VD) not in priors:
            priors[len(w_VD)] = word_prior(w_VD).requires_grad_()
        prior_V = priors[len(w_VD)]
        prior_V.grad = None
        return harmonic_loss(x_BD, w_VD, target_B, impl=impl, options=options, prior=prior_V)

    return loss


class ThreeProducts(torch.autograd.Function):
    """The least work of any such loss: x W^T, then two more products of that size. The value is meaningless."""

    @staticmethod
    def forward(ctx: Any, x_BD: Tensor, w_VD: Tensor, target_B: Tensor) -> Tensor:
        """Multiply and store."""
        z_BV = x_BD @ w_VD.T
        ctx.save_for_backward(x_BD, w_VD, z_BV)
        return z_BV[0, 0].float()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        """Multiply twice more."""
        x_BD, w_VD, z_BV = ctx.saved_tensors
        return z_BV @ w_VD, z_BV.T @ x_BD, None


def _liger() -> Loss:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss()
    return lambda x_BD, w_VD, target_B: loss(w_VD, x_BD, target_B)


def _torch_chunked() -> Loss:
    options = torch.nn.LinearCrossEntropyOptions()
    return lambda x_BD, w_VD, target_B: F.linear_cross_entropy(x_BD, w_VD, target_B, options=options)


def _cut_cross_entropy() -> Loss:
    from cut_cross_entropy import linear_cross_entropy

    return linear_cross_entropy


def subjects(device: str) -> dict[str, Loss]:
    """Return the losses that are measured on a device, with the standard ones first."""
    found: dict[str, Loss] = {
        "cross_entropy": cross_entropy,
        "cross_entropy_compiled": torch.compile(cross_entropy, dynamic=False),
        "textbook": textbook,
        "eager": _harmonic("eager"),
        "eager_compiled": torch.compile(_harmonic("eager"), dynamic=False),
        "chunked": _harmonic("chunked"),
        "chunked_prior": _with_prior("chunked"),
    }
    if support.why_not(torch.device(device)) is None:
        found |= {f"triton_{mode}": _harmonic("triton", mode) for mode in MODES}
        found |= {f"triton_{mode}_prior": _with_prior("triton", mode) for mode in MODES}
    if device.startswith("cuda"):
        found = {"three_products": ThreeProducts.apply, **found}
        others = {"torch_chunked": _torch_chunked, "liger": _liger, "cut_cross_entropy": _cut_cross_entropy}
        for name, make in others.items():
            with suppress(ImportError, AttributeError):  # packages of other projects, measured if installed
                found[name] = make()
    return found


def rows(options: BenchOptions) -> Iterator[dict[str, Any]]:
    """Head and loss, forward and backward: time, memory and error of every implementation and of cross-entropy.

    One row per subject and shape. Its ratios are to the faster and to the leaner of the two cross-entropies. Subjects
    whose names end in `_prior` have a prior and compute its gradient; compare them with the subject of the same name.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    on_gpu = options.device.startswith("cuda")
    for shape in SMOKE if options.smoke else (*ON_GPU, *SWEEP) if on_gpu else ON_CPU:
        # Everything is compiled anew per shape, because torch gives up on a function after a number of shapes.
        torch.compiler.reset()
        every = subjects(options.device)
        if shape in SWEEP:
            every = {name: every[name] for name in IN_SWEEP if name in every}
        yield from _shape_rows(shape, every, options)


def operands(shape: Shape, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return random vectors (B, D) and centers (V, D), which require gradients, and targets (B,)."""
    generator, dtype = torch.Generator(device).manual_seed(0), _dtype(device)
    x_BD, w_VD = (
        (scale * torch.randn(rows, shape.features, generator=generator, device=device)).to(dtype).requires_grad_()
        for rows, scale in ((shape.tokens, 1.0), (shape.classes, 0.5))
    )
    return x_BD, w_VD, torch.randint(shape.classes, (shape.tokens,), generator=generator, device=device)


def _step(loss: Loss, x_BD: Tensor, w_VD: Tensor, target_B: Tensor) -> Tensor:
    x_BD.grad = w_VD.grad = None
    value = loss(x_BD, w_VD, target_B)
    value.backward()
    return value.detach()


def _shape_rows(shape: Shape, losses: dict[str, Loss], options: BenchOptions) -> Iterator[dict[str, Any]]:
    x_BD, w_VD, target_B = operands(shape, options.device)
    gradients_mib = (x_BD.nbytes + w_VD.nbytes) / 2**20
    steps: dict[str, Callable[[], Tensor]] = {}
    peaks: dict[str, float] = {}
    errors: dict[str, dict[str, float]] = {}
    known = math.prod(shape) <= MOST_FOR_ERROR
    references = {kind: _float64(x_BD, w_VD, target_B, kind) for kind in KINDS} if known else {}
    for name, loss in losses.items():
        run = partial(_step, loss, x_BD, w_VD, target_B)
        try:
            run()
            x_BD.grad = w_VD.grad = None
            peaks[name] = peak_mib(run, options.device) - gradients_mib
        except torch.OutOfMemoryError:
            continue  # a loss that does not fit into memory has no row
        got = (run(), x_BD.grad, w_VD.grad)
        errors[name] = _error(got, references[_kind(name)]) if known and name != "three_products" else {}
        del got
        steps[name] = run
    times = milliseconds(steps, 1 if options.smoke else options.repeats, options.device)
    standards = [name for name in STANDARDS if name in steps]
    fastest = min((times[name]["ms_p50"] for name in standards), default=math.nan)
    leanest = min((peaks[name] for name in standards), default=math.nan)
    floor = times["three_products"]["ms_p50"] if "three_products" in times else None
    for name in steps:
        yield {
            "impl": name,
            **shape._asdict(),
            "dtype": str(x_BD.dtype).removeprefix("torch."),
            "device": options.device,
            "threads": torch.get_num_threads(),
            **{key: round(value, 3) for key, value in times[name].items()},
            "time_ratio": round(times[name]["ms_p50"] / fastest, 3),
            **({} if floor is None else {"products_ratio": round(times[name]["ms_p50"] / floor, 3)}),
            "peak_mib": round(peaks[name], 1),
            "gradients_mib": round(gradients_mib, 1),
            "memory_ratio": round(peaks[name] / leanest, 3),
            "error": max(errors[name].values(), default=None),
            "errors": errors[name],
            "torch": torch.__version__,
            "cpus": os.cpu_count(),
            **({"gpu": torch.cuda.get_device_name(options.device)} if options.device.startswith("cuda") else {}),
        }


def _dtype(device: str) -> torch.dtype:
    """Return the usual dtype for training on a device."""
    return torch.bfloat16 if device.startswith("cuda") else torch.float32


def _kind(name: str) -> str:
    if name.endswith("_prior"):
        return "prior"
    return "harmonic" if name.startswith(("textbook", "eager", "chunked", "triton")) else "linear"


def _float64(x_BD: Tensor, w_VD: Tensor, target_B: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss and gradients in float64, by formulas that share no code with the library, some rows at a time."""
    x, w = x_BD.detach().double(), w_VD.detach().double().requires_grad_()
    exponent = x.shape[1] ** 0.5
    total, dx_BD = torch.zeros((), dtype=torch.float64, device=x.device), torch.empty_like(x)
    for rows_ in torch.arange(len(x), device=x.device).split(256):
        part = x[rows_].requires_grad_()
        z_BV = part @ w.T
        if kind != "linear":
            z_BV = -0.5 * exponent * (part.square().sum(1, keepdim=True) + w.square().sum(1) - 2 * z_BV).log()
        if kind == "prior":
            z_BV = z_BV + word_prior(w_VD)
        loss = F.cross_entropy(z_BV, target_B[rows_], reduction="sum") / len(x)
        loss.backward()
        assert part.grad is not None
        total += loss.detach()
        dx_BD[rows_] = part.grad
    assert w.grad is not None
    return total, dx_BD, w.grad


def _error(got: tuple[Tensor | None, ...], want: tuple[Tensor, ...]) -> dict[str, float]:
    """Return the relative error of the loss, and of each gradient in its norm."""
    found = {}
    for name, a, b in zip(("loss", "dx", "dw"), got, want, strict=True):
        if a is not None:
            found[name] = float(f"{((a.double() - b).norm() / b.norm()).item():.2e}")
    return found
