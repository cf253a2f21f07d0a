"""How pixels become inputs of a model, and how this is stored beside the model."""

# B images, C channels, H rows, W columns

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from harmax.errors import DamagedError
from harmax.files import read_json

PREPARATION = "preparation.json"


class Preparation(NamedTuple):
    """How pixels become inputs: scaled to 0..1, centered, and divided by the deviation of their channel."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: int
    """Side length, in pixels."""

    def __call__(self, images: Tensor) -> Tensor:
        """Prepare images (B, C, H, W) with values in 0..1."""
        return (images - _constant(self.mean, images.device)) / _constant(self.std, images.device)

    def prepare(self, pixels: Tensor) -> Tensor:
        """Prepare images (B, H, W) or (B, H, W, C), uint8, as in data sets."""
        colors = pixels if pixels.ndim == 4 else pixels[..., None].expand(*pixels.shape, 3)
        return self(colors.permute(0, 3, 1, 2).float() / 255)


@lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return one number per channel, (C, 1, 1), copied once: each copy would wait for a GPU."""
    return torch.tensor(values, device=device)[:, None, None]


def read_preparation(folder: Path) -> Preparation:
    """Read how the images of a model are prepared from the folder of the model."""
    stored = read_json(folder / PREPARATION)
    if not isinstance(stored, dict) or stored.keys() != set(Preparation._fields):
        raise DamagedError(f"{folder / PREPARATION} must hold {', '.join(Preparation._fields)}; write the model again.")
    return Preparation(tuple(stored["mean"]), tuple(stored["std"]), stored["size"])
