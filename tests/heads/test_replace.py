"""`replace_head` swaps a head and keeps everything else; it refuses what it would break."""

import pytest
import torch
from torch import nn

from harmax import replace_head


class Language(nn.Module):
    def __init__(self, tied: bool, bias: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.lm_head = nn.Linear(6, 11, bias=bias)
        if tied:
            self.lm_head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.lm_head(self.body(self.embedding(tokens)))


@pytest.mark.parametrize("tied", [True, False])
def test_replace_head_keeps_tying_keys_and_optimizer(tied):
    model = Language(tied)
    before = model.lm_head.weight
    keys = list(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters())
    head = replace_head(model, exponent=3.0)
    assert model.lm_head is head
    assert head.weight is before
    assert (model.embedding.weight is head.weight) == tied
    assert [key for key in model.state_dict() if key != "lm_head.settings"] == keys
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(model(tokens), head(model.body(model.embedding(tokens))))
    nn.functional.cross_entropy(model(tokens)[0], tokens[0]).backward()
    optimizer.step()
    assert before.grad is not None


def test_a_bias_becomes_the_prior():
    model = Language(False, bias=True)
    bias = model.lm_head.bias
    head = replace_head(model)
    assert head.prior is bias


def test_replace_head_replaces_every_name_of_the_module():
    model = Language(False)
    model.alias = model.lm_head
    head = replace_head(model, "alias")
    assert model.lm_head is head
    assert model.alias is head


def test_replace_head_does_not_lose_hooks_or_parametrizations():
    model = Language(False)
    handle = model.lm_head.register_forward_hook(lambda module, args, output: None)
    with pytest.raises(ValueError, match="must have no hooks"):
        replace_head(model)
    handle.remove()
    nn.utils.parametrizations.weight_norm(model.lm_head)
    with pytest.raises(TypeError, match="remove_parametrizations"):
        replace_head(model)


@pytest.mark.parametrize(
    ("model", "name", "error", "message"),
    [
        (Language(False), "lm_hed", ValueError, "must be one of body.0, lm_head, got 'lm_hed'; did you mean 'lm_head'"),
        (Language(False), "", ValueError, "must be one of body.0, lm_head"),
        (Language(False), "embedding", TypeError, "`name` must be .*nn.Linear, got 'embedding'.*Embedding"),
    ],
)
def test_replace_head_refuses_what_it_cannot_do(model, name, error, message):
    with pytest.raises(error, match=message):
        replace_head(model, name)
