"""Head and loss, forward and backward: every implementation beside the linear head with cross-entropy.

Shape suffixes: B tokens, V classes, D features.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harmax.bench.measure import milliseconds, peak_mib
from harmax.bench.options import BenchOptions
from harmax.functional import harmonic_loss
from harmax.kernels import IMPLS

SHAPES = ((4096, 256, 8192), (1024, 768, 50304))
SMOKE_SHAPES = ((64, 16, 128),)

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def cross_entropy(x_BD: Tensor, w_VD: Tensor, target_B: Tensor) -> Tensor:
    """The standard head and loss."""
    return F.cross_entropy(F.linear(x_BD, w_VD), target_B)


def _harmonic(impl: str) -> Loss:
    return lambda x_BD, w_VD, target_B: harmonic_loss(x_BD, w_VD, target_B, impl=impl)  # type: ignore[return-value]


def subjects() -> dict[str, Loss]:
    """What is measured, the yardsticks first."""
    harmonic = {name: _harmonic(name) for name in IMPLS}
    return {
        "cross_entropy": cross_entropy,
        "cross_entropy_compiled": torch.compile(cross_entropy),
        **harmonic,
        "eager_compiled": torch.compile(harmonic["eager"]),
    }


def rows(options: BenchOptions) -> Iterator[dict[str, Any]]:
    """One row per subject and shape, with its ratio to the faster of the cross-entropies and to the leaner one."""
    if options.threads:
        torch.set_num_threads(options.threads)
    for shape in SMOKE_SHAPES if options.smoke else SHAPES:
        yield from _shape_rows(*shape, options)


def _shape_rows(tokens: int, features: int, classes: int, options: BenchOptions) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    x_BD = torch.randn(tokens, features, generator=generator).to(options.device).requires_grad_()
    w_VD = torch.randn(classes, features, generator=generator).mul_(0.5).to(options.device).requires_grad_()
    target_B = torch.randint(classes, (tokens,), generator=generator).to(options.device)

    def step(loss: Loss) -> Callable[[], Tensor]:
        def run() -> Tensor:
            x_BD.grad = w_VD.grad = None
            value = loss(x_BD, w_VD, target_B)
            value.backward()
            return value.detach()

        return run

    steps = {name: step(loss) for name, loss in subjects().items()}
    times = milliseconds(steps, 1 if options.smoke else options.repeats, options.device)
    gradients_mib = (x_BD.nbytes + w_VD.nbytes) / 2**20
    peaks, errors = {}, {}
    references = {True: _float64(x_BD, w_VD, target_B, True), False: _float64(x_BD, w_VD, target_B, False)}
    for name, run in steps.items():
        x_BD.grad = w_VD.grad = None
        peaks[name] = peak_mib(run, options.device) - gradients_mib
        got = (run(), x_BD.grad, w_VD.grad)
        errors[name] = _error(got, references[not name.startswith("cross_entropy")])
    standards = ("cross_entropy", "cross_entropy_compiled")
    fastest = min(times[name]["ms_p50"] for name in standards)
    leanest = min(peaks[name] for name in standards)
    for name in steps:
        yield {
            "impl": name,
            "tokens": tokens,
            "features": features,
            "classes": classes,
            "dtype": "float32",
            "device": options.device,
            "threads": torch.get_num_threads(),
            **{key: round(value, 3) for key, value in times[name].items()},
            "time_ratio": round(times[name]["ms_p50"] / fastest, 3),
            "peak_mib": round(peaks[name], 1),
            "memory_ratio": round(peaks[name] / leanest, 3),
            "error": errors[name],
            "torch": torch.__version__,
            "cpus": os.cpu_count(),
        }


def _float64(x_BD: Tensor, w_VD: Tensor, target_B: Tensor, harmonic: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients in float64, some rows at a time, by formulas that share no code with the library."""
    x, w = x_BD.detach().double(), w_VD.detach().double().requires_grad_()
    exponent = x.shape[1] ** 0.5
    total, dx_BD = torch.zeros((), dtype=torch.float64, device=x.device), torch.empty_like(x)
    for rows_ in torch.arange(len(x), device=x.device).split(256):
        part = x[rows_].requires_grad_()
        z_BV = part @ w.T
        if harmonic:
            z_BV = -0.5 * exponent * (part.square().sum(1, keepdim=True) + w.square().sum(1) - 2 * z_BV).log()
        loss = F.cross_entropy(z_BV, target_B[rows_], reduction="sum") / len(x)
        loss.backward()
        assert part.grad is not None
        total += loss.detach()
        dx_BD[rows_] = part.grad
    assert w.grad is not None
    return total, dx_BD, w.grad


def _error(got: tuple[Tensor | None, ...], want: tuple[Tensor, ...]) -> float:
    """Largest relative error of the loss and, in norm, of the gradients."""
    pairs = ((a, b) for a, b in zip(got, want, strict=True) if a is not None)
    return max(float(f"{((a.double() - b).norm() / b.norm()).item():.2e}") for a, b in pairs)
