"""Numbers that are none: named, in no checkpoint, and a way to go on."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from harmax.train.checkpoint import find_checkpoints
from harmax.train.language.step import LanguageStep
from harmax.train.language.train import LanguageRecipe, pretrain
from harmax.train.loop import Training
from harmax.train.world import joined
from train.language.tiny import lines, spec, weights

SETTINGS = {"checkpoint_every": 4, "keep": 1}


def steps(output: Path) -> list[int]:
    return [found.step for found in find_checkpoints(output / "checkpoints")]


def poison_the_gradient(monkeypatch: pytest.MonkeyPatch, at: int, value: float) -> None:
    """Spoil one number of one gradient of one step, whose loss is still good."""
    take, calls = LanguageStep.__call__, []

    def spoil(self: LanguageStep, *arguments: Any) -> Any:
        calls.append(0)
        if len(calls) == at:
            weight = self.model.transformer.h[0].mlp.c_fc.bias
            hook = weight.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([0]), value))
        result = take(self, *arguments)
        if len(calls) == at:
            hook.remove()
        return result

    monkeypatch.setattr(LanguageStep, "__call__", spoil)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_step_is_named_though_it_was_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    poison_the_gradient(monkeypatch, 13, value)
    settings = spec(**{**SETTINGS, "checkpoint_every": 12}, log_every=10)
    message = r"^non-finite gradient at step 13; the checkpoint of step 12 is kept: lower `lr` .*--change-schedule\.$"
    with pytest.raises(FloatingPointError, match=message):
        pretrain(settings, tmp_path, device="cpu")
    assert steps(tmp_path) == [12]
    assert [line["step"] for line in lines(tmp_path)] == [1, 10, 12]


def test_a_gradient_that_only_overflows_its_norm_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison_the_gradient(monkeypatch, 3, 1e30)  # clipping makes it zero: every later loss would be a number
    with pytest.raises(FloatingPointError, match=r"gradient at step 3; there is no checkpoint yet: .* and start again"):
        pretrain(spec(**SETTINGS, log_every=10), tmp_path, device="cpu")


def test_a_step_that_would_be_saved_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison_the_gradient(monkeypatch, 8, math.nan)
    with pytest.raises(FloatingPointError, match="non-finite gradient at step 8; the checkpoint of step 4 is kept"):
        pretrain(spec(**SETTINGS), tmp_path, device="cpu")
    assert steps(tmp_path) == [4]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["weight", "moment"])
def test_weights_and_moments_that_are_no_numbers_are_not_saved(tmp_path: Path, where: str, value: float) -> None:
    with joined(spec(), "cpu") as world:
        recipe = LanguageRecipe(spec(**SETTINGS), world)
        training = Training(recipe, tmp_path)

        def poison(record: dict[str, Any]) -> None:
            if record["step"] == 8:
                weight = recipe.model.transformer.ln_f.weight
                spoiled = weight.detach() if where == "weight" else recipe.step.optimizer.state[weight]["exp_avg"]
                spoiled[3] = value

        with pytest.raises(FloatingPointError, match=r"non-finite weights or optimizer state after step 8; the check"):
            training.run(poison)
    assert steps(tmp_path) == [4]
    assert pretrain(spec(), tmp_path, device="cpu")["step"] == 20


def test_an_evaluation_that_comes_to_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguageStep, "evaluate", lambda self, batches: torch.tensor(math.nan))
    with pytest.raises(FloatingPointError, match="non-finite validation loss at step 10; the checkpoint of step 8"):
        pretrain(spec(**SETTINGS), tmp_path, device="cpu")
    assert steps(tmp_path) == [8]


def test_another_schedule_goes_on_from_a_checkpoint_if_asked_to(tmp_path: Path) -> None:
    pretrain(spec(steps=8, decay_steps=20), tmp_path, device="cpu")
    lower = spec(lr=2e-3, clip=0.5)
    with pytest.raises(ValueError, match=r"`lr` \(0.01 there, 0.002 here\), .* or add --change-schedule to resume"):
        pretrain(lower, tmp_path, device="cpu")
    with pytest.raises(ValueError, match=r"`seed` \(0 there, 1 here\); give the same values, or another outp[^,]*$"):
        pretrain(spec(seed=1), tmp_path, device="cpu", change_schedule=True)
    last = pretrain(lower, tmp_path, device="cpu", change_schedule=True)
    found = lines(tmp_path)
    assert [line["step"] for line in found] == [*range(1, 21)]
    assert found[7]["lr"] > 2e-3 > found[8]["lr"]
    pretrain(spec(), tmp_path / "undisturbed", device="cpu")
    found, others = weights(tmp_path), weights(tmp_path / "undisturbed")
    assert not torch.equal(found["transformer.wte.weight"], others["transformer.wte.weight"])
    assert pretrain(lower, tmp_path, device="cpu") == last  # its checkpoints are of the new schedule
