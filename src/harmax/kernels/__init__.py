"""One loss, several implementations. Read in this order, each file uses only files above it:

problem.py     the types that all implementations share
operators.py   parts of custom operators: exact products, rules for autograd and vmap
distance.py    squared distances that are exact near zero
eager.py       the specification, in plain torch operations
chunked.py     the same in chunks of rows, on any device
triton/        the same in fused kernels, on a GPU
autograd.py    the custom operator around `chunked` and `triton`
dispatch.py    which implementation runs, and why
"""

from harmax.kernels.dispatch import IMPLS, OWN_DTYPES, auto, choose
from harmax.kernels.problem import MODES, LossOptions, LossOutput, Problem

__all__ = ["IMPLS", "MODES", "OWN_DTYPES", "LossOptions", "LossOutput", "Problem", "auto", "choose"]
