"""The images of a run, as batches on the device."""

# N images of a set, B of a batch, C channels, H rows, W columns

import hashlib
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from harmax.data.images import Images, class_folder, load_images
from harmax.data.images.folders import ARCHIVES
from harmax.train.old_checkpoint import images_digest
from harmax.train.vision.augment import CROPS, POLICIES, SQUARES, WORLD, AutoAugment, blank, cut, generator
from harmax.train.vision.model import IGNORED
from harmax.train.vision.order import Order, Share, evaluation_shares
from harmax.train.vision.pictures import Pictures, read_pictures
from harmax.train.vision.preparation import Preparation
from harmax.train.vision.settings import FOLDER, GENERATED, VisionSpec
from harmax.train.world import World, send

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDES = {"train": ("train",), "test": ("val", "test")}
Batches = Iterator[tuple[Tensor, Tensor]]


class VisionData(Protocol):
    """The train and test sides of a data set, for one process of a run."""

    classes: tuple[str, ...]
    order: Order
    preparation: Preparation
    test_count: int
    """Number of test images, over all processes."""
    digests: dict[str, str]
    """A checksum per split, which a resumed run compares."""

    def train(self, first: int) -> Batches:
        """Yield this process's micro-batches from step `first` on: prepared images (B, C, H, W), targets (B,)."""

    def test(self) -> Batches:
        """Yield this process's part of the test images in batches of one shape; a target of -100 does not count."""


class ResidentData:
    """Images that are kept on the device as bytes and augmented there."""

    def __init__(self, spec: VisionSpec, train: Images, test: Images, world: World) -> None:
        check_classes(train.classes, test.classes, spec.dataset, spec.data)
        self._spec, self._world, self.classes = spec, world, train.classes
        self.order = Order(spec, len(train.labels), world.rank, world.size)
        train_pixels, test_pixels = _colored(train.pixels), _colored(test.pixels)
        side, border = train_pixels.shape[1], spec.padding
        if border >= side:
            raise ValueError(f"`padding` must be less than the images' side ({side}), got {border}; 0 turns it off.")
        if {*train_pixels.shape[1:3], *test_pixels.shape[1:3]} != {side}:
            raise ValueError(
                f"all images must be squares of one size, got {train_pixels.shape[1:3]} to train on and "
                f"{test_pixels.shape[1:3]} to test; crop them, or use --dataset folder, which does."
            )
        self.preparation, self.test_count = measure_channels(train_pixels), len(test.labels)
        self.digests = {"train": _digest(train), "test": _digest(test)}
        around = ((0, 0), (border, border), (border, border), (0, 0))
        self._side, device = side, world.device
        self._train = torch.from_numpy(np.pad(train_pixels, around, mode="reflect")).to(device)
        self._train_labels = torch.from_numpy(train.labels).to(device)
        self._test = torch.from_numpy(test_pixels).to(device)
        self._test_labels = torch.from_numpy(test.labels).to(device)
        self._auto_augment = make_auto_augment(spec)

    def again(self, spec: VisionSpec) -> "ResidentData":
        """Return the same images for another run: pixels are shared, order and crops are those of the settings."""
        if spec.padding != self._spec.padding:
            raise ValueError(
                f"`padding` must stay {self._spec.padding}, the border that the images have; open the data again."
            )
        other = copy(self)
        other._spec, other._auto_augment = spec, make_auto_augment(spec)
        other.order = Order(spec, self.order.count, self._world.rank, self._world.size)
        return other

    def plain(self, side: str, chosen_N: np.ndarray | None = None) -> Iterator[tuple[Tensor, int]]:
        """Yield images of "train" or "test" without augmentation, in batches of one shape, and how many of them count.

        Args:
            side: which images.
            chosen_N: which of them; None: all.
        """
        border = self._spec.padding
        inner = slice(border, border + self._side)
        pixels = self._train[:, inner, inner] if side == "train" else self._test
        places_N = np.arange(len(pixels)) if chosen_N is None else chosen_N
        for chosen, counts in evaluation_shares(len(places_N), self._spec.micro_batch, 0, 1):
            yield self.preparation.prepare(pixels[send(places_N[chosen], self._world.device)]), int(counts.sum())

    def train(self, first: int) -> Batches:
        """Yield this process's micro-batches from step `first` on."""
        spec, device = self._spec, self._world.device
        for share in self.order.shares(first):
            numbers, size = generator(CROPS, spec.seed, share.step, share.part), len(share.chosen)
            corners = numbers.integers(2 * spec.padding + 1, size=(2, size))
            flips = numbers.random((1, size)) < (0.5 if spec.flip else 0)
            chosen, top, left, flip = send(np.concatenate([share.chosen[None], corners, flips]), device)
            images = cut(self._train, chosen, top, left, flip.bool(), self._side).float() / 255
            if self._auto_augment is not None:
                images = self._auto_augment(images, generator(POLICIES, spec.seed, share.step, share.part))
            yield blanked(self.preparation(images), spec, share), self._train_labels[chosen]

    def test(self) -> Batches:
        """Yield this process's part of the test images."""
        world, device = self._world, self._world.device
        for chosen, counts in evaluation_shares(len(self._test_labels), self._spec.micro_batch, world.rank, world.size):
            places = send(chosen, device)
            targets = torch.where(send(counts, device), self._test_labels[places], IGNORED)
            yield self.preparation.prepare(self._test[places]), targets


