"""A small language model in plain torch that ends in a harmonic head, and its loss by hand."""

import torch
from torch import Tensor, nn

from harmax import HarmonicHead, replace_head

VOCABULARY, WIDTH, EXPONENT, SCALE = 11, 16, 5.0, 0.5
TOKENS = torch.arange(8).reshape(2, 4)


class Language(nn.Module):
    def __init__(self, tied: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=bias)
        if tied:
            self.lm_head.weight = self.embedding.weight

    def features(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.body(self.embedding(tokens)))

    def forward(self, tokens: Tensor, target: Tensor | None = None) -> Tensor:
        return self.lm_head(self.features(tokens), target)


def language(tied: bool = False, bias: bool = False, scale: float | None = SCALE) -> Language:
    torch.manual_seed(0)
    model = Language(tied, bias)
    replace_head(model, exponent=EXPONENT, scale=scale)
    return model


def log_probabilities(features: Tensor, head: HarmonicHead, weight: Tensor | None = None) -> Tensor:
    """By the definition, in float64: probabilities fall with a power of the distance to each center."""
    centers = (head.weight if weight is None else weight).double()
    distance = (head.scale * features.double()[..., None, :] - centers).square().sum(-1).sqrt()
    z = -head.exponent * distance.log()
    return (z if head.prior is None else z + head.prior.double()).log_softmax(-1)


def assert_harmonic(features: Tensor, head: nn.Module, weight: Tensor | None = None, atol: float = 1e-5) -> None:
    """A head must give the harmonic log-probabilities and the harmonic loss of its centers."""
    target = torch.zeros(features.shape[:-1], dtype=torch.int64)
    expected = log_probabilities(features, head, weight)
    torch.testing.assert_close(head(features).double(), expected, rtol=0, atol=atol)
    torch.testing.assert_close(head(features, target).double(), -expected[..., 0].mean(), rtol=0, atol=atol)
