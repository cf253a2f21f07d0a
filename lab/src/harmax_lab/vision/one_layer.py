"""What the experiments with small classifiers of images share: heads, profiles, and the settings of one layer."""

import math
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from harmax.data.images import IMAGES, has_images
from harmax_lab.kit.experiment import Cell, Spec
from harmax_lab.kit.tables import Table, tabulate
from harmax_lab.paper.readings import SMALL_VALUE

HARMONIC, STANDARD, BIASED = HEADS = ("harmonic", "cross_entropy", "cross_entropy_bias")

PAPER_ACCURACY = {HARMONIC: 0.9249, STANDARD: 0.9250, BIASED: 0.9250}
"""On MNIST. The paper does not say whether its linear layer has a bias."""


def title_of(dataset: str) -> str:
    """Return a data set's name as a figure writes it."""
    return {"digits": "digits, 8 x 8"}.get(dataset, IMAGES[dataset].title)


@dataclass(frozen=True, kw_only=True)
class ImageSpec(Spec):
    """Settings of an experiment on data sets, some of which may not be there."""

    datasets: tuple[str, ...] = ("digits",)
    absent: tuple[str, ...] = ()
    """Data sets that the profile asks for and whose files were not there when the run began."""


@dataclass(frozen=True)
class ImageCell(Cell):
    """Work on one data set."""

    dataset: str


S = TypeVar("S", bound=ImageSpec)


class Profiles(UserDict[str, S]):
    """Profiles without the data sets whose files are not there; looked up when a profile is asked for.

    A data set that is left out becomes part of the spec (`absent`): a run without MNIST is another than one with it.
    `required` are, by profile, the data sets that stay: without their files the run fails.
    """

    def __init__(
        self,
        profiles: Mapping[str, S],
        *,
        required: Mapping[str, tuple[str, ...]],
        is_there: Callable[[str], bool] = has_images,
    ) -> None:
        super().__init__(profiles)
        self._required, self._is_there = required, is_there

    def __getitem__(self, name: str) -> S:
        spec, required = super().__getitem__(name), self._required.get(name, ())
        there = tuple(one for one in spec.datasets if one in required or self._is_there(one))
        return replace(spec, datasets=there, absent=tuple(one for one in spec.datasets if one not in there))


def left_out(spec: ImageSpec) -> Table:
    """Tabulate the data sets that were left out, and why."""
    why = "its files were not there when this run began; set HARMAX_DATA to the data folder"
    return tabulate("Left out", spec.absent, {"dataset": lambda name: name, "why": lambda _: why})


@dataclass(frozen=True)
class Protocol:
    """What the paper's text, the authors' code, and a fair comparison do differently."""

    title: str
    """For figures."""
    exponent_factor: float
    """Of sqrt(pixels): 1 is exponent 28 on MNIST, 2 is 56."""
    standard: str
    """The standard head that the harmonic one is compared with."""
    stop: str
    """After a number of epochs ("fixed"), or once the loss of "training" or "validation" images no longer falls."""
    softening: float = 0.0
    heads: tuple[str, ...] = HEADS
    """Heads whose runs are stored."""


# The authors' code stops on the training loss. So neither their rule nor a fixed number of epochs looks at the test
# images, and both learn from all training images. Only "matched" chooses by images that it holds out.
TEXT, TEXT_SQRT, AUTHORS, MATCHED = "text", "text_sqrt", "authors", "matched"
PROTOCOLS: dict[str, Protocol] = {
    TEXT: Protocol("text, 10 epochs", exponent_factor=2, standard=STANDARD, stop="fixed"),
    # Linear heads have no exponent: theirs are the runs of TEXT.
    TEXT_SQRT: Protocol("text, exponent √D", exponent_factor=1, standard=STANDARD, stop="fixed", heads=(HARMONIC,)),
    AUTHORS: Protocol("authors' code", exponent_factor=2, standard=BIASED, stop="training", softening=1e-4),
    MATCHED: Protocol("matched", exponent_factor=2, standard=STANDARD, stop="validation"),
}


def exponent_of(protocol: str, pixels: int) -> float:
    """Return the harmonic head's exponent."""
    return PROTOCOLS[protocol].exponent_factor * math.sqrt(pixels)


@dataclass(frozen=True, kw_only=True)
class OneLayerSpec(ImageSpec):
    """Settings of one layer on pixels; defaults are the paper's or, where it is silent, those of the authors' code."""

    protocols: tuple[str, ...] = tuple(PROTOCOLS)
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    """AdamW's, torch's default, as in the authors' code."""
    epoch_images: int = 15_000
    """Images per epoch, about: a data set with fewer is passed several times in each."""
    fixed_epochs: int = 10
    most_epochs: int = 100
    patience: int = 10
    """Epochs without improvement after which a run stops, where it may."""
    least_improvement: float = 1e-4
    """Of the loss; a smaller fall does not count."""
    held_out: float = 0.1
    """Share of the training images that the matched protocol stops by and does not learn from."""
    near_zero: float = SMALL_VALUE
    """Weights of a smaller size count as near zero. The paper draws values below it in yellow."""

    def short_of(self, cells: Sequence["OneLayerCell"]) -> str:
        """Say which runs have fewer epochs than the paper's or the authors'."""
        full = OneLayerSpec()
        least = {(self.epochs(one), full.epochs(one)) for one in {cell.protocol for cell in cells}}
        short = [f"{ran} of up to {epochs}" for ran, epochs in sorted(least) if ran < epochs]
        return f"Only {' and '.join(short)} epochs were run." if short else ""

    def epochs(self, protocol: str) -> int:
        """Return the most epochs that a protocol may take."""
        return self.fixed_epochs if PROTOCOLS[protocol].stop == "fixed" else self.most_epochs


@dataclass(frozen=True)
class OneLayerCell(ImageCell):
    """One head trained on one data set from one seed's weights, in one seed's order."""

    protocol: str
    head: str
    seed: int
