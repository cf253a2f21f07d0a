"""Checkpoints of format 1, which had no `format`: read as the current format, never written.

They have checksums of their tensor files, and none of state.json or metrics.jsonl. Vision kept its tensors in one file,
state.safetensors, with the sums since the last line of metrics among them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harmax.errors import needs

VISION_FILE = "state.safetensors"


def modernize(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state.json of format 1 with the fields of the current format; what it does not have stays missing."""
    position = state.get("position")
    if not isinstance(position, dict):
        return dict(state)
    if "images" in position:
        own = {
            "task": "vision",
            "data": {"train": images_digest(position["images"], str(position.get("sha256")))},
            "position": {},
        }
    else:
        own = {"task": "language", "data": {"train": position.get("shards")}, "position": position}
    return {**state, **own, "format": 1, "metrics": ""}


def images_digest(images: int, sha256: str) -> str:
    """Return how a checkpoint names a set of images.

    >>> images_digest(512, "635f6c0f")
    '512 images, sha256 635f6c0f'
    """
    return f"{images} images, sha256 {sha256}"


@torch.no_grad()
def read_vision(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Read vision's tensors into those of a recipe, and return its position."""
    with needs("run"):
        from safetensors.torch import load_file

    stored = load_file(folder / VISION_FILE)
    for name, tensor in tensors.items():
        tensor.copy_(stored[name].view_as(tensor))
    return {"sums": stored["totals"].tolist()}
