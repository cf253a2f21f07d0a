"""The paper's small MLP."""

# B questions, T tokens a question, V vocabulary, D width

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harmax_lab.models.embedding import embed
from harmax_lab.models.head import make_head


class MLP(nn.Module):
    """Embeddings side by side, one hidden layer with SiLU, a bottleneck of the embedding's width, and a head.

    Args:
        vocabulary: V, the number of tokens, which are the classes too.
        inputs: T, tokens a question has.
        head: a name in `HEADS`; "linear" is the standard model, "harmonic" the paper's.
        tied: whether the embedding is the head's weight.
        width: D.
        hidden: units of the hidden layer.
        head_options: what the head takes besides: exponent, softening, bias.

    >>> model = MLP(31, 2, exponent=2.0)
    >>> model(torch.tensor([[3, 4], [30, 1]])).shape
    torch.Size([2, 31])
    """

    def __init__(
        self,
        vocabulary: int,
        inputs: int,
        *,
        head: str = "harmonic",
        tied: bool = True,
        width: int = 16,
        hidden: int = 100,
        **head_options: Any,
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs * width, hidden)
        self.bottleneck = nn.Linear(hidden, width)
        self.head = make_head(head, width, vocabulary, **head_options)
        self.embedding: Any = self.head.weight if tied else nn.Parameter(torch.randn(vocabulary, width) / width**0.5)

    def forward(self, tokens_BT: Tensor, key: Tensor | None = None) -> Tensor:
        """Logits, (B, V). There is no dropout, so the key changes nothing."""
        x_BTD = embed(self.embedding, tokens_BT)
        return self.head(self.bottleneck(F.silu(self.hidden(x_BTD.flatten(-2)))))
