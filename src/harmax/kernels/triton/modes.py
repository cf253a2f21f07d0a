"""Modes: how large a block of the (B, V) matrix of products is kept, and which mode fits into memory.

fast       up to 8192 rows at a time in 16 bits, where cross-entropy keeps the logits of all rows
balanced   about 2048 rows at a time; the gradient of the centers is summed in float32 meanwhile
lean       some rows and some classes at a time, multiplied twice (a fourth product), so that this sum is not needed
"""

import math

import torch

from harmax.kernels.problem import ANY_BLOCK, MODES, Block, LossOptions, Problem
from harmax.kernels.triton import tiles

FAST_ROWS = 8192
BALANCED_ROWS, BALANCED_BYTES = 2048, 288 * 2**20
"""At least this many rows, and more while their products take less than this many bytes."""
LEAN_BYTES = 32 * 2**20
LEAN_SHARE = 1 / 6
"""Or this share of the gradients' memory, if that is more: with larger blocks, sums are rewritten less often."""


def block(mode: str, tokens: int, features: int, classes: int) -> Block:
    """Return the part of the (B, V) matrix that a mode keeps.

    >>> block("balanced", 16384, 768, 50304)
    Block(rows=2816, columns=50304)
    >>> block("lean", 16384, 768, 50304)
    Block(rows=4096, columns=4096)
    """
    if mode in ("fast", "balanced"):
        rows = FAST_ROWS if mode == "fast" else max(BALANCED_ROWS, BALANCED_BYTES // (2 * tiles.pitch(classes)))
        rows = -(-tokens // max(1, -(-tokens // rows)))  # blocks of equal size
        return Block(max(1, -(-rows // 128) * 128), classes)
    # Square if possible: wide blocks save sums for dx, tall ones save sums for dw.
    elements = max(LEAN_BYTES, LEAN_SHARE * 2 * features * (tokens + classes)) / 2
    rows = max(1, min(tokens, math.ceil(math.sqrt(elements) / 1024) * 1024))
    return Block(rows, max(256, int(elements / rows) // 256 * 256))


def peak_bytes(
    mode: str,
    tokens: int,
    features: int,
    classes: int,
    *,
    itemsize: int = 2,
    w_itemsize: int | None = None,
    prior: bool = False,
) -> int:
    """Predict the peak memory of a step in this mode, both gradients included; `prior`: the prior's gradient too.

    >>> [peak_bytes(mode, 16384, 768, 50304) // 2**20 for mode in ("fast", "balanced", "lean")]
    [1059, 528, 194]
    """
    w_itemsize = w_itemsize or itemsize
    rows, columns = block(mode, tokens, features, classes)
    rows, columns = min(rows, tokens), min(columns, classes)
    gradients = itemsize * tokens + w_itemsize * classes
    # Operands use the memory of gradients of the same size. Inputs that are not all bfloat16 need copies as well.
    copies = itemsize * (tokens if itemsize == 4 else 0) + itemsize * (classes if w_itemsize == 4 else 0)
    copies += 2 * (tokens + classes) if itemsize != w_itemsize else 0
    if columns == classes:
        # With all rows in one block the sum for dx uses the memory of dw.
        sums = min(columns, tiles.DW_COLUMNS) if rows == tokens else classes + rows
    else:
        sums = tokens + min(columns, tiles.DW_COLUMNS if rows == tokens else columns)
    tables = 152 * tokens + 48 * classes
    if prior:  # sums over rows with near pairs, one per program, and the further tables
        tables += 4 * -(-rows // (2 * tiles.NEAR_TILE["BM"])) * tiles.pitch(columns) + 64 * tokens + 48 * classes
    return features * (gradients + copies + 4 * sums) + itemsize * rows * tiles.pitch(columns) + tables


def free_bytes(device: torch.device) -> int | None:
    """Return the memory of a GPU that a program can still take; None if it is not known."""
    if device.type != "cuda":
        return None
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def choose_mode(
    tokens: int,
    features: int,
    classes: int,
    *,
    itemsize: int,
    w_itemsize: int | None = None,
    prior: bool = False,
    free: int | None,
) -> str:
    """Name the fastest mode that fits, or the leanest if none does.

    >>> [choose_mode(16384, 768, 50304, itemsize=2, free=free * 2**20) for free in (10000, 1000, 300)]
    ['fast', 'balanced', 'lean']
    """
    for mode in MODES:
        # The margin is for other allocations of a step, and for fragmented memory.
        takes = peak_bytes(mode, tokens, features, classes, itemsize=itemsize, w_itemsize=w_itemsize, prior=prior)
        if free is None or 1.1 * takes <= free:
            return mode
    return MODES[-1]


def choose_block(problem: Problem, options: LossOptions) -> Block:
    """The block of the options' mode. Without a mode the engine chooses when it runs.

    Free memory must not become part of a compiled graph, so it is not read here.
    """
    if options.mode is None:
        return ANY_BLOCK
    (tokens, features), classes = problem.x_BD.shape, problem.w_VD.shape[0]
    return block(options.mode, tokens, features, classes)


def block_that_fits(problem: Problem) -> Block:
    """The block of the fastest mode that fits into the memory that is free now."""
    (tokens, features), classes = problem.x_BD.shape, len(problem.w_VD)
    sizes = {"itemsize": problem.x_BD.element_size(), "w_itemsize": problem.w_VD.element_size()}
    prior = problem.prior_V is not None
    mode = choose_mode(tokens, features, classes, **sizes, prior=prior, free=free_bytes(problem.x_BD.device))
    return block(mode, tokens, features, classes)
