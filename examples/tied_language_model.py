"""A small language model with tied embedding, before and after `replace_head`, with the fused loss.

    python examples/tied_language_model.py

The fused loss never makes the (tokens, vocabulary) matrix of logits when that is large, and gives the
accuracy from the same pass.

    pip install harmax
"""

import argparse

import torch
from torch import nn

from harmax import replace_head

TEXT = "a center is a point a person can read and a distance is a number a person can check. " * 40


class Model(nn.Module):
    """Embedding, one recurrent layer, LayerNorm, and a head that shares the embedding's weight."""

    def __init__(self, vocabulary: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.body = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.embedding.weight

    def features(self, tokens: torch.Tensor) -> torch.Tensor:
        """What the head sees, (batch, length, width)."""
        return self.norm(self.body(self.embedding(tokens))[0])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of the next token with a harmonic head, so sampling code needs no change."""
        return self.lm_head(self.features(tokens))


def main(steps: int = 200) -> float:
    """Train on one sentence and return the share of next characters that the nearest center gets right."""
    torch.manual_seed(0)
    letters = sorted(set(TEXT))
    tokens = torch.tensor([letters.index(letter) for letter in TEXT])
    model = Model(len(letters))
    head = replace_head(model, "lm_head")
    assert model.embedding.weight is head.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        starts = torch.randint(len(tokens) - 65, (16,))
        batch = torch.stack([tokens[start : start + 65] for start in starts])
        loss, _, hit = head(model.features(batch[:, :-1]), batch[:, 1:], return_stats=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {loss.item():.3f}  next character right {hit.float().mean():.1%}")
    return hit.float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    main(parser.parse_args().steps)
