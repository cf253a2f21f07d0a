"""Averages of models: the copy that is averaged computes with the scale of the model that trains."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from harmax import HarmonicHead, LearnableHarmonicHead
from harmax.heads.match import Hardening
from tools.plain import TOKENS, Language, assert_harmonic, language

EMA = {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}


def train(model: Language, average: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(TOKENS, TOKENS).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)


@pytest.mark.parametrize("averaging", [{}, EMA], ids=["equal", "exponential"])
def test_an_average_made_before_training_has_the_scale_that_training_finds(averaging: dict[str, object]) -> None:
    model = language(scale=None)
    average = AveragedModel(model, **averaging)
    train(model, average)
    copy = average.module.eval()
    assert copy.lm_head.scale == model.lm_head.scale is not None
    assert not torch.equal(copy.lm_head.weight, model.lm_head.weight)
    assert_harmonic(copy.features(TOKENS), copy.lm_head)
    saved = HarmonicHead.from_state_dict(average.state_dict(), "module.lm_head.")
    torch.testing.assert_close(saved(copy.features(TOKENS)), copy(TOKENS))


@pytest.mark.parametrize("averaging", [{}, EMA], ids=["equal", "exponential"])
def test_averaged_buffers_are_harmless_or_raise(averaging: dict[str, object]) -> None:
    known, unknown = language(), language(scale=None)
    for model in (known, unknown):
        average = AveragedModel(model, use_buffers=True, **averaging)
        train(model, average)
        copy = average.module
        if model is known:
            assert_harmonic(copy.features(TOKENS), copy.lm_head.eval())
            continue
        state = copy.state_dict()
        with pytest.raises(ValueError, match="average of models with use_buffers=True; leave use_buffers out"):
            copy.eval()(TOKENS)
        with pytest.raises(RuntimeError, match="average only the floating-point tensors"):
            language(scale=None).load_state_dict(state)


def average(states: list[dict[str, Tensor]], floating: bool) -> dict[str, Tensor]:
    def mean(key: str) -> Tensor:
        tensors = [state[key] for state in states]
        if floating and not tensors[0].is_floating_point():
            return tensors[0]
        return torch.stack(tensors).double().mean(0).to(tensors[0].dtype)

    return {key: mean(key) for key in states[0]}


def test_an_average_of_checkpoints_must_leave_the_settings_alone() -> None:
    states = [language(scale=scale).state_dict() for scale in (0.25, 0.5)]
    with pytest.raises(RuntimeError, match="average only the floating-point tensors of checkpoints"):
        language(scale=None).load_state_dict(average(states, floating=False))
    model = language(scale=None)
    model.load_state_dict(average([language().state_dict() for _ in range(2)], floating=True))
    assert model.lm_head.scale == 0.5


def test_a_learned_exponent_is_averaged() -> None:
    model = nn.Sequential(LearnableHarmonicHead(16, 5, exponent=4.0, scale=1.0))
    average = AveragedModel(model)
    for exponent in (4.0, 9.0):
        model[0].log_exponent.data.fill_(math.log(exponent))
        average.update_parameters(model)
    assert average.module[0].exponent.item() == pytest.approx(6.0)


def test_an_average_over_a_hardening_raises_because_it_has_no_exponent() -> None:
    head = HarmonicHead.from_linear(nn.Linear(8, 3), match=True, feature_length=2.0)
    model, hardening = nn.Sequential(head), Hardening(head, steps=2)
    average = AveragedModel(model)
    hardening.step()
    average.update_parameters(model)
    with pytest.raises(ValueError, match="settings` must be those of this head"):
        average.module(torch.randn(4, 8))