class FolderData:
    """Pictures in class folders, decoded by other processes and augmented on the device."""

    def __init__(self, spec: VisionSpec, train: Pictures, test: Pictures, world: World) -> None:
        check_classes(train.classes, test.classes, spec.dataset, spec.data)
        self._spec, self._world, self.classes = spec, world, train.classes
        self._train, self._test, self.test_count = train, test, len(test)
        self.order = Order(spec, len(train), world.rank, world.size)
        self.preparation = Preparation(IMAGENET_MEAN, IMAGENET_STD, spec.image_size)
        sides = {"train": train, "test": test}
        self.digests = {name: images_digest(len(side), side.folder.digest()) for name, side in sides.items()}
        self._auto_augment = make_auto_augment(spec)

    def train(self, first: int) -> Batches:
        """Yield this process's micro-batches from step `first` on."""
        spec, shares = self._spec, self.order.shares(first)
        wanted = ([(int(index), share.epoch) for index in share.chosen] for share in self.order.shares(first))
        for pixels, labels in read_pictures(self._train, wanted, spec.workers, self._world.device):
            share, images = next(shares), pixels.permute(0, 3, 1, 2).float() / 255
            if self._auto_augment is not None:
                images = self._auto_augment(images, generator(POLICIES, spec.seed, share.step, share.part))
            yield blanked(self.preparation(images), spec, share), labels

    def test(self) -> Batches:
        """Yield this process's part of the test images."""
        spec, world = self._spec, self._world
        parts = [*evaluation_shares(len(self._test), spec.micro_batch, world.rank, world.size)]
        wanted = ([(int(index), 0) for index in chosen] for chosen, _ in parts)
        read = read_pictures(self._test, wanted, spec.workers, world.device)
        for (_, counts), (pixels, labels) in zip(parts, read, strict=True):
            yield self.preparation.prepare(pixels), torch.where(send(counts, world.device), labels, IGNORED)


def open_images(spec: VisionSpec, world: World) -> VisionData:
    """Open the images of a run for one process."""
    if spec.dataset == GENERATED:
        return ResidentData(spec, generate_images(512), generate_images(256, start=512), world)
    if spec.dataset != FOLDER:
        train, test = (load_images(spec.dataset, side, spec.data, complete=not spec.partial) for side in SIDES)
        return ResidentData(spec, train, test, world)
    if spec.data is None:
        raise ValueError("`data` must name a folder that has train/ and val/ with one sub-folder per class, got none.")
    size, seed, flip = spec.image_size, spec.seed, spec.flip
    cropped = Pictures(class_folder(find_side(spec.data, "train")), size=size, seed=seed, flip=flip)
    return FolderData(spec, cropped, Pictures(class_folder(find_side(spec.data, "test")), size=size), world)


