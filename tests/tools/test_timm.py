"""A timm model whose classifier was replaced: it trains, is averaged, saved and loaded, and never becomes linear."""

import copy
import importlib.util
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harmax import HarmonicHead, replace_head
from harmax.timm import create_model
from tools.plain import assert_harmonic
from tools.torchvision_stub import torchvision_for_timm

if importlib.util.find_spec("timm") is None:
    pytest.skip("timm is not installed", allow_module_level=True)
with torchvision_for_timm():
    import timm
    from timm.loss import SoftTargetCrossEntropy
    from timm.models import load_checkpoint
    from timm.utils import CheckpointSaver, ModelEmaV3

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TARGET = torch.tensor([0, 1, 2, 3])
pytestmark = pytest.mark.filterwarnings("ignore:.*_register_pytree_node.*:FutureWarning")


def model(name: str = "resnet18", classifier: str = "fc", **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    settings = {"exponent": 5.0, **settings}
    network = timm.create_model(name, num_classes=5)
    replace_head(network, classifier, **settings)
    return network


def pooled(network: nn.Module) -> Tensor:
    return network.forward_head(network.forward_features(IMAGES), pre_logits=True)


def train(network: nn.Module, average: ModelEmaV3 | None = None) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    for _ in range(2):
        network.get_classifier()(pooled(network.train()), TARGET).backward()
        optimizer.step()
        optimizer.zero_grad()
        if average is not None:
            average.update(network)
    return optimizer


@pytest.mark.parametrize(("name", "classifier"), [("resnet18", "fc"), ("vit_tiny_patch16_224", "head")])
def test_a_classifier_with_a_bias_becomes_a_harmonic_head(name: str, classifier: str) -> None:
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=5, **({"img_size": 32} if "vit" in name else {})).eval()
    bias = network.get_classifier().bias
    head = replace_head(network, classifier, exponent=5.0, scale=0.5)
    assert network.get_classifier() is head
    assert head.prior is bias
    assert_harmonic(pooled(network).detach(), head)
    torch.testing.assert_close(network(IMAGES), head(pooled(network)))
    torch.testing.assert_close(
        SoftTargetCrossEntropy()(network(IMAGES), torch.eye(5)[TARGET]), head(pooled(network), TARGET)
    )


FAMILIES = {
    "resnet18": "fc",
    "convnext_atto": "head.fc",
    "vit_tiny_patch16_224": "head",
    "mobilenetv3_small_050": "classifier",
    "efficientvit_b0": "head.classifier.4",
    "regnetx_002": "head.fc",
}


@pytest.mark.parametrize(("name", "classifier"), FAMILIES.items(), ids=FAMILIES)
def test_a_model_is_built_with_a_harmonic_head(name: str, classifier: str) -> None:
    torch.manual_seed(0)
    network = create_model(name, num_classes=5, exponent=6.0, **({"img_size": 32} if "vit_tiny" in name else {}))
    head = network.get_classifier()
    assert type(head) is HarmonicHead
    assert network.get_submodule(classifier) is head
    assert head.weight.std() > 0, "some models of timm start their classifier at zero"
    nn.functional.cross_entropy(network.train()(IMAGES), TARGET).backward()
    assert head.scale is not None
    assert head.weight.grad.abs().max() > 0
    assert network.eval()(IMAGES).exp().sum(1).allclose(torch.ones(4))


def test_resetting_the_classifier_of_a_built_model_keeps_it_harmonic() -> None:
    network = create_model("resnet18", num_classes=5, exponent=6.0, softening=0.1)
    for one in (network, copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        before = one.get_classifier()
        one.reset_classifier(7, "max")
        head = one.get_classifier()
        assert (type(head), head.out_features, head.exponent, head.softening) == (HarmonicHead, 7, 6.0, 0.1)
        assert head is not before
        assert one.eval()(IMAGES).shape == (4, 7)
    assert copy.deepcopy(network).get_classifier() is not network.get_classifier()
    network.reset_classifier(0)
    assert network.eval()(IMAGES).shape == (4, 512)
    network.reset_classifier(3)
    assert type(network.get_classifier()) is HarmonicHead


def test_a_built_model_takes_the_checkpoint_of_another(tmp_path: Path) -> None:
    network = create_model("resnet18", num_classes=5, exponent=6.0)
    saver = CheckpointSaver(network, train(network), checkpoint_dir=str(tmp_path))
    saver.save_checkpoint(epoch=0, metric=1.0)
    file = str(tmp_path / "last.pth.tar")
    again = create_model("resnet18", num_classes=5, exponent=6.0, checkpoint_path=file)
    assert again.get_classifier().scale == network.get_classifier().scale is not None
    torch.testing.assert_close(again.eval()(IMAGES), network.eval()(IMAGES))
    with pytest.raises(RuntimeError, match="must be those of this head"):
        create_model("resnet18", num_classes=5, exponent=9.0, checkpoint_path=file)


def test_a_pretrained_classifier_is_kept_for_its_own_classes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the network: timm loads the weights from a file here."""
    source = timm.create_model("resnet18", num_classes=1000)
    torch.nn.init.normal_(source.fc.weight, 7.0)

    def read(model: nn.Module, *arguments: Any, **options: Any) -> None:
        if model.num_classes == 1000:
            model.load_state_dict(source.state_dict())

    monkeypatch.setattr("timm.models._builder.load_pretrained", read)
    assert torch.equal(create_model("resnet18", pretrained=True).fc.weight, source.fc.weight)
    assert create_model("resnet18", pretrained=True, num_classes=5).fc.weight.abs().max() < 1


@pytest.mark.parametrize("name", ["levit_128", "dla34", "volo_d1_224"])
def test_a_model_that_does_not_end_in_one_linear_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"must end in one Linear .* num_classes=0, which gives features"):
        create_model(name, num_classes=5)


def test_resetting_the_classifier_of_a_changed_model_gives_a_linear() -> None:
    network = model()
    network.reset_classifier(7)
    assert type(network.get_classifier()) is nn.Linear
    assert replace_head(network, network.get_classifier(name_only=True)).out_features == 7


def test_checkpoints_of_timm_bring_the_head_back_or_raise(tmp_path: Path) -> None:
    network, average = model(), None
    average = ModelEmaV3(network, decay=0.5)
    optimizer = train(network, average)
    saver = CheckpointSaver(network, optimizer, model_ema=average, checkpoint_dir=str(tmp_path))
    saver.save_checkpoint(epoch=0, metric=1.0)
    file = str(tmp_path / "last.pth.tar")
    for use_average, saved in ((False, network), (True, average.module)):
        loaded = model()
        load_checkpoint(loaded, file, use_ema=use_average)
        head = loaded.get_classifier()
        assert head.scale == network.fc.scale is not None
        torch.testing.assert_close(loaded.eval()(IMAGES), saved.eval()(IMAGES))
        assert_harmonic(pooled(loaded).detach(), head)
    with pytest.raises(RuntimeError, match="must be those of this head"):
        load_checkpoint(model(exponent=9.0), file)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*fc\.settings"):
        load_checkpoint(timm.create_model("resnet18", num_classes=5), file)


@pytest.mark.parametrize("foreach", [True, False])
def test_a_moving_average_has_the_scale_that_training_finds(foreach: bool) -> None:
    network = model()
    average = ModelEmaV3(network, decay=0.9, foreach=foreach)
    train(network, average)
    head = average.module.get_classifier()
    assert HarmonicHead.from_state_dict(average.module.state_dict(), "fc.").scale == network.fc.scale is not None
    assert_harmonic(pooled(average.module).detach(), head)
