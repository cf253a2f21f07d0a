"""Where the rows of `little_data` come from: pixels, generated classes, or what a ResNet makes of CIFAR-10.

The ResNet has learned the 200 classes of Tiny ImageNet with either head, so that neither head has an advantage. Its
features are the 512 numbers that enter its head, for images of CIFAR-10, whose classes it has not seen.
"""

# N images, D features, V classes

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harmax.data.images import has_images, load_images
from harmax.errors import needs
from harmax.files import write_atomically
from harmax_lab.kit.experiment import Context
from harmax_lab.vision.mnist_training import Data, as_data

if TYPE_CHECKING:
    from harmax_lab.vision.little_data import LittleDataSpec

MEAN_SQUARE = 0.1
"""Of all features after scaling: about that of MNIST's pixels, so that one grid of learning rates suits both."""
SPLIT_SEED = 0  # of what may be learned from and what chooses: the same for all seeds of a run


@dataclass(frozen=True)
class Source:
    """A data set of rows of numbers, and what it needs."""

    title: str
    most: int
    """Labeled images per class that are learned from at most."""
    validation: int
    """Others per class, by which learning rate and variant are chosen."""
    files: tuple[str, ...] = ()
    """Image sets that it is made of; embedded or generated where there are none."""
    backbone: str = ""
    """Head with which the network was trained that the features come from; empty for pixels."""

    def is_there(self) -> bool:
        """Whether all its files seem to be there."""
        return all(map(has_images, self.files))


_CIFAR_FILES = ("cifar10", "tiny_imagenet32")
SOURCES: dict[str, Source] = {
    "generated": Source("generated features", 100, 50),
    "digits": Source("digits, 8 x 8", 100, 40),
    "mnist": Source("MNIST pixels", 1000, 500, ("mnist",)),
    "cifar10_linear": Source("CIFAR-10, features of a cross-entropy ResNet", 1000, 500, _CIFAR_FILES, "linear"),
    "cifar10_harmonic": Source("CIFAR-10, features of a harmonic ResNet", 1000, 500, _CIFAR_FILES, "harmonic"),
}


class Rows(NamedTuple):
    """A data set as rows of numbers: those that may be learned from, those that choose, those that count."""

    pool: Data
    validation: Data
    test: Data
    facts: dict[str, float]
    """The backbone's accuracy, where there is one."""

    def to(self, device: str) -> "Rows":
        """Return the rows on a device."""
        return Rows(self.pool.to(device), self.validation.to(device), self.test.to(device), self.facts)


def open_rows(dataset: str, spec: "LittleDataSpec", context: Context) -> Rows:
    """Read or make a data set, and split its training images into a pool and a validation side, class by class."""
    source = SOURCES[dataset]
    facts: dict[str, float] = {}
    if dataset == "generated":
        train, test = generate_rows(source.most + source.validation, 0), generate_rows(100, 1)
    elif source.backbone:
        train, test, facts = backbone_rows(dataset, spec, context)
    else:
        train, test = (as_data(load_images(dataset, side)) for side in ("train", "test"))
    validation, pool = (
        Data(train.x_ND[rows_K], train.y_N[rows_K], train.classes)
        for rows_K in split_classes(train.y_N, source.validation, SPLIT_SEED)
    )
    return Rows(pool, validation, test, facts)


