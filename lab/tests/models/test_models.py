"""The two models against formulas and against torch's own layers."""

# B questions, T tokens a question, V vocabulary, D width

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harmax.heads import HEADS
from harmax_lab.models import MLP, MODELS, Transformer
from harmax_lab.models.embedding import embed
from harmax_lab.models.transformer import EncoderLayer


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def questions(vocabulary: int, inputs: int, count: int = 17) -> Tensor:
    return torch.randint(vocabulary, (count, inputs))


def close(got: Tensor, want: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_embedding_by_product_is_embedding_by_index_in_value_and_gradient(shape: tuple[int, ...]) -> None:
    weight = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    tokens, pull = torch.randint(5, shape), torch.randn(*shape, 4, dtype=torch.float64)
    got, want = embed(weight, tokens), weight[tokens]
    close(got, want, 0.0)
    (one,), (other,) = (torch.autograd.grad((rows * pull).sum(), weight) for rows in (got, want))
    close(one, other)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_the_standard_mlp_is_its_formula(inputs: int, bias: bool, tied: bool) -> None:
    model = MLP(11, inputs, head="linear", bias=bias, tied=tied, width=6, hidden=9).double()
    tokens_BT = questions(11, inputs)
    p = {name: parameter.detach() for name, parameter in model.named_parameters()}
    x = torch.cat([p["embedding"][tokens_BT[:, place]] for place in range(inputs)], 1)
    a = x @ p["hidden.weight"].T + p["hidden.bias"]
    h = (a * torch.sigmoid(a)) @ p["bottleneck.weight"].T + p["bottleneck.bias"]
    want = h @ (p["embedding"] if tied else p["head.weight"]).T + (p["head.bias"] if bias else 0)
    close(model(tokens_BT), want)


def test_the_harmonic_mlp_is_its_formula() -> None:
    model = MLP(11, 2, exponent=3.0, softening=1e-4, width=6, hidden=9).double()
    tokens_BT = questions(11, 2)
    x = model.embedding[tokens_BT].flatten(1)
    h = model.bottleneck(F.silu(model.hidden(x)))
    want = ((h[:, None] - model.embedding).square().sum(-1) + 1e-4) ** -1.5
    close(model(tokens_BT).softmax(-1), want / want.sum(-1, keepdim=True))


def torch_layer(layer: EncoderLayer, width: int, heads: int) -> nn.TransformerEncoderLayer:
    """torch's encoder layer with the same weights."""
    twin = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="relu", batch_first=True, norm_first=False)
    pairs = {
        twin.self_attn.in_proj_weight: torch.cat([layer.attention.query.weight, layer.attention.key_value.weight]),
        twin.self_attn.in_proj_bias: torch.cat([layer.attention.query.bias, layer.attention.key_value.bias]),
    }
    modules = (
        (twin.self_attn.out_proj, layer.attention.output),
        (twin.linear1, layer.expand),
        (twin.linear2, layer.shrink),
        (twin.norm1, layer.norm_attention),
        (twin.norm2, layer.norm_feed_forward),
    )
    for theirs, ours in modules:
        pairs.update({theirs.weight: ours.weight, theirs.bias: ours.bias})
    twin = twin.double()
    with torch.no_grad():
        for theirs, ours in pairs.items():
            theirs.copy_(ours)
    return twin.eval()


def shaken(model: nn.Module) -> nn.Module:
    """Move every parameter away from its special start: biases from 0, norms from 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(("width", "heads", "tokens"), [(16, 2, 2), (12, 3, 5), (8, 1, 1)])
def test_a_layer_is_torchs_encoder_layer(width: int, heads: int, tokens: int) -> None:
    layer = shaken(EncoderLayer(width, heads, 0.1).double())
    x_BTD = torch.randn(7, tokens, width, dtype=torch.float64)
    twin = torch_layer(layer, width, heads)
    close(layer(x_BTD, x_BTD), twin(x_BTD))
    # Its gradients too; torch's fast path for inference is off where they are wanted.
    pull = torch.randn_like(x_BTD)
    (ours,) = torch.autograd.grad((layer(x_BTD, x_BTD) * pull).sum(), layer.expand.weight)
    (theirs,) = torch.autograd.grad((twin(x_BTD) * pull).sum(), twin.linear1.weight)
    close(ours, theirs, 1e-11)


@pytest.mark.parametrize("inputs", [2, 3])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_the_transformer_is_torchs_layers_with_a_residual_around_each(layers: int, inputs: int, tied: bool) -> None:
    """torch computes every position in every layer: reading only the last one at the end must change nothing."""
    model = shaken(Transformer(11, inputs, layers=layers, tied=tied, head="linear").double())
    tokens_BT = questions(11, inputs)
    x_BTD = model.embedding[tokens_BT] + model.position
    for layer in model.layers:
        x_BTD = torch_layer(layer, 16, 2)(x_BTD) + x_BTD
    close(model(tokens_BT), x_BTD[:, -1] @ model.head.weight.T)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_every_head_is_a_head_of_both_models(name: str, tied: bool, head: str) -> None:
    model = MODELS[name](11, 3, head=head, tied=tied)
    assert model.embedding.shape == (11, 16)
    assert (model.embedding is model.head.weight) == tied
    logits_BV = model(questions(11, 3))
    assert logits_BV.shape == (17, 11)
    F.cross_entropy(logits_BV, torch.arange(17) % 11).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


@pytest.mark.parametrize("name", MODELS)
def test_a_tied_embedding_is_one_parameter(name: str) -> None:
    tied, untied = (sum(p.numel() for p in MODELS[name](11, 2, tied=tied).parameters()) for tied in (True, False))
    assert untied - tied == 11 * 16


def test_sizes_are_the_papers() -> None:
    assert sum(p.numel() for p in MLP(31, 2).parameters()) == 31 * 16 + 2 * 16 * 100 + 100 + 100 * 16 + 16
    attention, feed_forward, norms = 4 * (16 * 16 + 16), 16 * 64 + 64 + 64 * 16 + 16, 2 * 2 * 16
    transformer = sum(p.numel() for p in Transformer(31, 2).parameters())
    assert transformer == 31 * 16 + 2 * 16 + 2 * (attention + feed_forward + norms)


def test_attention_starts_as_torchs_does() -> None:
    ours, theirs = EncoderLayer(64, 4, 0.1).attention, nn.MultiheadAttention(64, 4)
    for weight in (ours.query.weight, ours.key_value.weight):
        assert weight.abs().max() <= theirs.in_proj_weight.abs().max() * 1.01
        assert weight.std().item() == pytest.approx(theirs.in_proj_weight.std().item(), rel=0.05)
    assert ours.output.weight.std().item() == pytest.approx(theirs.out_proj.weight.std().item(), rel=0.05)
    assert not any(layer.bias.any() for layer in (ours.query, ours.key_value, ours.output))


def test_a_key_turns_dropout_on_and_says_which_entries_fall() -> None:
    model, tokens = Transformer(11, 2), questions(11, 2)
    plain, one, again, other = (model(tokens, key) for key in (None, *map(torch.tensor, (5, 5, 6))))
    close(one, again, 0.0)
    close(plain, model.eval()(tokens), 0.0)
    for changed in (one, other):
        assert (changed != plain).any(-1).all()
    assert (one != other).any(-1).all()
    still = Transformer(11, 2, dropout=0.0)
    close(still(tokens, torch.tensor(5)), still(tokens), 0.0)


def test_an_mlp_has_no_dropout() -> None:
    model, tokens = MLP(11, 2), questions(11, 2)
    close(model(tokens, torch.tensor(5)), model(tokens), 0.0)
