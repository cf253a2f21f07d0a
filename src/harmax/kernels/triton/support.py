"""Whether the Triton implementation can run for a device and a problem; if not, why, and what to do."""

import os
import re
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from harmax.kernels.problem import Problem

try:
    INSTALLED: str | None = version("triton")
except PackageNotFoundError:
    INSTALLED = None
OLDEST, OLDEST_TORCH = (3, 6), (2, 10)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version.

    >>> _release("3.6rc1"), _release("2.11.0+cu130")
    ((3, 6), (2, 11))
    """
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


# Read once, on import: torch.compile traces the functions that use them.
RELEASE, TORCH = _release(INSTALLED or ""), _release(torch.__version__)


def why_not(device: torch.device) -> str | None:
    """Return what this implementation needs and does not find on a device, and the remedy; None if it can run.

    >>> why_not(torch.device("meta"))
    'a CUDA device, got meta; move the tensors to a GPU'
    """
    if INSTALLED is None:
        return "Triton, which is not installed; pip install triton"
    if RELEASE < OLDEST:
        return f"Triton {'.'.join(map(str, OLDEST))} or newer, got {INSTALLED}; pip install -U triton"
    if device.type == "cpu":
        if os.environ.get("TRITON_INTERPRET") == "1":
            return None
        return "a CUDA device, got cpu; move the tensors to a GPU, or set TRITON_INTERPRET=1 to try it out slowly"
    if device.type != "cuda":
        return f"a CUDA device, got {device.type}; move the tensors to a GPU"
    if torch.version.hip is not None:  # the kernels' logarithm is an instruction of NVIDIA GPUs
        return f"an NVIDIA GPU, got ROCm {torch.version.hip}; there is no remedy yet"
    if TORCH < OLDEST_TORCH:
        return f"torch 2.10 or newer on a GPU, got {torch.__version__}; pip install -U torch"
    return None


def checked(problem: Problem) -> Problem:
    """Refuse a problem that this implementation cannot compute; move a 0-d exponent to the device of `input`."""
    device = problem.x_BD.device
    reason = why_not(device)
    if reason is not None:
        raise RuntimeError(f"impl='triton' needs {reason}, or pass impl='auto'.")
    others = {"linear_weight": problem.w_VD, "target": problem.target, "weight": problem.weight_V}
    for name, tensor in {**others, "prior": problem.prior_V}.items():
        if tensor is not None and tensor.device != device:
            raise ValueError(f"`{name}` must be on `input`'s device, {device}, got {tensor.device}; move it there.")
    for name, tensor in (("input", problem.x_BD), ("linear_weight", problem.w_VD)):
        if tensor.dtype not in DTYPES:
            raise TypeError(
                f"`{name}` must be float32, bfloat16 or float16 with impl='triton', got {tensor.dtype}; "
                "pass impl='chunked'."
            )
    if problem.target.is_floating_point():
        raise TypeError(
            "`target` must be class indices with impl='triton', got class probabilities; pass impl='chunked'."
        )
    if isinstance(problem.exponent, Tensor):
        return problem._replace(exponent=problem.exponent.to(device))
    return problem
