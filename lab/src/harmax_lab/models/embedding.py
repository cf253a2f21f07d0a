"""Looking up embeddings so that the gradient is the same every time."""

# B questions, T tokens, V vocabulary, D width

import torch
from torch import Tensor


def embed(weight_VD: Tensor, tokens: Tensor) -> Tensor:
    """Return the rows of `weight` at `tokens`: (V, D) and (...) to (..., D).

    As a product with one-hot vectors. Indexing gives the same numbers, but its gradient is a sum by atomic additions on
    a GPU, whose order, and with it the last bit, changes from run to run.
    """
    one_hot = tokens[..., None] == torch.arange(len(weight_VD), device=tokens.device)
    return one_hot.to(weight_VD.dtype) @ weight_VD
