"""Bad input gets an error that says what must hold, what came and what to do; never a silent wrong number."""

import pytest
import torch
from torch import nn

from harmax import HarmonicHead, HarmonicLoss, LossOptions, harmax, harmonic_loss, replace_head, squared_distance
from harmax.heads import GaussianHead, MinkowskiHead, StudentTHead

x, w, target = torch.randn(4, 6), torch.randn(5, 6), torch.tensor([0, 1, 2, 3])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: squared_distance(torch.ones(4, 6, dtype=torch.int64), w), TypeError, r"`input` must be a floating.*int64.*\.float\(\)"),
        (lambda: squared_distance(x, w[0]), ValueError, r"`weight` must have shape \(classes, features\).*got \(6,\)"),
        (lambda: squared_distance(x, w[:0]), ValueError, "at least one of each"),
        (lambda: squared_distance(x[:, :5], w), ValueError, r"`input` must have shape \(\.\.\., 6\).*got \(4, 5\)"),
        (lambda: squared_distance(torch.tensor(1.0), w), ValueError, r"got \(\)"),
        (lambda: harmonic_loss(x, w.long(), target), TypeError, "`linear_weight` must be a floating tensor, got torch.int64"),
        (lambda: harmonic_loss(x, w, target[:3]), ValueError, r"`target` must have shape \(4,\).*got \(3,\); flatten both or neither"),
        (lambda: harmonic_loss(x, w, target.int()), TypeError, r"must be int64, got torch.int32; convert it with \.long\(\)"),
        (lambda: harmonic_loss(x, w, torch.rand(4, 4)), ValueError, r"probabilities must have shape \(4, 5\).*got \(4, 4\)"),
        (lambda: harmonic_loss(x, w, torch.rand(4, 5), ignore_index=1), ValueError, "`ignore_index` must be left out"),
        (lambda: harmonic_loss(x, w, target, exponent=0), ValueError, "`exponent` must be a positive, finite number, got 0"),
        (lambda: harmonic_loss(x, w, target, exponent=-1.0), ValueError, "got -1.0"),
        (lambda: harmonic_loss(x, w, target, exponent=float("nan")), ValueError, "got nan"),
        (lambda: harmonic_loss(x, w, target, exponent=float("inf")), ValueError, "got inf"),
        (lambda: harmonic_loss(x, w, target, exponent=torch.ones(5)), ValueError, "must be a 0-d floating tensor"),
        (lambda: harmonic_loss(x, w, target, softening=-1e-4), ValueError, "`softening` must be zero or a positive.*got -0.0001"),
        (lambda: harmonic_loss(x, w, target, softening=float("nan")), ValueError, "got nan"),
        (lambda: harmonic_loss(x, w, target, reduction="average"), ValueError, "`reduction` must be one of mean, sum, none, got 'average'"),
        (lambda: harmonic_loss(x, w, target, impl="chunk"), ValueError, "`impl` must be one of auto, eager, chunked.*did you mean 'chunked'"),
        (lambda: harmonic_loss(x, w, target, label_smoothing=1.5), ValueError, r"must lie in 0\.\.1, got 1.5"),
        (lambda: harmonic_loss(x, w, target, weight=torch.ones(4)), ValueError, r"`weight` must be a tensor of shape \(5,\), got \(4,\)"),
        (lambda: harmonic_loss(x, w, target, exponent="two"), TypeError, "`exponent` must be a number, got 'two'"),
        (lambda: harmonic_loss(x, w, target, exponent=torch.tensor(-1.0)), ValueError, "`exponent` must be a positive, finite number, got -1.0"),
        (lambda: harmonic_loss(x, w, target, softening="a"), TypeError, "`softening` must be a number, got 'a'"),
        (lambda: harmonic_loss(x, w, target, impl=None), ValueError, "`impl` must be one of auto, eager, chunked, triton, got None"),
        (lambda: harmonic_loss(x, w, target, options={"chunk_rows": 2}), TypeError, "`options` must be a LossOptions, got dict"),
        (lambda: harmonic_loss(x, w, target, weight=[1.0] * 5), ValueError, r"`weight` must be a tensor of shape \(5,\), got list"),
        (lambda: harmonic_loss([[1.0]], w, target), TypeError, "`input` must be a tensor, got list"),
        (lambda: squared_distance(x[:, :0], w[:, :0]), ValueError, "at least one of each"),
        (lambda: LossOptions(chunk_rows=0), ValueError, "`chunk_rows` must be a whole number from 1 on, got 0"),
        (lambda: harmax(torch.tensor([1, 2]), 1.0), TypeError, "`distance` must be a floating tensor"),
        (lambda: harmax(torch.tensor([-1.0, 2.0]), 2.0), ValueError, "`distance` must not be negative, got -1.0"),
        (lambda: harmax(torch.ones(2), None), TypeError, "`exponent` must be a number, got None"),
        (lambda: HarmonicLoss(4, 3, reduction="men"), ValueError, "`reduction` must be one of mean, sum, none, got 'men'"),
        (lambda: HarmonicHead(6, 5).init_from_class_means(x, target.float()), TypeError, "`target` must hold class indices as int64"),
        (lambda: harmax(torch.ones(2), 0.0), ValueError, "`exponent` must be a positive"),
        (lambda: HarmonicHead(0, 3), ValueError, "must be at least 1, got 0 and 3"),
        (lambda: HarmonicHead(4, 3, exponent=-2), ValueError, "`exponent` must be a positive"),
        (lambda: HarmonicHead(4, 3, softening=-2), ValueError, "`softening` must be zero or a positive"),
        (lambda: HarmonicHead.from_linear(nn.Linear(4, 3)), ValueError, "must have no bias, got one.*bias=False"),
        (lambda: HarmonicHead(6, 3).init_from_class_means(x, target[:2]), ValueError, "`features` must have shape"),
        (lambda: HarmonicHead(6, 3).init_from_class_means(x, target), ValueError, "from 0 to 2, got 0 to 3"),
        (lambda: StudentTHead(4, 3, softening=0.0), ValueError, "that is HarmonicHead"),
        (lambda: GaussianHead(4, 3, precision=0.0), ValueError, "`precision` must be above 0"),
        (lambda: MinkowskiHead(4, 3, order=0.5), ValueError, "`order` must be at least 1"),
    ],
)  # fmt: skip
def test_error_says_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("impl", ["eager", "chunked"])
@pytest.mark.parametrize("wrong", [5, -1, -99])
def test_target_out_of_range(impl, wrong):
    bad = torch.tensor([0, wrong, 2, 3])
    with pytest.raises(ValueError, match=f"from 0 to 4 or ignore_index .-100., got {wrong}; check the labels"):
        harmonic_loss(x, w, bad, impl=impl)
    with pytest.raises(ValueError, match=f"got {wrong}"):
        harmonic_loss(x, w, bad, impl=impl, options=LossOptions(check_targets=True))


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
    assert list(model.state_dict()) == keys
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(model(tokens), head(model.body(model.embedding(tokens))))
    nn.functional.cross_entropy(model(tokens)[0], tokens[0]).backward()
    optimizer.step()
    assert before.grad is not None


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
        (Language(False), "embedding", TypeError, "must be that of a plain nn.Linear, got 'embedding', a Embedding"),
        (Language(False, bias=True), "lm_head", ValueError, "must have no bias.*model.lm_head.bias = None"),
    ],
)
def test_replace_head_refuses_what_it_cannot_do(model, name, error, message):
    with pytest.raises(error, match=message):
        replace_head(model, name)
