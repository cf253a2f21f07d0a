"""The images of the ResNets' runs: what is learned, what is held out, and what is none of the classes."""

# N images, H rows, W columns, C channels

from collections.abc import Sequence

import numpy as np

from harmax.data.folder import read_text
from harmax.data.images import Images, load_images
from harmax.train.vision.settings import GENERATED
from harmax_lab.vision.classifiers_spec import CIFAR100, TINY

PARTS = {CIFAR100: {"train": 50, "test": 20}}
"""Images a class of the sets that are taken in part, whatever more of them is there."""
PERMUTED = "permuted"
DRAWS = 7  # the first word of the seeds of what is drawn here


def read_sides(dataset: str) -> tuple[Images, Images]:
    """Read what a data set learns from and is tested on, or make it up."""
    if dataset == GENERATED:
        from harmax.train.vision.data import generate_images

        return generate_images(512), generate_images(256, start=512)
    return read_side(dataset, "train"), read_side(dataset, "test")


def read_side(dataset: str, side: str) -> Images:
    """Read one side of a data set: all of it, or of CIFAR-100 as many images a class as the part of it has."""
    images = load_images(dataset, side, complete=dataset not in PARTS)
    return first_of_each(images, PARTS[dataset][side]) if dataset in PARTS else images


def first_of_each(images: Images, count: int) -> Images:
    """Return the first images of every class, in their order, at most so many of each.

    >>> first_of_each(Images(np.zeros((4, 2, 2)), np.array([1, 0, 1, 1]), ("a", "b")), 2).labels
    array([1, 0, 1])
    """
    classes = range(len(images.classes))
    chosen = np.sort(np.concatenate([np.flatnonzero(images.labels == label)[:count] for label in classes]))
    return Images(images.pixels[chosen], images.labels[chosen], images.classes)


def class_words(dataset: str, classes: Sequence[str]) -> list[str]:
    """Return the names of classes for a reader: where folders have WordNet's numbers, the first word for each.

    >>> class_words("cifar10", ("airplane", "automobile"))
    ['airplane', 'automobile']
    """
    try:
        lines = read_text(f"{dataset}/classes.tsv").splitlines() if dataset == TINY else []
    except FileNotFoundError:  # of Tiny ImageNet from elsewhere
        lines = []
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return [words.get(name, name).split(",")[0].replace("_", " ") for name in classes]


def split(labels_N: np.ndarray, share: float, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Part images into the rest and a share of every class, drawn with a seed; at least one image of each class.

    >>> rest, part = split(np.array([0, 0, 0, 0, 1, 1, 1, 1]), 0.25, seed=0)
    >>> len(rest), sorted(np.array([0, 0, 0, 0, 1, 1, 1, 1])[part].tolist())
    (6, [0, 1])
    """
    draws = np.random.default_rng([DRAWS, seed])
    chosen = []
    for label in np.unique(labels_N):
        own = draws.permutation(np.flatnonzero(labels_N == label))
        chosen.append(own[: max(1, round(share * len(own)))])
    part = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(labels_N)), part), part


def permute_pixels(pixels: np.ndarray) -> np.ndarray:
    """Put the pixels of images (N, H, W) or (N, H, W, C) into another order, the same for all."""
    places = np.random.default_rng([DRAWS, 2]).permutation(pixels.shape[1] * pixels.shape[2])
    flat = pixels.reshape(len(pixels), -1, *pixels.shape[3:])
    return flat[:, places].reshape(pixels.shape)
