"""The loss a chunk of rows at a time, on any device: no more than (chunk, V) of the (B, V) matrix ever exists.

torch.compile is not used (and not needed): `sweep.py` works in place.
"""

from harmax.kernels import fused
from harmax.kernels.eager import LossOutput, Problem
from harmax.kernels.options import LossOptions

CHUNK_BYTES = {"cpu": 38 * 2**20, "cuda": 256 * 2**20}
"""Memory of the (chunk, V) matrix when the caller names no chunk: a GPU needs large chunks to be busy."""


def default_chunk_rows(classes: int, itemsize: int, device: str) -> int:
    """Rows whose (chunk, V) matrix takes CHUNK_BYTES: a multiple of 16, and at least 16."""
    return max(16, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // (classes * itemsize) // 16 * 16)


def harmonic_loss(problem: Problem, options: LossOptions) -> LossOutput:
    """Loss and statistics of a problem, `chunk_rows` rows at a time (by default as many as fit CHUNK_BYTES)."""
    w_VD = problem.w_VD
    default = default_chunk_rows(w_VD.shape[0], w_VD.element_size(), w_VD.device.type)
    return fused.loss(problem, "chunked", fused.Block(options.chunk_rows or default, w_VD.shape[0]))
