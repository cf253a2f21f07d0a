"""What the experiment `little_data` is told: its settings, its data sets, and a cell."""

import math
from dataclasses import dataclass

from harmax.data.images import has_images
from harmax_lab.kit.experiment import Cell, Spec
from harmax_lab.vision.one_layer import BIASED, HARMONIC, STANDARD
from harmax_lab.vision.stacks import Arm


@dataclass(frozen=True)
class Source:
    """A data set of rows of numbers, and what it needs."""

    title: str
    most: int
    """Labeled images a class that are learned from at most."""
    validation: int
    """Others a class, by which learning rate and variant are chosen."""
    files: tuple[str, ...] = ()
    """Image sets that it is made of; all embedded or generated where there are none."""
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


@dataclass(frozen=True, kw_only=True)
class LittleDataSpec(Spec):
    """Settings of one layer that learns from few labeled images."""

    datasets: tuple[str, ...] = ("generated", "digits")
    """Names in `SOURCES`."""
    absent: tuple[str, ...] = ()
    """Data sets that the profile asks for and whose files were not there when the run was begun."""
    images: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    """Labeled images a class; each data set has as many as it can."""
    factors: tuple[float, ...] = (1.0, 2.0)
    """Variants of the harmonic head: exponents over sqrt(features). Those of cross-entropy: without and with a bias."""
    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    """The grid of both heads."""
    steps: int = 500
    batch_size: int = 64
    """Images of a step; all where there are fewer."""
    weight_decay: float = 1e-2
    """AdamW's, torch's default."""
    backbone: str = "resnet18"
    """The network whose features are taken, trained on the 200 classes of Tiny ImageNet."""
    backbone_epochs: int = 30
    backbone_batch: int = 256
    backbone_lr: float = 0.2
    backbone_exponent: float = 128.0
    """Of the backbone with a harmonic head: a quarter of its features. Nothing of the backbones is tuned here."""

    @property
    def arms(self) -> tuple[tuple[str, float], ...]:
        """Head and factor of every variant, harmonic ones first."""
        return (*((HARMONIC, factor) for factor in self.factors), (STANDARD, 0.0), (BIASED, 0.0))

    def stacked(self, features: int) -> list[Arm]:
        """Return the variants with their exponents."""
        return [Arm(head, factor * math.sqrt(features)) for head, factor in self.arms]

    def variants(self, head: str) -> list[int]:
        """Return the places of a head's variants among the arms."""
        return [place for place, (name, _) in enumerate(self.arms) if (name == HARMONIC) == (head == HARMONIC)]

    def sizes(self, dataset: str) -> list[int]:
        """Return the numbers of labeled images a class that a data set allows."""
        return [images for images in self.images if images <= SOURCES[dataset].most]


@dataclass(frozen=True)
class LittleDataCell(Cell):
    """All variants and learning rates of both heads on one seed's draw of images."""

    dataset: str
    images: int
    seed: int


def cells(spec: LittleDataSpec) -> list[LittleDataCell]:
    """List every data set, number of images and seed."""
    return [
        LittleDataCell(dataset, images, seed)
        for dataset in spec.datasets
        for images in spec.sizes(dataset)
        for seed in spec.seeds
    ]
