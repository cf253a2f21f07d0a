"""Augmentation: crops and flips of whole batches on the device, pictures one by one on the host, AutoAugment.

Every draw is a function of a seed, so that a resumed run, or one with more processes, sees the same images.
"""

# B images, N images of a set, C channels, H rows, W columns; P: with padding

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harmax.errors import needs

# The first word of every seed: what the random numbers are for, so that no two purposes share them.
ORDER, CROPS, POLICIES, PICTURES, WORLD, SQUARES = 1, 2, 3, 4, 5, 6

AREA = (0.08, 1.0)
"""Smallest and largest part of a picture's area that a random crop keeps."""
RATIO = (3 / 4, 4 / 3)
"""Smallest and largest ratio of width to height of a random crop."""
CENTER = 0.875
"""Part of the shorter side that evaluation keeps: 224 of 256 pixels."""


def generator(*words: int) -> np.random.Generator:
    """Return a random number generator that is seeded by some integers."""
    return np.random.default_rng(np.random.SeedSequence(words))


def cut(padded: Tensor, chosen_B: Tensor, top_B: Tensor, left_B: Tensor, flip_B: Tensor, side: int) -> Tensor:
    """Cut squares out of images on a device, and mirror some of them.

    Args:
        padded: all images, (N, P, P, C).
        chosen_B: which ones, int64.
        top_B, left_B: where each square begins.
        flip_B: which ones are mirrored.
        side: H = W of the squares.

    Returns:
        (B, C, H, W), with channels last in memory.
    """
    along = torch.arange(side, device=padded.device)
    rows_BH = top_B[:, None] + along
    columns_BW = left_B[:, None] + torch.where(flip_B[:, None], side - 1 - along, along)
    return padded[chosen_B[:, None, None], rows_BH[:, :, None], columns_BW[:, None, :]].permute(0, 3, 1, 2)


def blank(images: Tensor, top_B: Tensor, left_B: Tensor, side: int) -> Tensor:
    """Set a square of every prepared image to 0, the mean color; squares may extend beyond an edge.

    Args:
        images: (B, C, H, W).
        top_B, left_B: where each square begins; negative ones begin outside.
        side: of the squares.
    """

    def inside(length: int, start_B: Tensor) -> Tensor:
        along = torch.arange(length, device=images.device)
        return (along >= start_B[:, None]) & (along < start_B[:, None] + side)

    rows_BH, columns_BW = inside(images.shape[2], top_B), inside(images.shape[3], left_B)
    return images.masked_fill((rows_BH[:, :, None] & columns_BW[:, None, :])[:, None], 0.0)


def random_crop(picture: np.ndarray, size: int, numbers: np.random.Generator, *, flip: bool) -> np.ndarray:
    """Cut a random part out of a picture (H, W, C), scale it to a square, and mirror half of them.

    The part has 8 to 100 % of the area and a ratio of 3:4 to 4:3, as is usual for ImageNet.
    """
    height, width = picture.shape[:2]
    box = _middle(height, width)
    for _ in range(10):
        area = height * width * numbers.uniform(*AREA)
        ratio = math.exp(numbers.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(numbers.integers(width - wide + 1)), int(numbers.integers(height - high + 1))
            box = (left, top, left + wide, top + high)
            break
    square = _scale(picture, box, size)
    return np.ascontiguousarray(square[:, ::-1]) if flip and numbers.random() < 0.5 else square


def middle_crop(picture: np.ndarray, size: int, part: float = CENTER) -> np.ndarray:
    """Cut the middle square out of a picture (H, W, C), `part` of its shorter side, and scale it to `size`."""
    height, width = picture.shape[:2]
    side = part * min(height, width)
    left, top = (width - side) / 2, (height - side) / 2
    return _scale(picture, (left, top, left + side, top + side), size)


def _middle(height: int, width: int) -> tuple[float, float, float, float]:
    """Return the largest central part with an allowed ratio, for pictures that are long and thin."""
    wide, high = min(width, height * RATIO[1]), min(height, width / RATIO[0])
    left, top = (width - wide) / 2, (height - high) / 2
    return left, top, left + wide, top + high


def _scale(picture: np.ndarray, box: tuple[float, float, float, float], size: int) -> np.ndarray:
    with needs("vision"):
        from PIL import Image

    image = Image.fromarray(picture).resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image)


class AutoAugment:
    """AutoAugment with a sub-policy drawn for each image, as published; kornia computes it in batches.

    kornia's own class draws one sub-policy per batch. Here each sub-policy gets the images that drew it.

    Args:
        policy: "imagenet", "cifar10" or "svhn".
    """

    def __init__(self, policy: str) -> None:
        with needs("vision"):
            from kornia.augmentation.auto import AutoAugment as Policies

        self._policies: list[Any] = list(Policies(policy, transformation_matrix_mode="skip").children())

    @torch.no_grad()
    def __call__(self, images: Tensor, numbers: np.random.Generator) -> Tensor:
        """Augment images (B, C, H, W), float32 in 0..1."""
        drawn_B = numbers.integers(len(self._policies), size=len(images))
        output = torch.empty_like(images)
        # kornia draws from torch's own random numbers on the host, whose state is restored afterwards.
        with torch.random.fork_rng(devices=[]), torch.autocast(images.device.type, enabled=False):
            torch.manual_seed(int(numbers.integers(2**62)))
            for number in np.unique(drawn_B):
                rows = torch.from_numpy(np.flatnonzero(drawn_B == number)).to(images.device, non_blocking=True)
                output[rows] = self._policies[number](images[rows]).clamp_(0, 1)
        return output
