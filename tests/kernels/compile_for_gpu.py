"""Compile every kernel of the fused loss for a GPU, on a machine without one: python compile_for_gpu.py DTYPE.

The interpreter accepts code that the compiler refuses (a type that changes in a loop, for example). The signatures are
those of real launches: the engine runs on the CPU, launches only compile, and products are left out. Prints one line
per kernel: its name and the size of its code.
"""

import sys
from collections import ChainMap
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from harmax import LossOptions, harmonic_loss
from harmax.kernels import MODES
from harmax.kernels.triton import launch, products, support
from harmax.kernels.triton.launch import Launcher

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64", torch.int32: "i32"}
TYPES[torch.bool] = "i1"
SMOOTHED = {"label_smoothing": 0.1, "weight": torch.ones(300), "exponent": torch.tensor(2.0, requires_grad=True)}
PRIOR = {"prior": torch.zeros(300, requires_grad=True)}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "bfloat16": [{}, PRIOR, {"prior": torch.zeros(300)}],
    "float32": [SMOOTHED, {**SMOOTHED, **PRIOR}],
}
done: set[Any] = set()


def compile_instead(
    self: Launcher,
    kernel: Any,
    grid: Any,
    *groups: Any,
    size: Any = (),
    num_warps: int = 4,
    registers: int | None = None,
    **own: Any,
) -> None:
    """Compile what would be launched, once."""
    given = ChainMap(own, *groups)
    signature, values, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        name, value = parameter.name, given[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[name], values[index,] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = "*" + TYPES[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        if signature[name] != "constexpr" and (not isinstance(value, int | float) or value % 16 == 0):
            attributes[index,] = [["tt.divisibility", 16]]
    key = (kernel.__name__, *signature.items(), *values.items())
    if key not in done:
        done.add(key)
        source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
        compiled = triton.compile(source, target=TARGET, options={"num_warps": num_warps, "maxnreg": registers})
        print(kernel.__name__, len(compiled.asm["cubin"]), flush=True)


if __name__ == "__main__":
    launch.is_compiled = lambda v: True  # type: ignore[assignment]
    Launcher.__call__ = compile_instead  # type: ignore[method-assign]
    products.multiply = lambda *args, **options: None  # type: ignore[assignment]
    support.why_not = lambda device: None  # type: ignore[assignment]
    dtype = sys.argv[1]
    for mode in MODES if dtype == "bfloat16" else ("fast",):
        x, w = (torch.zeros(n, 64, dtype=getattr(torch, dtype), requires_grad=True) for n in (256, 300))
        options = LossOptions(mode=mode, check_targets=False)
        target = torch.zeros(256, dtype=torch.int64)
        for settings in SETTINGS[dtype]:
            loss = harmonic_loss(x, w, target, impl="triton", options=options, **settings)
            (2 * loss).backward()
