"""Which token each position predicts.

Shape suffixes: B sequences, T tokens per sequence.
"""

import torch.nn.functional as F
from torch import Tensor

from harmax.errors import needs
from harmax.hf.head import IGNORED
from harmax.kernels.operators import is_traced

with needs("hf"):
    from transformers.modeling_utils import slice_logits_to_keep


def following(labels: Tensor) -> Tensor:
    """Return labels shifted left by one, (B, T), so that each position holds the token to predict there.

    >>> import torch
    >>> following(torch.tensor([[1, 2, 3]]))
    tensor([[   2,    3, -100]])
    """
    return F.pad(labels[..., 1:], (0, 1), value=IGNORED)


def kept_labels(target: Tensor, which: int | Tensor) -> Tensor:
    """Return the labels of the positions that get logits.

    Args:
        target: what each position predicts, (B, T).
        which: `logits_to_keep` of transformers: the number of positions at the end (0: all); or positions for all
            sequences, (K,); or positions per sequence, (B, K); or a mask, (B, T), which concatenates the positions.

    >>> import torch
    >>> kept_labels(torch.tensor([[1, 2, 3]]), 2)
    tensor([[2, 3]])
    """
    return slice_logits_to_keep(target[..., None], which)[..., 0]


def check_labels(target: Tensor, classes: int) -> None:
    """Refuse labels that are no tokens; on a GPU the check would wait for the device, so it is skipped."""
    if target.device.type != "cpu" or is_traced(target):
        return
    wrong = ((target < 0) | (target >= classes)) & (target != IGNORED)
    if wrong.any():
        raise ValueError(
            f"`labels` must hold tokens from 0 to {classes - 1}, or {IGNORED} where nothing is predicted, got "
            f"{target[wrong][0].item()}; use the tokenizer that the model was trained with, or call "
            "resize_token_embeddings."
        )
