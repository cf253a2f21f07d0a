"""A head's exponent travels with its weights, through every way of saving them."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from harmax import HarmonicHead
from tools.plain import assert_harmonic

EXPONENT = 27.71  # bfloat16 would round it to 27.75
FEATURES = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
ONE_PROCESS = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")  # as the tests mean it
MISMATCH = "settings` must be those of this head"
Load = Callable[[nn.Module, Path], object]


def head(exponent: float | None = EXPONENT, scale: float | None = None) -> nn.Sequential:
    return nn.Sequential(HarmonicHead(16, 5, exponent=exponent, scale=scale))


def save(model: nn.Module, folder: Path) -> None:
    torch.save(model.state_dict(), folder / "model.pt")
    safetensors.torch.save_model(model, folder / "model.safetensors")
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder / "dcp")


def read(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)


def from_dcp(model: nn.Module, folder: Path, **options: bool) -> None:
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=folder / "dcp")
    set_model_state_dict(model, state["model"], options=StateDictOptions(**options))


def in_place(model: nn.Module, folder: Path) -> None:
    """Load into the tensors of the model, without `load_state_dict`."""
    dcp.load({"model": model.state_dict()}, checkpoint_id=folder / "dcp")
    model(FEATURES)


LOADS: dict[str, Load] = {
    "strict": lambda model, folder: model.load_state_dict(read(folder)),
    "not strict": lambda model, folder: model.load_state_dict(read(folder), strict=False),
    "assign": lambda model, folder: model.load_state_dict(read(folder), assign=True),
    "safetensors": lambda model, folder: safetensors.torch.load_model(model, folder / "model.safetensors"),
    "dcp": from_dcp,
    "dcp, not strict": lambda model, folder: from_dcp(model, folder, strict=False),
    "dcp, full": lambda model, folder: from_dcp(model, folder, full_state_dict=True),
    "in place": in_place,
}


@ONE_PROCESS
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_a_head_comes_back_with_its_scale_or_another_exponent_raises(load: Load, tmp_path: Path) -> None:
    saved = head(scale=0.25)
    save(saved, tmp_path)
    same = head().eval()
    load(same, tmp_path)
    torch.testing.assert_close(same(FEATURES), saved(FEATURES), rtol=0, atol=0)
    assert_harmonic(FEATURES, same[0])
    assert same[0].scale == 0.25
    for wrong in (head(exponent=56.0), head(scale=0.5)):
        with pytest.raises((RuntimeError, ValueError), match=MISMATCH):
            load(wrong.eval(), tmp_path)


@ONE_PROCESS
def test_settings_that_were_loaded_in_place_are_not_lost_when_saving(tmp_path: Path) -> None:
    save(head(scale=0.25), tmp_path)
    for exponent in (EXPONENT, 56.0):
        model = head(exponent)
        dcp.load({"model": model.state_dict()}, checkpoint_id=tmp_path / "dcp")
        if exponent == EXPONENT:
            assert HarmonicHead.from_state_dict(model.state_dict(), "0.").scale == 0.25
        else:
            with pytest.raises(ValueError, match=r"got exponent=27\.7.*loads in place"):
                model.state_dict()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_casts_keep_the_exponent(dtype: torch.dtype) -> None:
    model = head(scale=0.25).to(dtype)
    back = HarmonicHead.from_state_dict(model.state_dict(), "0.")
    assert (back.exponent, back.scale, back.weight.dtype) == (EXPONENT, 0.25, dtype)
    torch.testing.assert_close(back(FEATURES.to(dtype)), model(FEATURES.to(dtype)))


def test_a_copy_is_independent() -> None:
    model = head()
    before, _ = copy.deepcopy(model), model(FEATURES)
    after = copy.deepcopy(model)
    assert before[0].scale is None
    assert after[0].scale == model[0].scale is not None
    torch.testing.assert_close(after(FEATURES), model(FEATURES))


def test_a_model_from_the_meta_device_loads_or_starts_anew() -> None:
    saved = head(scale=0.25)
    with torch.device("meta"):
        loaded, started = head(), head()
    loaded.load_state_dict(saved.state_dict(), assign=True)
    torch.testing.assert_close(loaded(FEATURES), saved(FEATURES))
    started.to_empty(device="cpu")
    started[0].reset_parameters()
    started(FEATURES)
    assert_harmonic(FEATURES, started[0])


def test_settings_of_another_module_are_not_ignored_by_a_functional_call() -> None:
    other = HarmonicHead(16, 5, exponent=9.0, scale=0.5)
    with pytest.raises(ValueError, match="got exponent=9"):
        torch.func.functional_call(head()[0], other.state_dict(), (FEATURES,))
