"""The control arms: what their loss is, what their limit is, and what a saved one gives.

Shape suffixes: B sequences, T tokens, V classes, D features.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2LMHeadModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from harmax.data.text import TokenShards
from harmax.functional import harmonic_loss
from harmax.train.language.gaussian import GaussianGPT2LMHeadModel, GaussianTokenHead
from harmax.train.language.model import NextTokenLoss, build_model
from harmax.train.language.train import pretrain
from train.language.tiny import lines, spec

CONTROLS: list[dict[str, Any]] = [
    {"head": "linear", "logit_scale": 3.0},
    {"head": "gaussian"},
    {"head": "gaussian", "logit_scale": 2.5},
    {"head": "gaussian", "logit_scale": 2.5, "tied": False},
]
NAMES = [" ".join(map(str, control.values())) for control in CONTROLS]


@pytest.mark.parametrize("control", CONTROLS, ids=NAMES)
def test_the_loss_and_its_gradient_are_the_formula(control: dict[str, Any]) -> None:
    settings = spec(**control)
    model = build_model(settings)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # norms of about 1.6, so that half their squares count
    inputs_BT, targets_BT = torch.randint(50, (2, 2, 16))
    loss = NextTokenLoss(model, settings)(inputs_BT, targets_BT)
    got = torch.autograd.grad(loss, model.lm_head.weight)[0]

    twin = build_model(settings)
    twin.load_state_dict(model.state_dict())
    twin.double()
    h_BTD, w_VD = twin.transformer(inputs_BT).last_hidden_state, twin.lm_head.weight[:50]
    z_BTV = torch.einsum("btd,vd->btv", h_BTD, w_VD)
    if settings.head == "gaussian":
        z_BTV = -0.5 * (h_BTD[:, :, None] - w_VD).square().sum(-1)
    p_BTV = torch.softmax(settings.logit_scale * z_BTV, -1)
    want = -p_BTV.gather(-1, targets_BT[..., None]).log().sum()
    torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=0.0)
    wanted = torch.autograd.grad(want, twin.lm_head.weight)[0]
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)
    if not settings.tied:
        assert got[50:].abs().max() == 0


def test_the_gaussian_head_is_the_harmonic_one_where_distances_are_alike() -> None:
    torch.manual_seed(0)
    distance, scale = 1e3, 2.0
    far = distance * torch.nn.functional.normalize(torch.randn(7, 12, dtype=torch.float64), dim=1)
    x = 1e-3 * torch.randn(5, 12, dtype=torch.float64)  # squared distances differ by a few units in a million
    target = torch.arange(5)
    found = []
    for harmonic in (True, False):
        a, w = x.clone().requires_grad_(), torch.nn.Parameter(far.clone())
        if harmonic:
            loss = harmonic_loss(a, w, target, exponent=scale * distance**2)
        else:
            loss = torch.nn.functional.cross_entropy(GaussianTokenHead(w, scale)(a), target)
        loss.backward()  # type: ignore[union-attr]
        found.append([tensor.detach() for tensor in (loss, a.grad, w.grad)])  # type: ignore[union-attr]
    for got, want in zip(*found, strict=True):
        assert (got - want).norm() < 1e-4 * want.norm()
    assert found[0][0] > 0.5, "several classes compete"


def test_norms_are_those_of_the_rounded_weight_under_autocast() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 16), torch.nn.Parameter(torch.randn(5, 16))
    with torch.autocast("cpu", torch.bfloat16):
        z, product = GaussianTokenHead(weight, 2.0)(x), torch.nn.functional.linear(x, weight)
    assert (z.dtype, product.dtype) == (torch.float32, torch.bfloat16)
    rounded = weight.bfloat16().float()
    torch.testing.assert_close(z, 2 * product.float() - rounded.square().sum(1))
    assert not torch.equal(z, 2 * product.float() - weight.square().sum(1))


@pytest.mark.parametrize("control", CONTROLS, ids=NAMES)
def test_a_saved_model_has_the_trained_probabilities(tmp_path: Path, control: dict[str, Any]) -> None:
    pretrain(spec(**control, steps=3), tmp_path, device="cpu")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert type(model) is (GPT2LMHeadModel if control["head"] == "linear" else GaussianGPT2LMHeadModel)
    assert model.lm_head.weight.shape == (50, 16)
    assert (model.lm_head.weight is model.transformer.wte.weight) == control.get("tied", True)
    val = TokenShards(tmp_path / "tokens", "val")
    chosen = np.unique(np.linspace(0, val.count_windows(16) - 1, 7).astype(np.int64))
    tokens_BT = torch.from_numpy(val.read_windows(chosen, 16))
    with torch.no_grad():
        log_p_BTV = model(tokens_BT[:, :-1]).logits.log_softmax(-1)
    loss = -log_p_BTV.gather(-1, tokens_BT[:, 1:, None]).mean()
    assert lines(tmp_path)[-1]["val_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_transformers_alone_does_not_know_a_gaussian_model() -> None:
    model = build_model(spec(head="gaussian", logit_scale=2.0))
    assert model.config.model_type not in CONFIG_MAPPING_NAMES
    assert model.config.to_dict()["logit_scale"] == 2.0


def test_a_gaussian_model_is_resized_and_generates() -> None:
    model = build_model(spec(head="gaussian", logit_scale=2.0)).eval()
    model.resize_token_embeddings(53, mean_resizing=False)
    assert isinstance(model.lm_head, GaussianTokenHead)
    assert (model.lm_head.scale, model.lm_head.weight is model.transformer.wte.weight) == (2.0, True)
    tokens = model.generate(torch.tensor([[1, 2]]), max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert tokens.shape == (1, 5)
    labels = torch.tensor([[1, 2, 3]])
    output = model(labels, labels=labels)
    want = torch.nn.functional.cross_entropy(output.logits[0, :-1], labels[0, 1:])
    torch.testing.assert_close(output.loss, want)


def test_scales_are_told_apart(tmp_path: Path) -> None:
    first = spec(head="gaussian", logit_scale=2.0, steps=2, decay_steps=4)
    pretrain(first, tmp_path, device="cpu")
    with pytest.raises(ValueError, match=r"`logit_scale` \(2.0 there, 3.0 here\); give"):
        pretrain(spec(head="gaussian", logit_scale=3.0, steps=4), tmp_path, device="cpu")
    with pytest.raises(ValueError, match=r"`head` \(gaussian there, linear here\); give"):
        pretrain(spec(head="linear", logit_scale=2.0, steps=4), tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logit_scale": 2.0}, "`logit_scale` must be 1 with the harmonic head"),
        ({"head": "linear", "logit_scale": 0.0}, "`logit_scale` must be a positive, finite number, got 0.0"),
        ({"head": "linear", "logit_scale": float("nan")}, "`logit_scale` must be a positive, finite number, got nan"),
        ({"head": "gausian"}, "`head` must be one of harmonic, linear, gaussian, got 'gausian'; did you mean 'gauss"),
        ({"head": "gaussian", "learn_exponent": True}, "must go with the harmonic head, got the gaussian one"),
    ],
)
def test_a_control_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**fields)
