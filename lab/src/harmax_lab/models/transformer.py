"""The paper's small transformer, as its code has it: encoder layers, layer norm last, an extra residual around each."""

# B questions, T tokens a question, V vocabulary, D width, H attention heads, Q queries, C features an attention head

from typing import Any

import torch
from torch import Tensor, nn

from harmax_lab.models.embedding import embed
from harmax_lab.models.head import make_head
from harmax_lab.models.random import Noise, dropout


class Attention(nn.Module):
    """Multi-head attention without a mask, with dropout on the attention weights.

    Args:
        width: D.
        heads: H, which divides D.
        rate: share of attention weights dropped when there is noise.
    """

    def __init__(self, width: int, heads: int, rate: float) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"`width` must be a multiple of `heads`, got {width} and {heads}; change one of them.")
        self.heads, self.rate = heads, rate
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        # As nn.MultiheadAttention starts: query, key and value as one (3 D, D) matrix by Glorot's rule, biases 0.
        reach = (6 / (4 * width)) ** 0.5
        for layer in (self.query, self.key_value):
            nn.init.uniform_(layer.weight, -reach, reach)
        for layer in (self.query, self.key_value, self.output):
            nn.init.zeros_(layer.bias)

    def extra_repr(self) -> str:
        """Return what tells two of them apart."""
        return f"heads={self.heads}, rate={self.rate}"

    def forward(self, query_BQD: Tensor, context_BTD: Tensor, noise: Noise | None = None) -> Tensor:
        """Attend from the queries to the context, (B, Q, D)."""

        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

        q_BHQC = split(self.query(query_BQD))
        k_BHTC, v_BHTC = map(split, self.key_value(context_BTD).chunk(2, -1))
        # Sums of products instead of matrix products: with two or three tokens those would be tiny, many and slow.
        scale = q_BHQC.shape[-1] ** -0.5
        score_BHQT = (q_BHQC[..., :, None, :] * k_BHTC[..., None, :, :]).sum(-1) * scale
        weight_BHQT = dropout(score_BHQT.softmax(-1), self.rate, noise)
        mixed_BHQC = (weight_BHQT[..., None] * v_BHTC[..., None, :, :]).sum(-2)
        return self.output(mixed_BHQC.transpose(-2, -3).flatten(-2))


class EncoderLayer(nn.Module):
    """An encoder layer with the norm after each part and ReLU: `nn.TransformerEncoderLayer`, given its noise."""

    def __init__(self, width: int, heads: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.attention = Attention(width, heads, rate)
        self.expand, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_attention, self.norm_feed_forward = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, query_BQD: Tensor, context_BTD: Tensor, noise: Noise | None = None) -> Tensor:
        """Transform the queries, (B, Q, D), which are some of the context's positions."""
        attended = self.attention(query_BQD, context_BTD, noise)
        x_BQD = self.norm_attention(query_BQD + dropout(attended, self.rate, noise))
        inner = dropout(self.expand(x_BQD).relu(), self.rate, noise)
        return self.norm_feed_forward(x_BQD + dropout(self.shrink(inner), self.rate, noise))


class Transformer(nn.Module):
    """Embeddings plus positions, encoder layers each with a residual around it, and a head on the last position.

    Args:
        vocabulary, inputs, head, tied, width, head_options: as for `MLP`.
        layers: how many.
        heads: attention heads.
        dropout: share dropped in every layer when `forward` is given a key.
        feature_scale: factor on what the head sees; 1 takes the features as they are.

    >>> model = Transformer(31, 2, exponent=2.0)
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
        layers: int = 2,
        heads: int = 2,
        dropout: float = 0.1,
        feature_scale: float = 1.0,
        **head_options: Any,
    ) -> None:
        super().__init__()
        self.feature_scale = feature_scale
        self.embedding = nn.Parameter(torch.randn(vocabulary, width) / width**0.5)
        self.position = nn.Parameter(torch.randn(inputs, width))
        self.layers = nn.ModuleList(EncoderLayer(width, heads, dropout) for _ in range(layers))
        self.head = make_head(head, width, vocabulary, **head_options)
        if tied:
            self.head.weight = self.embedding

    def forward(self, tokens_BT: Tensor, key: Tensor | None = None) -> Tensor:
        """Logits, (B, V); with a key (a 0-d int64 tensor) dropout is on, and the same key drops the same entries."""
        noise = None if key is None else Noise(key)
        x_BTD = embed(self.embedding, tokens_BT) + self.position
        for number, layer in enumerate(self.layers):
            # Only the last position is read: in the last layer the others are context, not queries.
            query_BQD = x_BTD[..., -1:, :] if number == len(self.layers) - 1 else x_BTD
            x_BTD = layer(query_BQD, x_BTD, noise) + query_BQD
        x_BD = x_BTD[..., -1, :]
        return self.head(x_BD if self.feature_scale == 1 else self.feature_scale * x_BD)
