"""The loss on a GPU: three large products by cuBLAS, and fused passes in Triton over what lies between them.

Blocks of the (B, V) matrix of products are the only large memory, and how they are cut is the mode:

    fast       up to 8192 rows at a time in 16 bits, where cross-entropy keeps the logits of all
    balanced   some 2048 rows at a time; the gradient of the centers is summed in float32 meanwhile
    lean       some rows and classes at a time, twice (a fourth product), so that not even that sum is needed

Nothing here waits for the device, and the same input gives the same bits.
"""

import math
import os
import re
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from harmax.kernels import fused
from harmax.kernels.eager import LossOutput, Problem
from harmax.kernels.fused import Block
from harmax.kernels.options import MODES, LossOptions

try:
    INSTALLED: str | None = version("triton")
except PackageNotFoundError:
    INSTALLED = None
OLDEST, OLDEST_TORCH = (3, 6), (2, 10)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FAST_ROWS = 8192
BALANCED_ROWS, BALANCED_BYTES = 2048, 288 * 2**20
"""At least so many rows, more while their products stay below so many bytes."""
LEAN_BYTES = 32 * 2**20
LEAN_SHARE = 1 / 6
"""Of the gradients' memory, if that is more: the larger the blocks, the less often sums over them are rewritten."""
PITCH = 128
"""Blocks of classes are multiples of this, but for the last."""
DW_COLUMNS = 8192
"""Classes whose gradient is in float32 at a time, where it need not be summed over blocks of rows."""


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, whatever follows them.

    >>> _release("3.6rc1"), _release("2.11.0+cu130")
    ((3, 6), (2, 11))
    """
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


# Read here: torch.compile looks into what asks for them.
RELEASE, TORCH = _release(INSTALLED or ""), _release(torch.__version__)


def why_not(device: torch.device) -> str | None:
    """Return why this implementation cannot run there, and the remedy; None where it can.

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
    if torch.version.hip is not None:  # their logarithm is an instruction of NVIDIA's
        return f"an NVIDIA GPU, got ROCm {torch.version.hip}; there is no remedy yet"
    if TORCH < OLDEST_TORCH:
        return f"torch 2.10 or newer on a GPU, got {torch.__version__}; pip install -U torch"
    return None


def block(mode: str, tokens: int, features: int, classes: int) -> Block:
    """Return the part of the (B, V) matrix that a mode keeps.

    >>> block("balanced", 16384, 768, 50304)
    Block(rows=2816, columns=50304)
    >>> block("lean", 16384, 768, 50304)
    Block(rows=4096, columns=4096)
    """
    if mode in ("fast", "balanced"):
        rows = FAST_ROWS if mode == "fast" else max(BALANCED_ROWS, BALANCED_BYTES // (2 * pitch(classes)))
        rows = -(-tokens // max(1, -(-tokens // rows)))  # blocks alike
        return Block(max(1, -(-rows // 128) * 128), classes)
    # Square if possible: wide blocks spare sums for dx, tall ones sums for dw.
    elements = max(LEAN_BYTES, LEAN_SHARE * 2 * features * (tokens + classes)) / 2
    rows = max(1, min(tokens, math.ceil(math.sqrt(elements) / 1024) * 1024))
    return Block(rows, max(256, int(elements / rows) // 256 * 256))


def pitch(columns: int) -> int:
    """Elements from one row of products to the next: kernels read whole tiles, and cuBLAS needs aligned rows.

    >>> pitch(50257)
    50304
    """
    return -(-columns // PITCH) * PITCH


def peak_bytes(
    mode: str, tokens: int, features: int, classes: int, *, itemsize: int = 2, w_itemsize: int | None = None
) -> int:
    """Predict the most memory that a step in this mode takes, both gradients included.

    >>> [peak_bytes(mode, 16384, 768, 50304) // 2**20 for mode in ("fast", "balanced", "lean")]
    [1059, 528, 194]
    """
    w_itemsize = w_itemsize or itemsize
    rows, columns = block(mode, tokens, features, classes)
    rows, columns = min(rows, tokens), min(columns, classes)
    gradients = itemsize * tokens + w_itemsize * classes
    # Operands lie where a gradient of the same size will be; what is not bfloat16 throughout has factors besides.
    copies = itemsize * (tokens if itemsize == 4 else 0) + itemsize * (classes if w_itemsize == 4 else 0)
    copies += 2 * (tokens + classes) if itemsize != w_itemsize else 0
    if columns == classes:
        # With all rows at once the sum for dx lies where dw will be.
        sums = min(columns, DW_COLUMNS) if rows == tokens else classes + rows
    else:
        sums = tokens + min(columns, DW_COLUMNS if rows == tokens else columns)
    tables = 152 * tokens + 48 * classes
    return features * (gradients + copies + 4 * sums) + itemsize * rows * pitch(columns) + tables


def free_bytes(device: torch.device) -> int | None:
    """Return what memory of a GPU a program can still take, None where that is not known."""
    if device.type != "cuda":
        return None
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def choose_mode(
    tokens: int, features: int, classes: int, *, itemsize: int, w_itemsize: int | None = None, free: int | None
) -> str:
    """Name the fastest mode that fits, the leanest if none does.

    >>> [choose_mode(16384, 768, 50304, itemsize=2, free=free * 2**20) for free in (10000, 1000, 300)]
    ['fast', 'balanced', 'lean']
    """
    for mode in MODES:
        # A margin for what the rest of a step allocates meanwhile, and for holes.
        takes = peak_bytes(mode, tokens, features, classes, itemsize=itemsize, w_itemsize=w_itemsize)
        if free is None or 1.1 * takes <= free:
            return mode
    return MODES[-1]


def block_that_fits(problem: Problem) -> Block:
    """Choose the mode by what memory is free now."""
    (tokens, features), classes = problem.x_BD.shape, len(problem.w_VD)
    sizes = {"itemsize": problem.x_BD.element_size(), "w_itemsize": problem.w_VD.element_size()}
    mode = choose_mode(tokens, features, classes, **sizes, free=free_bytes(problem.x_BD.device))
    return block(mode, tokens, features, classes)


def harmonic_loss(problem: Problem, options: LossOptions) -> LossOutput:
    """Loss and statistics of a problem, in the mode of the options."""
    reason = why_not(problem.x_BD.device)
    if reason is not None:
        raise RuntimeError(f"impl='triton' needs {reason}, or pass impl='auto'.")
    device = problem.x_BD.device
    for name, tensor in (("linear_weight", problem.w_VD), ("target", problem.target), ("weight", problem.weight_V)):
        if tensor is not None and tensor.device != device:
            raise ValueError(f"`{name}` must be on `input`'s device, {device}, got {tensor.device}; move it there.")
    if isinstance(problem.exponent, Tensor):
        problem = problem._replace(exponent=problem.exponent.to(device))
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
    if options.mode is None:
        # Asked inside the operator: what memory is free is no matter for a compiled graph.
        return fused.loss(problem, "triton", fused.ANY)
    (tokens, features), classes = problem.x_BD.shape, problem.w_VD.shape[0]
    return fused.loss(problem, "triton", block(options.mode, tokens, features, classes))
