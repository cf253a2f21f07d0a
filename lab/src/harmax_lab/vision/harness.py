"""The public CIFAR-10 speedrun, airbench94_muon.py, with another head and loss. This module contains no code of it.

The file (KellerJordan/cifar10-airbench) is imported as it is. Some names that it looks up while it trains are replaced,
and only in its own namespace: the last layer of its network, its `F.cross_entropy`, the learning rate and the weight
decay of the last layer in its `torch.optim.SGD`, the folder of its images, and what it prints. Its optimizer, network,
schedule, augmentation, tests and clock stay. Without a GPU the host's clock replaces CUDA's, nothing is compiled, and
numbers are float32, because half precision is very slow on CPUs. This only shows that everything works; the times mean
nothing.
"""

# B images, D features, V classes

import importlib
import importlib.util
import math
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harmax.data.images import Images
from harmax.kernels.distance import direct_distances
from harmax.kernels.eager import logits, softened_distance

NEEDED = ("CifarNet", "CifarLoader", "main", "print_training_details")
COMPILED = "max-autotune"
"""How the public file compiles its network."""


class Run(NamedTuple):
    """What the harness measured."""

    accuracy: float
    """With its test-time augmentation."""
    accuracy_without: float
    seconds: float
    """By its own clock: training and the last test, without loading, tests in between and compilation."""
    diverged_at: int | None
    """The epoch after which a weight of the head was not finite."""


class DistanceHead(nn.Module):
    r"""Harmonic logits as a last layer that the harness divides by the number of features.

    .. math:: z_j = -\tfrac{n}{2} \log(\|g x - w_j\|^2 + a)

    Centers start as the weight of the public head does, with a standard deviation of 1. All numbers are tensors, so
    that one compiled graph serves every setting.
    """

    exponent: Tensor
    scale: Tensor
    softening: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features))
        for name in ("exponent", "scale", "softening"):
            self.register_buffer(name, torch.ones(()))

    def start(self) -> None:
        """Draw the centers."""
        with torch.no_grad():
            nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
            self.weight.div_(self.weight.std())

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return the logits times the number of features, (B, V), float32."""
        t_BV = softened_distance(x_BD.float() * self.scale, self.weight, self.softening)
        return logits(t_BV, self.exponent) * x_BD.shape[1]


class Harness:
    """The public file, ready to train its network or one with a harmonic head.

    Args:
        path: of the file.
        device: where to train.
    """

    def __init__(self, path: Path, device: str) -> None:
        self.device = torch.device(device)
        self._script = load_script(path)
        self._head: Any = None
        self._images = Path()
        self._settings: Mapping[str, float] = {}
        self._seen: list[dict[str, Any]] = []
        self._warm: set[int] = set()
        self._exchange()

    def build(self, *, harmonic: bool) -> Any:
        """Return the public network, or the same one with a harmonic head."""
        model: Any = self._script.CifarNet()
        if harmonic:
            linear, reset = model.head, model.reset
            model.head = DistanceHead(linear.in_features, linear.out_features)

            def restart() -> None:
                reset()
                model.head.start()

            model.reset = restart
        model.to(self.device, memory_format=torch.channels_last)
        if self.device.type == "cuda":
            model.compile(mode=COMPILED)
        else:
            model.float()
        return model

    def run(self, model: nn.Module, images: Path, seed: int, settings: Mapping[str, float]) -> Run:
        """Train a network from its start, and test it.

        Args:
            model: from `build`; a compiled one is trained on made-up labels first, as the public file does.
            images: the folder with train.pt and test.pt.
            seed: of the weights, the order of the images and their augmentation.
            settings: `head_lr`, `head_decay`, `label_smoothing`; `logit_scale` of the public head; `exponent`, `scale`
                and `softening` of a harmonic one. What is left out is as in the public file.
        """
        self._head, self._images, self._settings = model.head, images, settings
        for name in ("exponent", "scale", "softening"):
            if name in settings:
                getattr(self._head, name).fill_(settings[name])
        if self.device.type == "cuda" and id(model) not in self._warm:
            self._train("warmup", model)
            self._warm.add(id(model))
        torch.manual_seed(seed)
        self._train(seed, model)
        lost = [number for number, epoch in enumerate(self._seen, 1) if not epoch["finite"]]
        last = self._seen[-1]
        return Run(last["tta_val_acc"], last["val_acc"], last["time_seconds"], lost[0] if lost else None)

    def _train(self, name: Any, model: nn.Module) -> None:
        self._seen = []
        plain = torch.compiler.set_stance("default" if self.device.type == "cuda" else "force_eager")
        with direct_distances(), plain:
            self._script.main(name, model)

    def _exchange(self) -> None:
        """Replace names of the script, once. Compiled code depends on them, so new ones would compile it again."""
        names: dict[str, Any] = {"optim": changed(torch.optim, SGD=self._sgd)}
        if self.device.type != "cuda":
            names |= {"cuda": HOST_CLOCK, "device": lambda name: self.device}
        vars(self._script).update(
            torch=changed(torch, **names),
            F=changed(F, cross_entropy=self._loss),
            CifarLoader=partial(self._load, self._script.CifarLoader),
            print_training_details=self._note,
        )

    def _load(self, loader: Any, path: str, *args: Any, **how: Any) -> Any:
        found = loader(str(self._images), *args, **how)
        if self.device.type != "cuda":
            found.images = found.images.float()
        return found

    def _sgd(self, groups: list[dict[str, Any]], **how: Any) -> torch.optim.Optimizer:
        own = next((group for group in groups if any(one is self._head.weight for one in group["params"])), None)
        if own is None:
            raise ValueError("the script's SGD must have a group with the weight of the network's head, got none.")
        own["lr"] = self._settings.get("head_lr", own["lr"])
        own["weight_decay"] = self._settings.get("head_decay", own["weight_decay"])
        return torch.optim.SGD(groups, **how)

    def _loss(self, outputs: Tensor, labels: Tensor, *, label_smoothing: float, reduction: str) -> Tensor:
        smoothing = self._settings.get("label_smoothing", label_smoothing)
        scale = self._settings.get("logit_scale", 1.0)
        scaled = outputs if scale == 1 else scale * outputs
        return F.cross_entropy(scaled, labels, label_smoothing=smoothing, reduction=reduction)

    def _note(self, variables: Mapping[str, Any], is_final_entry: bool) -> None:
        """Keep what the script would print. Divergence is read from the weights, as outputs may be overwritten."""
        kept = {name: variables.get(name) for name in ("val_acc", "tta_val_acc", "time_seconds")}
        self._seen.append({**kept, "finite": bool(self._head.weight.isfinite().all())})


class _HostEvent:
    """What the script uses of a CUDA event, on the host."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.time = 0.0

    def record(self) -> None:
        self.time = time.perf_counter()

    def elapsed_time(self, end: "_HostEvent") -> float:
        return 1e3 * (end.time - self.time)


