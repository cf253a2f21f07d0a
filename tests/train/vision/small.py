"""A ResNet that trains in a second, pictures it can learn from, and how its runs are compared."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from harmax.files import from_json
from harmax.train.vision import VISION_PRESETS, VisionSpec

# What steps compute; the rest of a line says how long it took.
NUMBERS = ("step", "epoch", "loss", "accuracy", "val_loss", "top1", "top5", "lr")
KILLED_AT = 18  # a line between the checkpoints of 14 and 21
COLORS = {"blue": (70, 80, 190), "green": (70, 180, 80), "red": (190, 70, 80)}


def spec(**fields: Any) -> VisionSpec:
    """Of two micro-batches a step and 16 steps an epoch; checkpoints fall between lines of metrics."""
    return replace(VISION_PRESETS["smoke"], **{"epochs": 2, "log_every": 3, "checkpoint_every": 7, **fields})


def folder_spec(folder: Path, **fields: Any) -> VisionSpec:
    sizes = dict(dataset="folder", data=folder, image_size=16, batch=8, micro_batch=8, flip=True)
    return spec(**{**sizes, "epochs": 6, **fields})


def write_pictures(root: Path, *, each: int = 16, colors: dict[str, tuple[int, int, int]] = COLORS) -> Path:
    """Class folders of noisy pictures of many sizes, which a class gives its color."""
    numbers = np.random.default_rng(0)
    for side, count in (("train", each), ("val", 6)):
        for name, color in colors.items():
            (root / side / name).mkdir(parents=True)
            for index in range(count):
                height, width = numbers.integers(18, 40, size=2)
                pixels = np.clip(numbers.normal(color, 60, size=(height, width, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / side / name / f"{index}.png")
    return root


def lines(output: Path) -> list[dict[str, Any]]:
    return [from_json(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def curve(output: Path) -> list[dict[str, Any]]:
    return [{name: line[name] for name in NUMBERS if name in line} for line in lines(output)]


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "model" / "model.safetensors")


def assert_same(output: Path, reference: Path) -> None:
    """Bit for bit."""
    assert curve(output) == curve(reference)
    found, wanted = weights(output), weights(reference)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
