"""What the one-layer experiments share: their settings, the three protocols, and a cell."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from harmax.data.images import has_images
from harmax_lab.kit.experiment import Cell, Spec

HARMONIC, STANDARD, BIASED = HEADS = ("harmonic", "cross_entropy", "cross_entropy_bias")


@dataclass(frozen=True)
class Protocol:
    """What the paper's text, the authors' code, and a fair comparison do differently."""

    exponent_factor: float
    """Of sqrt(pixels): 1 is exponent 28 on MNIST, 2 is 56."""
    standard: str
    """The standard head that the harmonic one is held against; the other one is trained too, as a control."""
    stop: str
    """After a number of epochs ("fixed"), or once the loss of "training" or "validation" images no longer falls."""
    softening: float = 0.0


# The authors' code stops on the training loss, so that neither their rule nor a fixed number of epochs has looked at
# the test images, and both learn from all training images. Only "matched" chooses by images that it holds out.
PROTOCOLS: dict[str, Protocol] = {
    "paper": Protocol(exponent_factor=1, standard=STANDARD, stop="fixed"),
    "authors": Protocol(exponent_factor=2, standard=BIASED, stop="training", softening=1e-4),
    "matched": Protocol(exponent_factor=2, standard=STANDARD, stop="validation"),
}


@dataclass(frozen=True, kw_only=True)
class OneLayerSpec(Spec):
    """Settings of one layer on pixels; the defaults are the paper's and, where it says nothing, the authors' code's."""

    datasets: tuple[str, ...] = ("digits",)
    absent: tuple[str, ...] = ()
    """Data sets that the profile asks for and whose files were not there when the run was begun."""
    protocols: tuple[str, ...] = tuple(PROTOCOLS)
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    """AdamW's, torch's default, as the authors' code has it."""
    epoch_images: int = 15_000
    """Images of an epoch, about: a data set with fewer is passed several times in each."""
    fixed_epochs: int = 10
    most_epochs: int = 100
    patience: int = 10
    """Epochs without improvement before a run stops, where it may."""
    least_improvement: float = 1e-4
    """Of the loss; what falls by less has not improved."""
    held_out: float = 0.1
    """Share of the training images that the matched protocol stops by and does not learn from."""
    near_zero: float = 0.01
    """What is drawn yellow in the paper: weights of a smaller size."""

    def epochs(self, protocol: str) -> int:
        """Return the most epochs that a protocol may take."""
        return self.fixed_epochs if PROTOCOLS[protocol].stop == "fixed" else self.most_epochs


def exponent_of(protocol: str, pixels: int) -> float:
    """Return the harmonic head's exponent.

    >>> exponent_of("paper", 784), exponent_of("authors", 784)
    (28.0, 56.0)
    """
    return PROTOCOLS[protocol].exponent_factor * math.sqrt(pixels)


@dataclass(frozen=True)
class OneLayerCell(Cell):
    """One head trained on one data set from one seed's weights, in one seed's order."""

    dataset: str
    protocol: str
    head: str
    seed: int


def cells(spec: OneLayerSpec) -> list[OneLayerCell]:
    """List every data set, protocol, head and seed."""
    return [
        OneLayerCell(dataset, protocol, head, seed)
        for dataset in spec.datasets
        for protocol in spec.protocols
        for head in HEADS
        for seed in spec.seeds
    ]


class Profiles(Mapping[str, OneLayerSpec]):
    """Profiles without the data sets whose files are not there; looked up when a profile is asked for.

    What is left out becomes part of the spec (`absent`), so that a run without MNIST is not taken for one with it.
    """

    def __init__(
        self,
        profiles: Mapping[str, OneLayerSpec],
        *,
        required: Mapping[str, tuple[str, ...]],
        is_there: Callable[[str], bool] = has_images,
    ) -> None:
        self._profiles, self._required, self._is_there = profiles, required, is_there

    def __getitem__(self, name: str) -> OneLayerSpec:
        spec, required = self._profiles[name], self._required.get(name, ())
        there = tuple(one for one in spec.datasets if one in required or self._is_there(one))
        return replace(spec, datasets=there, absent=tuple(one for one in spec.datasets if one not in there))

    def __iter__(self) -> Iterator[str]:
        return iter(self._profiles)

    def __len__(self) -> int:
        return len(self._profiles)
