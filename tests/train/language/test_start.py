"""How features and centers start, and how fast the centers learn."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harmax.train.language.model import build_model
from harmax.train.language.settings import PretrainSpec
from harmax.train.language.step import LanguageStep
from harmax.train.language.train import pretrain
from harmax.train.world import World
from train.language.tiny import lines, spec, weights

ALONE = World(0, 1, torch.device("cpu"))


@pytest.mark.parametrize("head", ["harmonic", "linear"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_last_norm_and_the_centers_start_as_asked_and_nothing_else_changes(head: Any, tied: bool) -> None:
    usual, other = (
        build_model(spec(head=head, tied=tied, **own)) for own in ({}, {"norm_gain": 0.25, "center_std": 1})
    )
    for (name, one), two in zip(usual.named_parameters(), other.parameters(), strict=True):
        own = name == "lm_head.weight" or (tied and name == "transformer.wte.weight")
        wanted = 50 * one if own else one / 4 if name == "transformer.ln_f.weight" else one
        torch.testing.assert_close(two[:50], wanted[:50], msg=name)  # the rows beyond are padding


def test_a_gain_and_the_factor_on_the_features_do_the_same_at_the_start() -> None:
    tokens = torch.arange(12)[None]
    scaled = build_model(spec(exponent=6.0)).eval()
    gained = build_model(spec(exponent=6.0, scale=1.0, norm_gain=scaled.lm_head.scale)).eval()
    assert scaled.lm_head.scale not in (None, 1.0)
    torch.testing.assert_close(gained(tokens).logits, scaled(tokens).logits)


@pytest.mark.parametrize("learn_exponent", [True, False])
def test_the_factor_can_go_into_the_gain_of_the_last_norm(learn_exponent: bool) -> None:
    tokens = torch.arange(12)[None]
    one, other = (
        build_model(spec(exponent=6.0, start=start, learn_exponent=learn_exponent)).eval()
        for start in ("factor", "gain")
    )
    assert other.lm_head.scale == other.config.harmonic_scale == 1.0
    torch.testing.assert_close(other.transformer.ln_f.weight, one.lm_head.scale * one.transformer.ln_f.weight)
    torch.testing.assert_close(other(tokens).logits, one(tokens).logits)


def test_a_run_that_starts_with_a_small_gain_learns_and_is_resumed(tmp_path: Path) -> None:
    fields = {"start": "gain", "steps": 20, "checkpoint_every": 10, "lr": 3e-2, "exponent": 8.0}
    pretrain(spec(**fields), tmp_path / "whole", device="cpu")
    pretrain(spec(**{**fields, "steps": 10, "decay_steps": 20}), tmp_path / "parts", device="cpu")
    pretrain(spec(**fields), tmp_path / "parts", device="cpu")
    found, wanted = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    first, *_, last = (line["val_loss"] for line in lines(tmp_path / "whole") if "val_loss" in line)
    assert last < first
    before = build_model(spec(**fields)).transformer.ln_f.weight
    assert (wanted["transformer.ln_f.weight"] / before - 1).abs().max() > 0.1  # the gain is trained


@pytest.mark.parametrize(
    "fields",
    [{"scale": 0.5}, {"softening": 1.0}, {"norm_gain": 0.5}, {"head": "linear"}, {"head": "gaussian"}],
)
def test_a_small_gain_that_nothing_decides_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="`start` gain must go with"):
        spec(start="gain", **fields)
    with pytest.raises(ValueError, match="`start` must be one of"):
        spec(start="norm")


@pytest.mark.parametrize("tied", [True, False])
def test_centers_have_a_learning_rate_of_their_own(tied: bool) -> None:
    settings = spec(tied=tied, center_lr=8.0, weight_decay=0.0, clip=0.0)
    step = LanguageStep(settings, ALONE)
    before = {name: value.detach().clone() for name, value in step.model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(50, (settings.sequences, settings.context + 1), generator=generator)
    micro_batches = tokens.split(settings.micro_batch)
    step(iter([(one[:, :-1], one[:, 1:]) for one in micro_batches]), rate=1e-3)
    for name, value in step.model.named_parameters():
        moved = (value - before[name]).abs().max().item()  # Adam's first step is the learning rate, for any gradient
        own = name == ("transformer.wte.weight" if tied else "lm_head.weight")
        assert moved == pytest.approx(8e-3 if own else 1e-3, rel=1e-2), name


def test_a_run_that_is_resumed_keeps_the_centers_learning_rate(tmp_path: Path) -> None:
    fields = {"center_lr": 3.0, "norm_gain": 0.5, "steps": 6, "checkpoint_every": 3}
    pretrain(spec(**fields), tmp_path / "whole", device="cpu")
    pretrain(spec(**{**fields, "steps": 3, "decay_steps": 6}), tmp_path / "parts", device="cpu")
    pretrain(spec(**fields), tmp_path / "parts", device="cpu")
    found, wanted = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("name", ["norm_gain", "center_std", "center_lr"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_size_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be a positive, finite number"):
        spec(**{name: value})


def test_older_checkpoints_mean_what_they_meant() -> None:
    from harmax.train.language.train import LanguageRecipe

    before = {
        name: value for name, value in spec(scale=1.0).identity.items() if name not in LanguageRecipe.meant_before
    }
    assert {**LanguageRecipe.meant_before, **before, "center_std": None} == spec(scale=1.0).identity
    assert PretrainSpec(head="linear", generated=True).identity["scale"] == 1.0