HOST_CLOCK = SimpleNamespace(Event=_HostEvent, synchronize=lambda: None)


def changed(module: ModuleType, **names: Any) -> ModuleType:
    """Return a copy of a module's namespace in which some names are others; the module itself stays as it is."""
    copy = ModuleType(module.__name__)
    vars(copy).update({**vars(module), **names})
    return copy


def load_script(path: Path) -> ModuleType:
    """Import the public file. It reads its own source from `sys.argv[0]`, which names it for that time."""
    if not path.is_file():
        raise FileNotFoundError(
            f"`script` must be the file airbench94_muon.py, got {str(path)!r}, which is no file; get it from "
            "github.com/KellerJordan/cifar10-airbench."
        )
    spec = importlib.util.spec_from_file_location("speedrun_script", path)
    assert spec is not None
    assert spec.loader is not None
    script, words, lent = importlib.util.module_from_spec(spec), sys.argv, _torchvision()
    sys.argv = [str(path)]
    try:
        sys.modules.update(lent)
        spec.loader.exec_module(script)
    finally:
        sys.argv = words
        for name in lent:
            del sys.modules[name]
    absent = [name for name in NEEDED if not hasattr(script, name)]
    if absent:
        raise ValueError(
            f"{path} must define {', '.join(NEEDED)}, got none of {', '.join(absent)}; take another version."
        )
    return script


def _torchvision() -> dict[str, ModuleType]:
    """Return stand-ins for what the file imports of torchvision, where that cannot be imported: only `Normalize`."""
    try:
        importlib.import_module("torchvision.transforms")
    except (ImportError, RuntimeError):  # a torchvision of another torch fails with the latter
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        whole, part = ModuleType("torchvision"), ModuleType("torchvision.transforms")
        vars(part)["Normalize"], vars(whole)["transforms"] = _Normalize, part
        return {"torchvision": whole, "torchvision.transforms": part}
    return {}


class _Normalize:
    """Images minus a mean per channel, over a deviation per channel."""

    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = (torch.as_tensor(one)[:, None, None] for one in (mean, std))

    def __call__(self, images: Tensor) -> Tensor:
        mean, std = (one.to(images.device, images.dtype) for one in (self.mean, self.std))
        return (images - mean) / std


def write_images(folder: Path, train: Images, test: Images) -> Path:
    """Write images as the file caches them, train.pt and test.pt; it would download them otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, images in (("train", train), ("test", test)):
        kept = {"images": torch.from_numpy(images.pixels), "labels": torch.from_numpy(images.labels)}
        target = folder / f"{name}.pt"
        partial = target.with_suffix(".partial")
        torch.save({**kept, "classes": list(images.classes)}, partial)
        partial.replace(target)
    return folder