def find_side(folder: Path, side: str) -> Path:
    """Return the folder or archive of one side of a data set; the test side is val/, else test/."""
    for name in SIDES[side]:
        for ending in ("", *ARCHIVES):
            if (path := folder / f"{name}{ending}").exists():
                return path
    names = " or ".join(f"{name}/" for name in SIDES[side])
    raise ValueError(
        f"`data` must have {names} (or a .tar of it) with one sub-folder per class, got {str(folder)!r} without; "
        "give the folder above it."
    )


def check_classes(train: tuple[str, ...], test: tuple[str, ...], dataset: str, data: Path | None) -> None:
    """Refuse sides with different classes, and a data set of a single class."""
    where = f"{dataset} {'' if data is None else data}".strip()
    if len(train) < 2:
        raise ValueError(f"{where} must have at least 2 classes to train on, got {', '.join(train)} alone; add others.")
    if train != test:
        odd = sorted({*train} ^ {*test})[:3]
        raise ValueError(
            f"{where} must have the same classes to train on and to test, got {len(train)} and {len(test)} (for "
            f"example {', '.join(odd)} on one side only); correct the folders."
        )


def blanked(images: Tensor, spec: VisionSpec, share: Share) -> Tensor:
    """Blank a square around a random pixel of every image, if `cutout` is set."""
    if not spec.cutout:
        return images
    size = np.array(images.shape[2:])[:, None]
    if spec.cutout >= size.min():
        raise ValueError(f"`cutout` must be less than the images' side ({size.min()}), got {spec.cutout}; 0: none.")
    numbers = generator(SQUARES, spec.seed, share.step, share.part)
    corners = numbers.integers(size, size=(2, len(images))) - spec.cutout // 2
    top_B, left_B = send(corners, images.device)
    return blank(images, top_B, left_B, spec.cutout)


def make_auto_augment(spec: VisionSpec) -> AutoAugment | None:
    """Return the augmentation policy, if there is one."""
    return None if spec.auto_augment == "none" else AutoAugment(spec.auto_augment)


def measure_channels(pixels: np.ndarray) -> Preparation:
    """Return the exact mean and deviation per channel of images (N, H, W, C).

    >>> measure_channels(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1).repeat(3, axis=3)).mean
    (0.5, 0.5, 0.5)
    """
    counts = np.stack([np.bincount(pixels[..., c].reshape(-1), minlength=256) for c in range(3)])
    levels, share = np.arange(256) / 255, counts / counts.sum(1, keepdims=True)
    mean = share @ levels
    std = np.sqrt((share * (levels - mean[:, None]) ** 2).sum(1))
    if not std.all():
        raise ValueError(
            "training images must differ in every color channel, got a channel with one value; check the images."
        )
    red, green, blue = map(float, mean)
    return Preparation((red, green, blue), (float(std[0]), float(std[1]), float(std[2])), pixels.shape[1])


def generate_images(count: int, *, start: int = 0, classes: int = 4, side: int = 12) -> Images:
    """Generate images: one colored pattern per class, shifted and noisy. They only show that everything works."""
    patterns = generator(WORLD, 0).integers(60, 196, size=(classes, side, side, 3))
    labels = np.arange(start, start + count) % classes
    pixels = np.empty((count, side, side, 3), np.uint8)
    for place, label in enumerate(labels):
        numbers = generator(WORLD, 1, start + place)
        shifted = np.roll(patterns[label], numbers.integers(-1, 2, size=2), axis=(0, 1))
        pixels[place] = np.clip(shifted + numbers.integers(-60, 61, size=shifted.shape), 0, 255)
    return Images(pixels, labels.astype(np.int64), tuple(f"pattern {number}" for number in range(classes)))


def _digest(images: Images) -> str:
    found = hashlib.sha256(np.ascontiguousarray(images.pixels).data)
    found.update(images.labels.tobytes())
    return images_digest(len(images.labels), found.hexdigest())


def _colored(pixels: np.ndarray) -> np.ndarray:
    """Give gray images three equal channels."""
    return pixels if pixels.ndim == 4 else np.repeat(pixels[..., None], 3, axis=3)
