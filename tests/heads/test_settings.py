"""Exponent, softening and scale are saved with a head, and another exponent never loads without a word."""

import copy

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from harmax import HarmonicHead, LearnableHarmonicHead
from harmax.heads.settings import Settings

EXPONENT = 27.712812921102035  # sqrt(768): a cast to bfloat16 would make it 27.75


def head(**settings) -> HarmonicHead:
    return HarmonicHead(6, 5, **{"exponent": EXPONENT, "scale": 0.25, **settings})


def test_the_settings_survive_safetensors_and_a_cast():
    state = load(save(head().to(torch.bfloat16).state_dict()))
    found = HarmonicHead.from_state_dict(state)
    assert (found.exponent, found.softening, found.scale) == (EXPONENT, 0.0, 0.25)
    assert found.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exponent": 4.0}, "exponent=27.7"),
        ({"softening": 0.5}, "softening=0"),
        ({"scale": 1.0}, "scale=0.25"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("assign", [True, False])
def test_other_settings_do_not_load(settings, message, strict, assign):
    other = head(**settings)
    with pytest.raises(RuntimeError, match=rf"`settings` must be those of this head.*{message}.*from_state_dict"):
        other.load_state_dict(head().state_dict(), strict=strict, assign=assign)


def test_a_scale_that_is_not_known_yet_is_taken_from_the_file():
    other = head(scale=None)
    other.load_state_dict(head().state_dict())
    assert other.scale == 0.25


def test_the_weights_of_a_linear_count_as_trained_on_features_as_they_are():
    other = head(scale=None)
    other.load_state_dict(nn.Linear(6, 5, bias=False).state_dict())
    other(100 * torch.randn(8, 6))
    assert other.scale == 1.0


def test_a_linear_refuses_the_state_of_a_head():
    with pytest.raises(RuntimeError, match="Unexpected key"):
        nn.Linear(6, 5, bias=False).load_state_dict(head().state_dict())


def test_what_is_saved_are_the_numbers_that_the_head_computes_with():
    changed = head()
    changed.exponent, changed.softening = 30.0, 0.125
    changed.settings.zero_()  # as an average of models would leave it
    assert Settings.decode(changed.state_dict()["settings"]) == Settings(30.0, 0.125, 0.25)
    assert HarmonicHead.from_state_dict(copy.deepcopy(changed).state_dict()).exponent == 30.0


def test_settings_that_were_averaged_are_refused():
    one, two = head().state_dict(), head(exponent=56.0).state_dict()
    mean = {key: (one[key].double() + two[key].double()) / 2 for key in one}
    with pytest.raises(RuntimeError, match="settings of a harmonic head must be 4 int64 numbers"):
        head().load_state_dict(mean)
    broken = {**one, "settings": torch.full((4,), -1)}  # a NaN as the softening
    with pytest.raises(RuntimeError, match="must be as a head has saved them"):
        head().load_state_dict(broken)


def test_a_learned_exponent_comes_from_its_parameter():
    learned = LearnableHarmonicHead(6, 5, exponent=EXPONENT, scale=0.25)
    learned.log_exponent.data.add_(1.0)
    other = LearnableHarmonicHead(6, 5, exponent=4.0, scale=0.25)
    other.load_state_dict(learned.state_dict())
    assert torch.equal(other.exponent, learned.exponent)
    old = {"weight": learned.weight.data, "log_exponent": learned.log_exponent.data[0]}  # as it was saved before
    other.load_state_dict(old)
    assert torch.equal(other.exponent, learned.exponent)


def test_a_state_without_a_head_is_named():
    with pytest.raises(ValueError, match=r"`state_dict` must have head\.weight and head\.settings, got .*weight"):
        HarmonicHead.from_state_dict(head().state_dict(), prefix="head.")
    inside = {f"head.{key}": value for key, value in head(prior=True).state_dict().items()}
    assert HarmonicHead.from_state_dict(inside, prefix="head.").prior is not None