def split_classes(y_N: Tensor, first: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return numbers of `first` images of every class, drawn at random, and of the others in a random order."""
    order_N = torch.randperm(len(y_N), generator=torch.Generator().manual_seed(seed))
    shuffled_N, ranks_N = y_N[order_N], torch.empty_like(y_N)  # how many images of the same class come before each one
    for label in torch.unique(y_N):
        own = shuffled_N == label
        ranks_N[own] = torch.arange(int(own.sum()))
    return order_N[ranks_N < first], order_N[ranks_N >= first]


def draw_images(y_N: Tensor, images: int, seed: int) -> Tensor:
    """Return numbers of some images per class; a seed's larger draws contain its smaller ones."""
    chosen, _ = split_classes(y_N, images, seed)
    wanted = images * len(torch.unique(y_N))
    if len(chosen) != wanted:
        raise ValueError(f"every class must have {images} images to draw, got {len(chosen)} of {wanted}; draw fewer.")
    return chosen


def generate_rows(images: int, side: int, *, classes: int = 10, features: int = 32) -> Data:
    """Make features up: normal classes that overlap a little, as many images of each, the same means on every side."""
    means_VD = np.random.default_rng(0).standard_normal((classes, features))
    y_N = np.repeat(np.arange(classes), images)
    x_ND = means_VD[y_N] + 1.5 * np.random.default_rng([1, side]).standard_normal((len(y_N), features))
    scale = np.sqrt(MEAN_SQUARE / (1 + 1.5**2))
    return Data(torch.from_numpy((scale * x_ND).astype(np.float32)), torch.from_numpy(y_N), classes)


def backbone_rows(dataset: str, spec: "LittleDataSpec", context: Context) -> tuple[Data, Data, dict[str, float]]:
    """Train the backbone of a data set, and return the features that it gives CIFAR-10's images.

    Backbone and features stay in the group's own folder until its cells are stored, so that an interrupt costs little.
    """
    if spec.backbone != "tiny" and context.device == "cpu":
        raise RuntimeError(
            f"the {spec.backbone} of {dataset} must be trained on a GPU, got the CPU, where it takes hours; run the "
            "experiment again on a machine with one (--device cuda): finished cells are kept."
        )
    with needs("run"):
        from safetensors.torch import load_file, save

    context.scratch.mkdir(parents=True, exist_ok=True)
    path = context.scratch / "features.safetensors"
    if not path.is_file():
        write_atomically(path, save(_compute(SOURCES[dataset].backbone, spec, context)))
    found = load_file(path)
    sides = [Data(found[f"{side}_x"], found[f"{side}_y"], int(found["classes"])) for side in ("train", "test")]
    return sides[0], sides[1], {"backbone_accuracy": float(found["backbone_accuracy"])}


def _compute(head: str, spec: "LittleDataSpec", context: Context) -> dict[str, Tensor]:
    from harmax.train.vision.model import load_classifier
    from harmax.train.vision.train import train_classifier

    def tell(line: dict[str, Any]) -> None:
        context(0.3 * line["epoch"] / spec.backbone_epochs, f"{spec.backbone} with a {head} head")

    output = context.scratch / "backbone"
    last = train_classifier(backbone_spec(head, spec, context.device), output, device=context.device, progress=tell)
    model, preparation = load_classifier(output / "model")
    train, test = (load_images("cifar10", side) for side in ("train", "test"))
    # Of all training images, so that seeds which learn from many of them still draw different ones.
    x_ND, test_ND = (_features(model, preparation, images.pixels, context.device) for images in (train, test))
    scale = (MEAN_SQUARE / x_ND.square().mean()).sqrt()
    return {
        "train_x": x_ND * scale,
        "train_y": torch.from_numpy(train.labels),
        "test_x": test_ND * scale,
        "test_y": torch.from_numpy(test.labels),
        "classes": torch.tensor(len(train.classes)),
        "backbone_accuracy": torch.tensor(float(last.get("top1", np.nan)), dtype=torch.float64),
    }


def backbone_spec(head: str, spec: "LittleDataSpec", device: str) -> Any:
    """Return the settings of a head's backbone: the recipe of the preset `cifar10` on Tiny ImageNet's images."""
    from harmax.train.vision import VISION_PRESETS

    tiny, gpu, harmonic = spec.backbone == "tiny", device != "cpu", head == "harmonic"
    return replace(
        VISION_PRESETS["smoke" if tiny else "cifar10"],
        head="harmonic" if harmonic else "linear",
        exponent=spec.backbone_exponent if harmonic else None,
        center_start="means" if harmonic else "linear",
        scale=1.0 if harmonic else None,
        dataset="generated" if tiny else "tiny_imagenet32",
        epochs=spec.backbone_epochs,
        batch=spec.backbone_batch,
        micro_batch=spec.backbone_batch,
        lr=spec.backbone_lr,
        warmup=0.2 * spec.backbone_epochs,
        evaluate_every=0,
        dtype="bf16" if gpu else "float32",
        compile=gpu,
        seed=0,
    )


@torch.inference_mode()
def _features(model: Any, preparation: Any, pixels_NHWC: np.ndarray, device: str) -> Tensor:
    from harmax.train.vision.model import features

    model = model.to(device)
    parts = torch.from_numpy(np.ascontiguousarray(pixels_NHWC)).split(500)
    return torch.cat([features(model, preparation.prepare(part.to(device))).float().cpu() for part in parts])
